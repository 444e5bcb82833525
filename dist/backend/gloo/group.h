#pragma once
/// The state of one gloo group: what was launched, what each peer has announced, failure, thread.
///
/// Every rank announces each operation to every other one at its launch. An operation whose
/// announcements are all there and equal has been agreed on: small ones are done then, larger ones
/// run on the group's thread in launch order.

#include <array>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dist/backend/gloo/collectives.h"
#include "dist/backend/gloo/gloo_backend.h"
#include "dist/group/written_descriptor.h"

namespace muster {

/// One operation. Its state belongs to the group and is guarded by the group's lock.
class GlooWork final : public Work {
 public:
  GlooWork(std::shared_ptr<GlooBackend::Group> group, CollectiveRequest request)
      : Work(request.descriptor), group_(std::move(group)), request_(std::move(request)) {}

  Result<void> wait(Deadline deadline) override;
  [[nodiscard]] std::vector<int> late_ranks() const override;
  [[nodiscard]] bool done() const noexcept override {
    return done_.load(std::memory_order_acquire);
  }

 private:
  friend class GlooBackend::Group;
  const std::shared_ptr<GlooBackend::Group> group_;
  CollectiveRequest request_;
  wire::TransferPtr arriving_;  // of a large message
  std::optional<Error> error_;  // written before done_
  std::atomic<bool> done_{false};
};

class GlooBackend::Group final : public wire::ChannelListener,
                                 public std::enable_shared_from_this<Group> {
 public:
  Group(std::shared_ptr<wire::Channel> channel, GroupMembers members);
  ~Group() override;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] const GroupMembers& members() const noexcept { return members_; }
  [[nodiscard]] wire::Channel& channel() noexcept { return *channel_; }
  [[nodiscard]] int size() const noexcept { return members_.size(); }

  std::shared_ptr<Work> launch(CollectiveRequest request);
  /// False when the deadline passed first.
  bool wait(const GlooWork& work, Deadline deadline);
  /// Group ranks that a pending operation waits for; none once all have arrived.
  [[nodiscard]] std::vector<int> late_ranks(const GlooWork& work);
  /// The same for people: one line each, with the last operation that a rank came to.
  [[nodiscard]] std::string describe_late(const GlooWork& work);
  /// Remembers that a wait for a collective ended at its deadline: if the group is closed with it
  /// pending, peers are told, and who was late is named to them too.
  void note_timeout(const GlooWork& work, const std::string& why);
  void abort(const std::string& reason);
  /// Ends what is pending and joins the group's thread; the channel is not used after it.
  void close();

  void on_frame(int peer, const wire::FrameHeader& header, const std::string& payload) override;
  void on_peer_gone(int peer, const wire::PeerEnd& end) override;
  std::string where_it_waits(int peer) override;

 private:
  using WorkRef = std::shared_ptr<GlooWork>;
  /// What a peer said of one operation.
  struct Announcement {
    WrittenDescriptor descriptor;
    PieceSizes pieces;
    std::string inlined;  ///< its contribution, where it is small
  };
  /// One place in the order of collectives; there before either side has come to it.
  struct Round {
    std::vector<std::optional<Announcement>> announced;  ///< by group rank
    int num_announced = 0;
    bool is_agreed = false;  ///< large, and with the group's thread
    WorkRef work;
  };
  /// A message, or the news of a large one.
  struct Message {
    WrittenDescriptor descriptor;
    int64_t nbytes = 0;
    std::string inlined;
  };
  using MessagePlace = std::pair<int, uint64_t>;  // source, sequence number

  Round& round_locked(uint64_t seq);
  [[nodiscard]] std::vector<std::string> announcements(const GlooWork& work) const;
  void advance_locked(Round& round);
  void finish_locked(const WorkRef& work, std::optional<Error> error);
  void fail_locked(Error error);
  [[nodiscard]] std::optional<Error> compare_locked(const GlooWork& work, int peer,
                                                    const Announcement& theirs) const;
  [[nodiscard]] std::optional<Error> lost_locked(const Round& round) const;
  void post_notice(const Error& error);

  void launch_send(const WorkRef& work);
  void launch_receive(const WorkRef& work);
  void match_message(const WorkRef& work, const Message& message);
  void start_large_receive(const WorkRef& work);

  void run();
  std::optional<Error> run_one(const WorkRef& work);

  [[nodiscard]] int group_rank_of(int global_rank) const;
  [[nodiscard]] Error lost_error(const WorkDescriptor& what, int group_rank,
                                 const wire::PeerEnd& end) const;

  const std::shared_ptr<wire::Channel> channel_;
  const GroupMembers members_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Round> rounds_;           // guarded by mutex_
  std::vector<uint64_t> last_announced_;       // guarded by mutex_; by group rank
  std::map<MessagePlace, Message> messages_;   // guarded by mutex_
  std::map<MessagePlace, WorkRef> receivers_;  // guarded by mutex_
  std::map<int, wire::PeerEnd> gone_;          // guarded by mutex_; by group rank
  std::deque<WorkRef> runnable_;               // guarded by mutex_
  WorkRef running_;                            // guarded by mutex_
  std::optional<Error> failure_;               // guarded by mutex_
  bool is_noticed_ = false;                    // guarded by mutex_
  bool is_stopping_ = false;                   // guarded by mutex_
  uint64_t timed_out_seq_ = 0;                 // guarded by mutex_; 0: none
  std::string timed_out_why_;                  // guarded by mutex_
  std::thread thread_;  // started by the first large operation, joined by close()
};

}  // namespace muster
