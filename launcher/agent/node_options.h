#pragma once
/// What this node says of itself to the others of its job.

#include "launcher/agent/job.h"
#include "launcher/rendezvous/messages.h"

namespace muster {

/// How often each side says that it lives while a lease runs.
inline constexpr int kBeatsPerLease = 5;

/// The options of this node; its name is the host's name and the pid of the calling process.
NodeOptions node_options(const JobSpec& spec);

/// The place of a node that is alone.
NodePlace single_node_place(int local_world_size);

}  // namespace muster
