#include "core/autograd/saved_tensor_hooks.h"

#include <utility>

namespace muster {
namespace {
thread_local constinit const std::string* disabled_because = nullptr;
}

SavedTensorHooksGuard::SavedTensorHooksGuard(std::shared_ptr<const SavedTensorHooks> hooks)
    : hooks_(std::move(hooks)), previous_(internal::top_saved_tensor_hooks) {
  MUSTER_CHECK(disabled_because == nullptr, ErrorCode::kFailedPrecondition,
               "saved tensor hooks: they are disabled here; {}", *disabled_because);
  internal::top_saved_tensor_hooks = this;
}

SavedTensorHooksGuard::~SavedTensorHooksGuard() { internal::top_saved_tensor_hooks = previous_; }

DisableSavedTensorHooksGuard::DisableSavedTensorHooksGuard(std::string reason)
    : reason_(std::move(reason)), previous_(disabled_because) {
  MUSTER_CHECK(current_saved_tensor_hooks() == nullptr, ErrorCode::kFailedPrecondition,
               "saved tensor hooks: they cannot be disabled while some are active; {}", reason_);
  disabled_because = &reason_;
}

DisableSavedTensorHooksGuard::~DisableSavedTensorHooksGuard() { disabled_because = previous_; }
}  // namespace muster
