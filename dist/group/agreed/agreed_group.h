#pragma once
/// The operations of one group over a device whose messages carry no contract: queues, agreement
/// through the store, deadlines, failure and abort. A LaneDevice moves the bytes.
///
/// All collectives of the group are one lane; messages from one rank to another are a lane of their
/// own, so that they do not wait for each other. A lane has a thread: it takes operations in launch
/// order, agrees with the other members, and only then lets its engine begin.

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dist/group/agreed/lane_device.h"

namespace muster {

class AgreedGroup;

/// One operation. Its state belongs to the group and is guarded by the group's lock.
class AgreedWork final : public Work {
 public:
  AgreedWork(std::shared_ptr<AgreedGroup> group, WorkDescriptor descriptor)
      : Work(std::move(descriptor)), group_(std::move(group)) {}

  Result<void> wait(Deadline deadline) override;
  [[nodiscard]] std::vector<int> late_ranks() const override;
  [[nodiscard]] bool done() const noexcept override {
    return done_.load(std::memory_order_acquire);
  }

 private:
  friend class AgreedGroup;
  const std::shared_ptr<AgreedGroup> group_;
  std::optional<Error> error_;  // written before done_
  std::atomic<bool> done_{false};
};

class AgreedGroup final : public std::enable_shared_from_this<AgreedGroup> {
 public:
  struct Options {
    std::shared_ptr<Store> store;  ///< keys get the group's identity in front
    GroupMembers members;
    Duration linger = 10s;  ///< how long close() waits for messages that nobody has taken yet
  };

  AgreedGroup(Options options, std::shared_ptr<LaneDevice> device);
  ~AgreedGroup();
  AgreedGroup(const AgreedGroup&) = delete;
  AgreedGroup& operator=(const AgreedGroup&) = delete;

  /// Connects the lane of the collectives. @collective all members @blocks
  /// @error kTimeout; what LaneEngine::connect() returns
  Result<void> open(Deadline deadline);
  std::shared_ptr<Work> launch(CollectiveRequest request);
  /// False when the deadline passed first.
  bool wait(const AgreedWork& work, Deadline deadline);
  [[nodiscard]] std::vector<int> late_ranks(const AgreedWork& work);
  /// Why a pending operation has not ended, for people.
  [[nodiscard]] std::string describe_pending(const AgreedWork& work);
  void abort(const std::string& reason);
  /// Waits for unsent messages, ends what is pending, joins the threads. Works hold the group, so
  /// the backend calls this before it lets go.
  void close();

  [[nodiscard]] const GroupMembers& members() const noexcept { return options_.members; }
  /// The options of another group over the same store.
  [[nodiscard]] Options subgroup_options(GroupMembers members) const;

 private:
  using WorkRef = std::shared_ptr<AgreedWork>;
  /// Source and destination; kNoPeer twice for the collectives.
  using LaneKey = std::pair<int, int>;
  /// A launched operation; its tensors live here until the device is done with them.
  struct Operation {
    CollectiveRequest request;
    WorkRef work;
    std::shared_ptr<const void> mark;
  };
  struct Lane {
    std::shared_ptr<StoreAgreement> agreement;
    std::unique_ptr<LaneEngine> engine;
    std::deque<Operation> operations;  // guarded by mutex_; the first one is with the thread
    bool is_connected = false;         // of the thread
    bool is_moving = false;            // guarded by mutex_; the first operation is agreed on
    std::thread thread;
  };
  class LaneInterrupt;

  [[nodiscard]] int size() const noexcept { return options_.members.size(); }
  [[nodiscard]] LaneKey key_of(const WorkDescriptor& what) const;
  [[nodiscard]] LaneMembers members_of(const LaneKey& key) const;
  std::shared_ptr<StoreAgreement> agreement_locked(const LaneKey& key);
  Lane& lane_locked(const LaneKey& key);
  void finish_locked(const WorkRef& work, const std::optional<Error>& error);
  void fail(const Error& error);
  void run(Lane& lane);
  Result<void> run_one(Lane& lane, const Operation& operation);
  bool wait_until_sent(Deadline deadline);

  const Options options_;
  const std::shared_ptr<LaneDevice> device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<LaneKey, std::shared_ptr<StoreAgreement>> agreements_;  // guarded by mutex_
  std::map<LaneKey, Lane> lanes_;                                  // guarded by mutex_
  std::optional<Error> failure_;                                   // guarded by mutex_
  bool is_stopping_ = false;                                       // guarded by mutex_
};

}  // namespace muster
