#pragma once
/// One collective or point-to-point operation in flight.
///
/// A Backend creates it and completes it exactly once; any number of threads may wait. It keeps the
/// facts a post-mortem needs, so that a hang can be named without a debugger. Not a future of a
/// value: results are written into the tensors that the caller passed in.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "core/base/time.h"
#include "core/tensor/dtype.h"
#include "core/tensor/layout.h"
#include "dist/group/collective_kind.h"

namespace muster {

inline constexpr int kNoPeer = -1;

/// What was launched. Ranks whose contracts differ at the same `seq` have diverged. Texts are made
/// when somebody asks, not per operation.
struct WorkDescriptor {
  CollectiveKind kind = CollectiveKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kF32;
  int peer = kNoPeer;     ///< group rank of the root or of the other side; kNoPeer for none
  std::string group;      ///< e.g. "tp.1"
  uint64_t seq = 0;       ///< position in this group's launch order, from 1; per pair for send/recv
  int64_t numel = 0;      ///< elements contributed by this rank (not bytes)
  DimVector sizes;        ///< of the tensor that all ranks must agree on
  const char* file = "";  ///< call site; a string literal
  uint32_t line = 0;
  std::string label;      ///< what it is for, where the caller said so; ranks agree on it
  uint64_t contract = 0;  ///< hash of everything that every rank must agree on

  /// "all_reduce #418 f32[4096] sum in group tp.1 at train/loop.cpp:88".
  [[nodiscard]] std::string describe() const;
};

class Work {
 public:
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  /// Blocks the calling thread until the operation completes or `deadline` passes.
  /// @error kTimeout   deadline passed; the operation is still pending and may be awaited again
  /// @error kPeerLost  a peer's process ended; the message gives its group rank
  /// @error kMismatch  another rank launched something else here; the message names both call sites
  /// @error kAborted   ProcessGroup::abort() ran; every later operation fails the same way
  /// @thread any; all waiters see the same outcome
  /// @source c10d Work::wait, except that a failure is returned, never thrown
  [[nodiscard]] virtual Result<void> wait(Deadline deadline) = 0;

  /// Group ranks that a pending operation waits for, as far as the backend knows. @thread any
  [[nodiscard]] virtual std::vector<int> late_ranks() const { return {}; }
  /// True once the outcome is known. Does not make progress.
  [[nodiscard]] virtual bool done() const noexcept = 0;
  [[nodiscard]] const WorkDescriptor& descriptor() const noexcept { return descriptor_; }

 protected:
  explicit Work(WorkDescriptor descriptor) : descriptor_(std::move(descriptor)) {}

 private:
  const WorkDescriptor descriptor_;
};

}  // namespace muster
