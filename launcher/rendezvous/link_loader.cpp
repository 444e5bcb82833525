#include <dlfcn.h>
#include <unistd.h>

#include <array>

#include "core/base/file_system.h"
#include "dist/net/sockets.h"
#include "launcher/rendezvous/doorman.h"

namespace muster {
namespace {
constexpr const char* kLibrary = "muster-rendezvous.so";

std::string own_folder() {
  std::array<char, 4096> buffer;
  const ssize_t length = ::readlink("/proc/self/exe", buffer.data(), buffer.size());
  if (length <= 0) return ".";
  return path_parent(std::string(buffer.data(), static_cast<size_t>(length)));
}

struct Library {
  OpenClientFn open_client = nullptr;
  OpenServerFn open_server = nullptr;
};

// Never unloaded: its threads and its static objects may outlive any one link.
Result<Library> load_library() {
  const std::string path = path_join(own_folder(), kLibrary);
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return make_error(ErrorCode::kNotFound,
                      "rendezvous: {} must lie beside this program and load; got {}", path,
                      ::dlerror());
  }
  const auto client = reinterpret_cast<OpenClientFn>(::dlsym(library, kOpenClientSymbol));
  const auto server = reinterpret_cast<OpenServerFn>(::dlsym(library, kOpenServerSymbol));
  if (client == nullptr || server == nullptr) {
    return make_error(ErrorCode::kNotFound, "rendezvous: {} must export {} and {}; got {}", path,
                      kOpenClientSymbol, kOpenServerSymbol, ::dlerror());
  }
  return Library{client, server};
}

Result<net::UniqueFd> listen_at(const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  Result<net::UniqueFd> listener = net::listen_on(host, std::stoi(address.substr(colon + 1)));
  if (listener.ok()) return listener;
  return make_error(kAddressTaken, "rendezvous: {}", listener.error().message());
}
}  // namespace

Result<std::unique_ptr<Link>> open_link(const LinkOptions& options) {
  static Library library;
  if (library.open_client == nullptr) library = MUSTER_TRY(load_library());
  if (!options.is_server) return std::unique_ptr<Link>(library.open_client(options.address));
  // First, so that of several agents on one machine only the host starts a server.
  net::UniqueFd listener = MUSTER_TRY(listen_at(options.address));
  std::unique_ptr<ServerLink> server(library.open_server());
  if (server == nullptr) return make_error(ErrorCode::kIo, "rendezvous: gRPC must start a server");
  return std::unique_ptr<Link>(
      MUSTER_TRY(Doorman::open(std::move(listener), std::move(server), DoormanLimits::fitting())));
}

}  // namespace muster
