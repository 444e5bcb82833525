#pragma once
/// Hooks on what autograd saves: packed when a call is recorded, unpacked when backward needs it.
///
/// The innermost pair on this thread sees every tensor that is saved; what pack returns is kept in
/// its place (an offloaded copy, a compressed form, a recipe to recompute it). Numbers and absent
/// tensors are never passed. Unlike PyTorch's, hooked tensors keep their version check: when unpack
/// returns an alias of the very storage that was saved and that was written since, backward fails
/// as without hooks. @source torch.autograd.graph.saved_tensors_hooks

#include <any>
#include <functional>
#include <memory>
#include <string>

#include "core/tensor/tensor.h"

namespace muster {

struct SavedTensorHooks {
  /// Gets an alias without history, in no_grad mode. Must not write into it.
  std::function<std::any(const Tensor& tensor)> pack;
  /// Gives back a tensor of the same sizes and dtype. Runs once for each use by a derivative.
  std::function<Tensor(const std::any& packed)> unpack;
};

/// Puts a pair of hooks on top of this thread's stack for a scope.
class SavedTensorHooksGuard {
 public:
  /// @error kFailedPrecondition hooks are disabled on this thread; the message holds the reason
  explicit SavedTensorHooksGuard(SavedTensorHooks hooks)
      : SavedTensorHooksGuard(std::make_shared<const SavedTensorHooks>(std::move(hooks))) {}
  explicit SavedTensorHooksGuard(std::shared_ptr<const SavedTensorHooks> hooks);
  ~SavedTensorHooksGuard();
  SavedTensorHooksGuard(const SavedTensorHooksGuard&) = delete;
  SavedTensorHooksGuard& operator=(const SavedTensorHooksGuard&) = delete;
  [[nodiscard]] const std::shared_ptr<const SavedTensorHooks>& hooks() const noexcept {
    return hooks_;
  }

 private:
  std::shared_ptr<const SavedTensorHooks> hooks_;
  SavedTensorHooksGuard* previous_;
};

/// Makes SavedTensorHooksGuard an error for a scope: for code that would be wrong under hooks.
class DisableSavedTensorHooksGuard {
 public:
  /// @error kFailedPrecondition hooks are active already
  explicit DisableSavedTensorHooksGuard(std::string reason);
  ~DisableSavedTensorHooksGuard();
  DisableSavedTensorHooksGuard(const DisableSavedTensorHooksGuard&) = delete;
  DisableSavedTensorHooksGuard& operator=(const DisableSavedTensorHooksGuard&) = delete;

 private:
  std::string reason_;
  const std::string* previous_;
};

/// Inside a pack hook: what is being saved, e.g. `mul "other"`. Empty elsewhere.
std::string saved_tensor_site();

namespace internal {
inline thread_local constinit SavedTensorHooksGuard* top_saved_tensor_hooks = nullptr;
}
/// The innermost hooks of this thread; null when there are none.
inline const SavedTensorHooksGuard* current_saved_tensor_hooks() noexcept {
  return internal::top_saved_tensor_hooks;
}

}  // namespace muster
