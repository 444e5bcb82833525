#pragma once
/// Backends by name: the one place that knows them all.
///
/// Which are built in depends on the packages that were found; one that is left out is refused by
/// name, with what would bring it back.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dist/group/backend.h"
#include "dist/store/store.h"

namespace muster {

struct BackendOptions {
  std::shared_ptr<Store> store;
  int global_rank = 0;
  int world_size = 1;
  /// Where rank 0's host is reached; a backend over the network binds the address that leads there.
  /// Loopback when empty.
  std::string master_addr;
  int local_rank = 0;  ///< of the ranks on this host; chooses the device where there are any
};

/// The world of a job over the backend `name`. @collective all ranks
/// @error kInvalidArgument no such name; kUnimplemented this build has left it out;
/// kFailedPrecondition the machine lacks what it needs; kTimeout, kPeerLost
Result<std::unique_ptr<Backend>> open_backend(std::string_view name, BackendOptions options,
                                              Deadline deadline);

/// Why this build has no such backend, with what would bring it back; "" where it has one, or where
/// there is no such name.
std::string_view why_left_out(std::string_view name);

/// Names that open_backend() knows, those that are left out included.
std::vector<std::string> backend_names();

}  // namespace muster
