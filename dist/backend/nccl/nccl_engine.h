#pragma once
/// The LaneEngine of nccl: a communicator of the lane's members, and a stream of its own.
///
/// The communicator is non-blocking: whatever takes long is polled, so that an abort ends it.

#include <memory>

#include "dist/backend/nccl/cuda.h"
#include "dist/group/agreed/lane_device.h"

struct ncclComm;

namespace muster::nccl {

class NcclEngine final : public LaneEngine {
 public:
  NcclEngine(int device, LaneMembers members) : device_(device), members_(std::move(members)) {}
  ~NcclEngine() override;

  Result<void> connect(Interrupt& interrupt) override;
  /// `mark` is a cuda::Event.
  Result<void> run(const CollectiveRequest& request, const void* mark,
                   Interrupt& interrupt) override;
  void abort() noexcept override;
  void close() noexcept override;

 private:
  Result<std::string> exchange_unique_id(Interrupt& interrupt);
  Result<void> settle(int result, const char* operation, Interrupt& interrupt);
  [[nodiscard]] Error error_of(int result, const char* operation) const;
  [[nodiscard]] int member_of(int group_rank) const;

  const int device_;
  const LaneMembers members_;
  ncclComm* communicator_ = nullptr;
  std::unique_ptr<cuda::Stream> stream_;
  std::unique_ptr<cuda::Event> end_;
};

}  // namespace muster::nccl
