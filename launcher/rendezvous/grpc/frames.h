#pragma once
/// Between the plain messages and their form on the wire. Total in both directions: a frame that
/// holds nothing known gives nothing.

#include <optional>

#include "launcher/rendezvous/messages.h"
#include "rendezvous.pb.h"

namespace muster {

wire::Frame to_frame(const Message& message);
std::optional<Message> from_frame(const wire::Frame& frame);

}  // namespace muster
