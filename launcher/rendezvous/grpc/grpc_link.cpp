// The entry of the shared library.
#include <grpc/support/log.h>

#include <cstdlib>

#include "launcher/rendezvous/grpc/grpc_client.h"
#include "launcher/rendezvous/grpc/grpc_server.h"

namespace muster {
namespace {
void drop(gpr_log_func_args* /*message*/) {}

// gRPC writes an essay for each refused connection; what matters arrives as an event.
void silence() {
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function(drop);
}
}  // namespace

#define MUSTER_EXPORT extern "C" __attribute__((visibility("default")))

MUSTER_EXPORT Link* muster_open_client(const std::string& address) {
  silence();
  return open_grpc_client(address).release();
}

MUSTER_EXPORT ServerLink* muster_open_server() {
  silence();
  return open_grpc_server().release();
}

}  // namespace muster
