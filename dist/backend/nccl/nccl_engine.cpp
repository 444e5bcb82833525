#include "dist/backend/nccl/nccl_engine.h"

#include <fmt/format.h>
#include <nccl.h>
#include <poll.h>

#include <cstring>

#include "dist/backend/nccl/nccl_calls.h"
#include "dist/backend/nccl/nccl_rules.h"

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 14, 0),
              "non-blocking communicators came with NCCL 2.14");

namespace muster::nccl {
namespace {
// CUDA and NCCL have no wait with a deadline, so their state is looked at this often.
constexpr Duration kPollEvery = 50us;
constexpr Duration kStoreSlice = 100ms;
constexpr Duration kAtMostToLeave = 10s;
constexpr const char* kIdKey = "nccl_id";

Error stopped(const LaneMembers& members) {
  return make_error(ErrorCode::kAborted, "nccl: group {}: stopped", members.name);
}

// Looks at `is_done` until it is true or the time is over.
template <typename Done>
bool poll_until(Deadline deadline, Done&& is_done) {
  while (!is_done()) {
    if (deadline.passed()) return false;
    ::poll(nullptr, 0, 1);
  }
  return true;
}
}  // namespace

NcclEngine::~NcclEngine() { abort(); }

Error NcclEngine::error_of(int result, const char* operation) const {
  const char* detail = ncclGetLastError(communicator_);
  return make_error(code_of(result), "nccl: group {}: {}: {}{}{}", members_.name, operation,
                    ncclGetErrorString(static_cast<ncclResult_t>(result)),
                    detail != nullptr && *detail != '\0' ? ": " : "",
                    detail != nullptr ? detail : "");
}

int NcclEngine::member_of(int group_rank) const {
  for (size_t i = 0; i < members_.members.size(); ++i)
    if (members_.members[i].group_rank == group_rank) return static_cast<int>(i);
  return 0;
}

// Waits until what was begun on the communicator is no longer in progress.
Result<void> NcclEngine::settle(int result, const char* operation, Interrupt& interrupt) {
  auto state = static_cast<ncclResult_t>(result);
  while (state == ncclInProgress) {
    const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &state);
    if (asked != ncclSuccess) state = asked;
    if (state == ncclInProgress && interrupt.wait_for(kPollEvery)) return stopped(members_);
  }
  if (state != ncclSuccess) return error_of(state, operation);
  return {};
}

Result<std::string> NcclEngine::exchange_unique_id(Interrupt& interrupt) {
  if (members_.own == 0) {
    ncclUniqueId id;
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) return error_of(result, "ncclGetUniqueId");
    const std::string text(id.internal, sizeof(id.internal));
    MUSTER_TRY(members_.store->set(kIdKey, text));
    return text;
  }
  while (true) {
    Result<std::string> text = members_.store->get(kIdKey, Deadline::after(kStoreSlice));
    if (text.ok() || text.error().code() != ErrorCode::kTimeout) return text;
    if (interrupt.wait_for(Duration::zero())) return stopped(members_);
  }
}

Result<void> NcclEngine::connect(Interrupt& interrupt) {
  const cuda::DeviceGuard guard(device_);
  stream_ = std::make_unique<cuda::Stream>();
  end_ = std::make_unique<cuda::Event>();
  const std::string text = MUSTER_TRY(exchange_unique_id(interrupt));
  ncclUniqueId id;
  if (text.size() != sizeof(id.internal)) {
    return make_error(ErrorCode::kInternal, "nccl: group {}: an id must have {} bytes; got {}",
                      members_.name, sizeof(id.internal), text.size());
  }
  std::memcpy(id.internal, text.data(), sizeof(id.internal));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t result = ncclCommInitRankConfig(
      &communicator_, static_cast<int>(members_.members.size()), id, members_.own, &config);
  MUSTER_TRY(settle(result, "ncclCommInitRankConfig", interrupt));
  // All have joined, so all have read it.
  if (members_.own == 0) MUSTER_TRY(members_.store->remove(kIdKey));
  return {};
}

Result<void> NcclEngine::run(const CollectiveRequest& request, const void* mark,
                             Interrupt& interrupt) {
  const cuda::DeviceGuard guard(device_);
  static_cast<const cuda::Event*>(mark)->order_before(*stream_);
  const CallPlace place{communicator_, stream_->get(), static_cast<int>(members_.members.size()),
                        members_.own};
  const int peer = request.root == kNoPeer ? kNoPeer : member_of(request.root);
  const int result = enqueue(place, request, peer);
  MUSTER_TRY(settle(result, "enqueue", interrupt));
  end_->record(stream_.get());
  while (!end_->has_passed()) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &state);
    MUSTER_TRY(settle(asked != ncclSuccess ? asked : state, "while it ran", interrupt));
    if (interrupt.wait_for(kPollEvery)) return stopped(members_);
  }
  return {};
}

void NcclEngine::abort() noexcept {
  if (communicator_ != nullptr) static_cast<void>(ncclCommAbort(communicator_));
  communicator_ = nullptr;
  if (!stream_) return;
  // NCCL's kernels leave now; what they were ordered after belongs to the caller and may take time.
  static_cast<void>(poll_until(Deadline::after(kAtMostToLeave), [&] {
    return catch_error([&] { return stream_->is_idle(); }).value_or(true);
  }));
  stream_.reset();
}

void NcclEngine::close() noexcept {
  if (communicator_ == nullptr) return;
  ncclResult_t state = ncclCommFinalize(communicator_);
  const auto has_ended = [&] {
    if (state == ncclInProgress && ncclCommGetAsyncError(communicator_, &state) != ncclSuccess) {
      state = ncclInternalError;
    }
    return state != ncclInProgress;
  };
  if (!poll_until(Deadline::after(kAtMostToLeave), has_ended) || state != ncclSuccess)
    return abort();
  static_cast<void>(ncclCommDestroy(communicator_));
  communicator_ = nullptr;
}
}  // namespace muster::nccl
