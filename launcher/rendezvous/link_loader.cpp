#include <dlfcn.h>
#include <unistd.h>

#include <array>

#include "core/base/file_system.h"
#include "launcher/rendezvous/link.h"

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
  OpenLinkFn open_link = nullptr;
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
  const auto open = reinterpret_cast<OpenLinkFn>(::dlsym(library, kOpenLinkSymbol));
  if (open == nullptr) {
    return make_error(ErrorCode::kNotFound, "rendezvous: {} must export {}; got {}", path,
                      kOpenLinkSymbol, ::dlerror());
  }
  return Library{open};
}
}  // namespace

Result<std::unique_ptr<Link>> open_link(const LinkOptions& options) {
  static Library library;
  if (library.open_link == nullptr) library = MUSTER_TRY(load_library());
  std::string error;
  bool is_taken = false;
  std::unique_ptr<Link> link(library.open_link(options, error, is_taken));
  if (link == nullptr) {
    return make_error(is_taken ? kAddressTaken : ErrorCode::kIo, "rendezvous: listen on {}: {}",
                      options.address, error);
  }
  return link;
}

}  // namespace muster
