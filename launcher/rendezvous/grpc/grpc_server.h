#pragma once
/// The host's end: a gRPC server on the connections that it is given, each stream a peer.
///
/// Bounded in messages, streams and idle connections, so that whoever gets in can at most take a
/// little memory for a while. How many get in is the Doorman's business, who a peer is the agent's.

#include <memory>

#include "launcher/rendezvous/link.h"

namespace muster {

/// Null when it cannot be started.
std::unique_ptr<ServerLink> open_grpc_server();

}  // namespace muster
