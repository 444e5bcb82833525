#ifdef MUSTER_WITH_GLOO
#include <sys/socket.h>

#include <cerrno>

#include "dist/backend/gloo/gloo_backend.h"
#include "dist/backends/openers.h"
#include "dist/net/sockets.h"

namespace muster::backends {
namespace {
// The address of this host that leads to `host`; no packet is sent to find it.
Result<std::string> address_towards(const std::string& host, Deadline deadline) {
  const net::SocketAddress there = MUSTER_TRY(net::resolve(host, 9, deadline)).front();
  const net::UniqueFd fd(::socket(there.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto* raw = reinterpret_cast<const sockaddr*>(&there.storage);
  if (!fd || ::connect(fd.get(), raw, there.nbytes) != 0) {
    return make_error(ErrorCode::kIo, "gloo: no way from here to {}: {}", host, errno_text(errno));
  }
  return net::address_text(MUSTER_TRY(net::local_address(fd.get())));
}
}  // namespace

Opened open_gloo(BackendOptions options, Deadline deadline) {
  wire::MeshOptions mesh;
  mesh.store = std::move(options.store);
  mesh.global_rank = options.global_rank;
  mesh.world_size = options.world_size;
  if (!options.master_addr.empty())
    mesh.address = MUSTER_TRY(address_towards(options.master_addr, deadline));
  return std::unique_ptr<Backend>(MUSTER_TRY(GlooBackend::open_world(std::move(mesh), deadline)));
}
}  // namespace muster::backends
#endif
