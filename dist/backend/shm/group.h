#pragma once
/// The state of one shm group: control blocks, queues of pending works, failure, own thread.
///
/// Works of one lane (all collectives; sends to a peer; receives from a peer) execute in launch
/// order. Whoever waits drives the lane; only the group's thread does so without a waiter.

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
  bool is_driven = false;  ///< some thread is inside execute()
};

class ShmBackend::Group {
 public:
  Group(std::shared_ptr<shm::Context> context_in, Options options_in)
      : context(std::move(context_in)), options(std::move(options_in)) {}
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] int size() const noexcept { return static_cast<int>(options.global_ranks.size()); }
  [[nodiscard]] const shm::Peer& peer(int group_rank) const {
    return context->peer(options.global_ranks[static_cast<size_t>(group_rank)]);
  }
  [[nodiscard]] shm::ControlBlock& block(int group_rank) const {
    return *blocks[static_cast<size_t>(group_rank)];
  }
  [[nodiscard]] shm::ControlBlock& own_block() const { return block(options.group_rank); }

  /// Runs the lane of `work` until it is done or the deadline passes; false on the deadline.
  bool drive(ShmWork& work, Deadline deadline);
  void enqueue(const std::shared_ptr<ShmWork>& work, bool async_op);
  /// Remembers the first failure; every later operation ends with it.
  void fail(const Error& error);
  [[nodiscard]] std::optional<Error> failure() const;
  void abort(const std::string& reason);
  /// Tells the peers why this rank gave the group up; the first notice counts.
  void post_notice(const Error& error);
  /// What a peer's notice means for an operation of this rank.
  [[nodiscard]] Error read_notice(int peer, const WorkDescriptor& what) const;
  /// Ends what is pending and joins the group's thread; pending works hold the group, so the
  /// backend calls this before it lets go.
  void close();

  /// "group rank 1 (global 3)".
  [[nodiscard]] std::string name_of(int group_rank) const;

  std::shared_ptr<shm::Context> context;
  Options options;
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
  void run_async();
  ShmLane& lane_of(const ShmWork& work);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Error> failure_;                      // guarded by mutex_
  ShmLane collectives_;                               // guarded by mutex_
  std::vector<ShmLane> sends_, receives_;             // guarded by mutex_
  std::deque<std::shared_ptr<ShmWork>> async_works_;  // guarded by mutex_
  bool stopping_ = false;                             // guarded by mutex_
  std::thread async_thread_;  // started by the first async_op, joined by the destructor
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
  /// Waits for one peer's clock; false means "stop here" with `*finished` telling why.
  bool await_peer(int peer, shm::Clock& clock, uint32_t target, Deadline deadline, bool* finished);
  [[nodiscard]] bool must_leave_after(int peer) const;
  [[nodiscard]] std::optional<Error> compare_contract(int peer,
                                                      const WrittenDescriptor& theirs) const;
  void act();
  void act_all_reduce();
  void act_gather();
  void act_all_to_all();
  void copy_staged_output();
  [[nodiscard]] const std::byte* input_of(int peer, int64_t nbytes) const;
  std::byte* stage(int64_t nbytes);
  void release_stage();
  [[nodiscard]] int64_t payload_nbytes() const;

  std::shared_ptr<ShmBackend::Group> group_;
  CollectiveRequest request_;
  Stage stage_ = Stage::kNew;
  int next_peer_ = 0;
  bool is_inline_ = false;
  std::byte* staged_ = nullptr;
  int64_t staged_nbytes_ = 0;
  std::optional<Error> error_;  // written before done_
  std::atomic<bool> done_{false};
  friend class ShmBackend::Group;
};

}  // namespace muster
