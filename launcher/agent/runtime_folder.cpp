#include "launcher/agent/runtime_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "core/base/file_system.h"

namespace muster {

Result<std::string> runtime_folder(std::string_view xdg_runtime_dir) {
  const std::string folder = xdg_runtime_dir.empty()
                                 ? fmt::format("/tmp/muster-{}", ::getuid())
                                 : path_join(std::string(xdg_runtime_dir), "muster");
  ::mkdir(folder.c_str(), 0700);
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() ||
      (info.st_mode & 077) != 0) {
    return make_error(ErrorCode::kIo, "{}: must be a folder of this user that nobody else can read",
                      folder);
  }
  return folder;
}

Result<std::string> runtime_folder() {
  const char* base = std::getenv("XDG_RUNTIME_DIR");
  return runtime_folder(base == nullptr ? "" : base);
}

}  // namespace muster
