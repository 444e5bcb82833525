#pragma once
/// The host's end: a gRPC server on one address, each stream a peer.
///
/// Closed to what is not gRPC by gRPC itself; bounded in messages, streams and idle connections, so
/// that whoever connects can at most take a little memory for a while. Who a peer is the agent
/// asks.

#include <memory>
#include <string>

#include "launcher/rendezvous/link.h"

namespace muster {

/// Null when it cannot listen there.
std::unique_ptr<Link> open_grpc_server(const std::string& address);

}  // namespace muster
