#pragma once
/// One function for each line of backends.inc.

#include "dist/backends/backends.h"

namespace muster::backends {

using Opened = Result<std::unique_ptr<Backend>>;

#define MUSTER_BACKEND(name, left_out) \
  Opened open_##name(BackendOptions options, Deadline deadline);
#include "dist/backends/backends.inc"
#undef MUSTER_BACKEND

}  // namespace muster::backends
