#pragma once
/// A LaneDevice without a device: ranks are threads, and bytes go through memory that they share.
///
/// It stands in for NCCL and CUDA, so that queues, agreement, deadlines and abort of AgreedGroup
/// pass the backend suite on every machine. Only what this file replaces needs a GPU.

#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dist/group/agreed/agreed_group.h"

namespace muster::testing {

/// What members gave, by key, until they take it back.
class Board {
 public:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;
  void put(const std::string& key, const Tensor& tensor);
  /// Null when `interrupt` said stop.
  Bytes take(const std::string& key, Interrupt& interrupt);
  void remove(const std::string& key);
  /// The board of all who use this store.
  static std::shared_ptr<Board> of(const Store* store);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Bytes> all_;  // guarded by mutex_
};

class HostDevice final : public LaneDevice {
 public:
  explicit HostDevice(std::shared_ptr<Board> board) : board_(std::move(board)) {}
  std::unique_ptr<LaneEngine> make_engine(LaneMembers members) override;
  std::shared_ptr<const void> mark() override { return nullptr; }
  Tensor copy(const Tensor& tensor) override;

 private:
  const std::shared_ptr<Board> board_;
};

/// A backend of an AgreedGroup on any LaneDevice.
class AgreedBackend final : public Backend {
 public:
  AgreedBackend(std::shared_ptr<AgreedGroup> group, std::shared_ptr<LaneDevice> device)
      : group_(std::move(group)), device_(std::move(device)) {}
  static Result<std::unique_ptr<Backend>> open(AgreedGroup::Options options,
                                               std::shared_ptr<LaneDevice> device,
                                               Deadline deadline);
  ~AgreedBackend() override { group_->close(); }

  [[nodiscard]] std::string name() const override { return "agreed"; }
  [[nodiscard]] BackendAbilities abilities() const override { return {}; }
  [[nodiscard]] std::shared_ptr<Work> launch(CollectiveRequest request) override {
    return group_->launch(std::move(request));
  }
  void abort(const std::string& reason) override { group_->abort(reason); }
  [[nodiscard]] Allocator& communication_allocator() override { return cpu_allocator(); }
  [[nodiscard]] Result<std::unique_ptr<Backend>> subgroup(GroupMembers members,
                                                          Deadline deadline) override {
    return open(group_->subgroup_options(std::move(members)), device_, deadline);
  }

 private:
  const std::shared_ptr<AgreedGroup> group_;
  const std::shared_ptr<LaneDevice> device_;
};

}  // namespace muster::testing
