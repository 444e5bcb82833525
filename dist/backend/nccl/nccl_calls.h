#pragma once
/// One operation as calls of NCCL on a stream: which of its functions does what of ours.

#include "dist/group/backend.h"

struct ncclComm;
struct CUstream_st;

namespace muster::nccl {

/// Where the calls go.
struct CallPlace {
  ncclComm* communicator;
  CUstream_st* stream;
  int size;  ///< members of the communicator
  int own;   ///< this rank's place among them
};

/// Enqueues `request` and returns an ncclResult_t, which may be ncclInProgress. `peer` is the
/// place of its root or other side in the communicator. Nothing to move is nothing to enqueue.
[[nodiscard]] int enqueue(const CallPlace& place, const CollectiveRequest& request, int peer);

}  // namespace muster::nccl
