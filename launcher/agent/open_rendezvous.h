#pragma once
/// Finding out who hosts the rendezvous, and connecting to it.
///
/// The agent that can listen at the endpoint hosts; every other one connects there. So the same
/// command line works on all nodes, and on one machine the first agent hosts.

#include <memory>
#include <string>

#include "core/base/result.h"
#include "launcher/agent/job.h"
#include "launcher/rendezvous/link.h"

namespace muster {

struct RendezvousLink {
  std::unique_ptr<Link> link;
  bool is_host = false;
  std::string address;  ///< where it is, for people and for the store: without the port
};

/// @error kNotFound no such host; kIo, kAddressTaken it must host and cannot listen there
Result<RendezvousLink> open_rendezvous(const JobSpec::Rendezvous& options);

}  // namespace muster
