#include "dist/backend/nccl/nccl_backend.h"

#include <fmt/format.h>

#include "dist/backend/nccl/cuda.h"
#include "dist/backend/nccl/nccl_engine.h"
#include "dist/backend/nccl/nccl_rules.h"
#include "dist/group/agreed/agreed_group.h"

namespace muster {
namespace {
class NcclDevice final : public LaneDevice {
 public:
  explicit NcclDevice(int device) : device_(device) {}

  std::unique_ptr<LaneEngine> make_engine(LaneMembers members) override {
    return std::make_unique<nccl::NcclEngine>(device_, std::move(members));
  }
  std::shared_ptr<const void> mark() override {
    const cuda::DeviceGuard guard(device_);
    auto event = std::make_shared<cuda::Event>();
    event->record(nullptr);
    return event;
  }
  Tensor copy(const Tensor& tensor) override {
    const cuda::DeviceGuard guard(device_);
    Tensor twin =
        empty_from_spec(TensorSpec::contiguous(tensor.sizes(), tensor.dtype(), tensor.device()),
                        &cuda::allocator(device_));
    cuda::copy(twin, tensor);
    return twin;
  }

 private:
  const int device_;
};

Result<int> device_of(int local_rank) {
  const int count = MUSTER_TRY(cuda::count_devices());
  if (local_rank < count) return local_rank;
  return make_error(ErrorCode::kFailedPrecondition,
                    "nccl: each rank of a host needs a CUDA device of its own; local rank {} finds "
                    "{}\n  fix: use --nproc-per-node {}, or dist.backend shm or gloo",
                    local_rank, count, count);
}

// Each rank says whether it can take part: who cannot would leave the others waiting inside NCCL.
Result<void> exchange_readiness(const NcclBackend::Options& options, const Result<int>& device,
                                Deadline deadline) {
  const auto key = [](int rank) { return fmt::format("nccl/ready/{}", rank); };
  MUSTER_TRY(
      options.store->set(key(options.global_rank), device.ok() ? "" : device.error().message()));
  if (!device.ok()) return device.error();
  std::vector<std::string> keys;
  for (int rank = 0; rank < options.world_size; ++rank) keys.push_back(key(rank));
  const std::vector<std::string> all =
      MUSTER_TRY(options.store->get_many(keys, deadline), "while opening nccl");
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty())
      return make_error(ErrorCode::kFailedPrecondition, "nccl: global rank {} cannot take part: {}",
                        rank, all[rank]);
  }
  return {};
}

Result<std::shared_ptr<AgreedGroup>> open_group(AgreedGroup::Options options, int device,
                                                Deadline deadline) {
  auto group =
      std::make_shared<AgreedGroup>(std::move(options), std::make_shared<NcclDevice>(device));
  const Result<void> opened = catch_error([&] { group->open(deadline).value(); });
  if (opened.ok()) return group;
  group->close();
  return opened.error();
}
}  // namespace

NcclBackend::NcclBackend(std::shared_ptr<AgreedGroup> group, int device)
    : group_(std::move(group)), device_(device) {}

NcclBackend::~NcclBackend() { group_->close(); }

Result<std::unique_ptr<NcclBackend>> NcclBackend::open_world(Options options, Deadline deadline) {
  const Result<int> device = device_of(options.local_rank);
  MUSTER_TRY(exchange_readiness(options, device, deadline));
  AgreedGroup::Options world;
  world.store = std::move(options.store);
  world.members = GroupMembers::world(options.global_rank, options.world_size);
  return std::unique_ptr<NcclBackend>(new NcclBackend(
      MUSTER_TRY(open_group(std::move(world), device.value(), deadline)), device.value()));
}

void NcclBackend::check(const CollectiveRequest& request) const {
  const std::optional<Error> refused = nccl::refusal(
      request, {DeviceType::kCuda, static_cast<int8_t>(device_)}, group_->members().group_rank);
  if (refused) throw *refused;
}

std::shared_ptr<Work> NcclBackend::launch(CollectiveRequest request) {
  return group_->launch(std::move(request));
}

void NcclBackend::abort(const std::string& reason) { group_->abort(reason); }

Allocator& NcclBackend::communication_allocator() { return cuda::allocator(device_); }

Result<std::unique_ptr<Backend>> NcclBackend::subgroup(GroupMembers members, Deadline deadline) {
  return std::unique_ptr<Backend>(new NcclBackend(
      MUSTER_TRY(open_group(group_->subgroup_options(std::move(members)), device_, deadline)),
      device_));
}
}  // namespace muster
