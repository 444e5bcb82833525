#pragma once
/// The state of one shm group: control blocks, lanes of pending works, failure, threads.
///
/// Works of one lane (all collectives; sends to a peer; receives from a peer) execute in launch
/// order, lanes side by side. Whoever waits drives the lane; works launched with async_op have a
/// thread of the lane's own, so that a message that is late holds up nothing but its lane.

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "dist/backend/shm/shm_backend.h"

namespace muster {

class ShmWork;

/// Works that execute one after the other.
struct ShmLane {
  std::deque<std::shared_ptr<ShmWork>> pending;
  bool is_driven = false;                      ///< some thread is inside execute()
  std::deque<std::shared_ptr<ShmWork>> async;  ///< those that `thread` drives
  std::thread thread;  ///< started by the first async_op, joined by the group's close()
};

class ShmBackend::Group {
 public:
  Group(std::shared_ptr<shm::Context> context_in, GroupMembers members_in);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] int size() const noexcept { return members.size(); }
  [[nodiscard]] const shm::Peer& peer(int group_rank) const {
    return context->peer(members.global_rank_of(group_rank));
  }
  [[nodiscard]] shm::ControlBlock& block(int group_rank) const {
    return *blocks[static_cast<size_t>(group_rank)];
  }
  [[nodiscard]] shm::ControlBlock& own_block() const { return block(members.group_rank); }

  /// Runs the lane of `work` until it is done or the deadline passes; false on the deadline.
  bool drive(ShmWork& work, Deadline deadline);
  void enqueue(const std::shared_ptr<ShmWork>& work);
  /// Lets an enqueued work progress without a waiter.
  void drive_in_background(const std::shared_ptr<ShmWork>& work);
  /// Remembers the first failure; every later operation ends with it.
  void fail(const Error& error);
  [[nodiscard]] std::optional<Error> failure() const;
  void abort(const std::string& reason);
  /// Tells the peers why this rank gave the group up; the first notice counts.
  void post_notice(const Error& error);
  /// Remembers that a wait for a collective ended at its deadline: if the group is closed with it
  /// pending, peers are told, and who was late is named to them too.
  void note_timeout(uint64_t seq, const std::string& why);
  /// What a peer's notice means for an operation of this rank.
  [[nodiscard]] Error read_notice(int peer, const WorkDescriptor& what) const;
  /// Where a rank of the job waits for this one in a collective of this group, or "".
  [[nodiscard]] std::string where_it_waits(int global_rank) const;
  /// Ends what is pending and joins the group's threads; pending works hold the group, so the
  /// backend calls this before it lets go.
  void close();

  std::shared_ptr<shm::Context> context;
  GroupMembers members;
  std::vector<shm::ControlBlock*> blocks;  ///< by group rank; own_block() is ours to write
  int64_t own_block_nbytes = 0;
  std::atomic<bool> is_aborted{false};

  /// Sent messages whose memory a peer may still read: (seq, data, nbytes) per destination.
  struct SentMessage {
    uint32_t seq;
    void* data;
    int64_t nbytes;
  };
  std::vector<std::deque<SentMessage>> unread;

 private:
  void run_async(ShmLane& lane);
  [[nodiscard]] std::optional<Error> timeout_left_behind();
  ShmLane& lane_of(const ShmWork& work);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Error> failure_;  // guarded by mutex_
  std::vector<ShmLane> lanes_;    // guarded by mutex_: collectives, sends by peer, receives by peer
  bool stopping_ = false;         // guarded by mutex_
  uint64_t timed_out_seq_ = 0;    // guarded by mutex_; 0: none
  std::string timed_out_why_;     // guarded by mutex_
};

/// One operation; execute() is a state machine that may be left at a deadline and entered again.
class ShmWork final : public Work {
 public:
  ShmWork(std::shared_ptr<ShmBackend::Group> group, CollectiveRequest request);
  ~ShmWork() override;

  Result<void> wait(Deadline deadline) override;
  [[nodiscard]] std::vector<int> late_ranks() const override;
  [[nodiscard]] bool done() const noexcept override {
    return done_.load(std::memory_order_acquire);
  }

  /// Makes progress until the outcome is known (true) or the deadline passes (false).
  /// @thread one at a time; the lane sees to it
  bool execute(Deadline deadline);
  /// Ends the work with an outcome; the first one counts.
  void finish(std::optional<Error> error);

 private:
  enum class Stage : uint8_t { kNew, kArriving, kLeaving };
  using Step = std::optional<bool>;  // nothing: go on; true: finished; false: deadline

  bool execute_collective(Deadline deadline);
  bool execute_send(Deadline deadline);
  bool execute_recv(Deadline deadline);
  void announce();
  /// Waits for one peer's clock; false means "stop here" with `*finished` telling why. What happens
  /// to the other peers meanwhile is seen too.
  bool await_peer(int peer, shm::Clock& clock, uint32_t target, Deadline deadline, bool* finished);
  [[nodiscard]] std::optional<Error> fault_of_others(int awaited) const;
  [[nodiscard]] Error lost_error(int peer) const;
  [[nodiscard]] bool must_leave_after(int peer) const;
  [[nodiscard]] std::optional<Error> compare_contract(int peer,
                                                      const WrittenDescriptor& theirs) const;
  void act();
  void act_all_reduce();
  void act_gather();
  void act_reduce_pieces();
  void act_all_to_all();
  void copy_staged_output();
  [[nodiscard]] const std::byte* input_of(int peer, int64_t nbytes) const;
  std::byte* stage(int64_t nbytes);
  std::byte* stage_pieces_for_others();
  void release_stage();
  [[nodiscard]] int64_t payload_nbytes() const;

  std::shared_ptr<ShmBackend::Group> group_;
  CollectiveRequest request_;
  const bool is_inline_;  // the contribution travels in the announcement, on all ranks alike
  Stage stage_ = Stage::kNew;
  int next_peer_ = 0;
  std::byte* staged_ = nullptr;
  int64_t staged_nbytes_ = 0;
  std::optional<Error> error_;  // written before done_
  std::atomic<bool> done_{false};
  friend class ShmBackend::Group;
};

}  // namespace muster
