// How PyTorch spells the calls of the golden files, where that is not muster's spelling.
#include <functional>

#include "tests/conformance/golden_call.h"

namespace muster::testing {
namespace {
using Json = nlohmann::json;
using Rewrite = std::function<void(GoldenCall& call)>;

bool is_tensor(const Json* value) { return value != nullptr && value->is_object(); }

Rewrite named(const char* name) {
  return [name](GoldenCall& call) { call.op = name; };
}

// max(x), max(x, dim, keepdim) and max(x, y) are three operators.
Rewrite extreme(const char* all, const char* along, const char* pair) {
  return [=](GoldenCall& call) {
    const Json* const second = call.find(1, "dim");
    call.op = second == nullptr ? all : is_tensor(second) ? pair : along;
  };
}

void clone_by_format(GoldenCall& call) {
  const auto format = call.kwargs.find("memory_format");
  const bool row_major = format != call.kwargs.end() && *format == "contiguous_format";
  call.op = row_major ? "clone_contiguous" : "clone";
  if (row_major || (format != call.kwargs.end() && *format == "preserve_format")) {
    call.drop("memory_format");
  }
}

void contiguous_by_format(GoldenCall& call) {
  call.op = "contiguous";
  const auto format = call.kwargs.find("memory_format");
  if (format != call.kwargs.end() && *format == "contiguous_format") call.drop("memory_format");
}

const std::map<std::string, Rewrite>& rewrites() {
  static const std::map<std::string, Rewrite> table = {
      {"torch.max", extreme("max", "max_dim", "maximum")},
      {"torch.min", extreme("min", "min_dim", "minimum")},
      {"torch.clone", clone_by_format},
      {"Tensor.clone", clone_by_format},
      {"Tensor.contiguous", contiguous_by_format},
      {"linalg.vector_norm", named("vector_norm")},
  };
  return table;
}
}  // namespace

void to_muster(GoldenCall& call) {
  const auto rewrite = rewrites().find(call.op);
  if (rewrite != rewrites().end()) return rewrite->second(call);
  call.op = call.op.substr(call.op.find('.') + 1);
}
}  // namespace muster::testing
