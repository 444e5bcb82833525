#pragma once
/// A node's end: one stream to the host, as peer 1. Keeps trying until somebody answers.

#include <memory>
#include <string>

#include "launcher/rendezvous/link.h"

namespace muster {

std::unique_ptr<Link> open_grpc_client(const std::string& address);

}  // namespace muster
