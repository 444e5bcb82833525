#include "dist/backends/backends.h"

#include <fmt/format.h>

#include "dist/backends/openers.h"

namespace muster {
namespace {
struct Entry {
  std::string_view name;
  std::string_view left_out;
  backends::Opened (*open)(BackendOptions, Deadline);
};

// An optional backend's opener exists only where its package was found.
#ifndef MUSTER_WITH_GLOO
constexpr auto open_gloo = nullptr;
#else
constexpr auto open_gloo = backends::open_gloo;
#endif
#ifndef MUSTER_WITH_NCCL
constexpr auto open_nccl = nullptr;
#else
constexpr auto open_nccl = backends::open_nccl;
#endif
constexpr auto open_shm = backends::open_shm;
constexpr auto open_fake = backends::open_fake;

constexpr Entry kBackends[] = {
#define MUSTER_BACKEND(name, left_out) {#name, left_out, open_##name},
#include "dist/backends/backends.inc"
#undef MUSTER_BACKEND
};
}  // namespace

Result<std::unique_ptr<Backend>> open_backend(std::string_view name, BackendOptions options,
                                              Deadline deadline) {
  for (const Entry& entry : kBackends) {
    if (entry.name != name) continue;
    if (entry.open == nullptr) {
      return make_error(ErrorCode::kUnimplemented, "backend {}: this build has left it out; {}",
                        name, entry.left_out);
    }
    return entry.open(std::move(options), deadline);
  }
  return make_error(ErrorCode::kInvalidArgument, "backend: the name must be one of {}; got \"{}\"",
                    fmt::join(backend_names(), ", "), name);
}

std::string_view why_left_out(std::string_view name) {
  for (const Entry& entry : kBackends) {
    if (entry.name == name && entry.open == nullptr) return entry.left_out;
  }
  return "";
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kBackends) names.emplace_back(entry.name);
  return names;
}
}  // namespace muster
