#pragma once
/// What AgreedGroup needs of a device: memory for buffered sends, marks in its order of work, and
/// an engine for each lane that moves bytes once all members have agreed.
///
/// nccl implements it with CUDA; tests with host memory, so that everything above runs anywhere.

#include <memory>
#include <string>
#include <vector>

#include "dist/group/agreed/store_agreement.h"
#include "dist/group/backend.h"

namespace muster {

/// Who uses a lane, and where: the members in the same order on all of them.
struct LaneMembers {
  std::shared_ptr<Store> store;  ///< with a prefix of this lane's own
  std::string name;              ///< "tp.1", or "tp.1 0->3" for messages
  std::string identity;          ///< the same on all members, and on no other lane of the job
  std::vector<AgreementMember> members;
  int own = 0;
};

/// Tells who waits inside an engine to stop.
class Interrupt {
 public:
  virtual ~Interrupt() = default;
  /// Waits for at most so long; true as soon as the operation must end early.
  [[nodiscard]] virtual bool wait_for(Duration at_most) = 0;
};

/// Moves the bytes of one lane. Every function is called by one thread at a time.
class LaneEngine {
 public:
  virtual ~LaneEngine() = default;
  /// Called once, before the first run(). @collective all members @blocks
  virtual Result<void> connect(Interrupt& interrupt) = 0;
  /// Runs one operation, on which all members have agreed, to its end on this member. Roots and
  /// peers in it are group ranks. `mark` is what LaneDevice::mark() gave at the launch.
  /// @blocks until the tensors hold the result, or until `interrupt` says stop
  virtual Result<void> run(const CollectiveRequest& request, const void* mark,
                           Interrupt& interrupt) = 0;
  /// Ends what still runs; afterwards nothing uses the tensors of any operation.
  virtual void abort() noexcept = 0;
  /// Leaves in order: peers keep what they were sent. Not after abort().
  virtual void close() noexcept = 0;
};

/// @thread any
class LaneDevice {
 public:
  virtual ~LaneDevice() = default;
  [[nodiscard]] virtual std::unique_ptr<LaneEngine> make_engine(LaneMembers members) = 0;
  /// The point that the caller's device work has reached; an operation starts after it.
  [[nodiscard]] virtual std::shared_ptr<const void> mark() = 0;
  /// Another tensor with the same contents, filled when this returns. @error throws kOutOfMemory
  [[nodiscard]] virtual Tensor copy(const Tensor& tensor) = 0;
};

}  // namespace muster
