// The entry of the shared library.
#include <grpc/support/log.h>

#include <cstdlib>

#include "launcher/rendezvous/grpc/grpc_client.h"
#include "launcher/rendezvous/grpc/grpc_server.h"

namespace muster {
namespace {
void drop(gpr_log_func_args* /*message*/) {}
}  // namespace

extern "C" __attribute__((visibility("default"))) Link* muster_open_link(const LinkOptions& options,
                                                                         std::string& error,
                                                                         bool& is_taken) {
  // gRPC writes an essay for each refused connection; what matters arrives as an event.
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function(drop);
  if (!options.is_server) return open_grpc_client(options.address).release();
  std::unique_ptr<Link> server = open_grpc_server(options.address);
  if (server == nullptr) {
    is_taken = true;
    error = "another process listens there";
  }
  return server.release();
}

}  // namespace muster
