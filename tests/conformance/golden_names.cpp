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

// split takes a size or a list of sizes; tensor_split a number of pieces or where to cut.
Rewrite by_list(const char* with_number, const char* with_list) {
  return [=](GoldenCall& call) {
    call.op = call.args.size() > 1 && call.args[1].is_array() ? with_list : with_number;
  };
}

// F.embedding(indices, weight) is embedding(weight, indices), where a negative padding row counts
// from the end; in embedding itself -1 means none.
void embedding(GoldenCall& call) {
  call.op = "embedding";
  std::swap(call.args[0], call.args[1]);
  const auto padding = call.kwargs.find("padding_idx");
  if (padding == call.kwargs.end() || padding->is_null() || *padding >= 0) return;
  const int64_t rows = call.tensors.at(call.args[0]["path"].get<std::string>()).size(0);
  *padding = padding->get<int64_t>() + rows;
}

// arange(end) starts at 0.
void arange(GoldenCall& call) {
  call.op = "arange";
  if (call.args.size() == 1) call.args.insert(call.args.begin(), 0);
}

// var(x, False): a lone bool says whether to correct by 1.
Rewrite spread(const char* name) {
  return [name](GoldenCall& call) {
    call.op = name;
    if (call.args.size() != 2 || !call.args[1].is_boolean()) return;
    call.kwargs["correction"] = call.args[1].get<bool>() ? 1 : 0;
    call.args.erase(1);
  };
}

void norm(GoldenCall& call) {
  call.op = "norm";
  const Json* const p = call.find(1, "p");
  if (p == nullptr || *p != "fro") return;
  if (call.args.size() > 1) call.args[1] = 2;
  if (call.args.size() <= 1) call.kwargs["p"] = 2;
}

void view_by_kind(GoldenCall& call) {
  call.op = call.kwargs.contains("dtype") ? "view_dtype" : "view";
}

// where(condition) alone is nonzero(condition, as_tuple=True).
void where(GoldenCall& call) { call.op = call.args.size() == 1 ? "where_indices" : "where"; }

const std::map<std::string, Rewrite>& rewrites() {
  static const std::map<std::string, Rewrite> table = {
      {"torch.max", extreme("max", "max_dim", "maximum")},
      {"torch.min", extreme("min", "min_dim", "minimum")},
      {"torch.clone", clone_by_format},
      {"Tensor.clone", clone_by_format},
      {"Tensor.contiguous", contiguous_by_format},
      {"torch.split", by_list("split", "split_with_sizes")},
      {"torch.tensor_split", by_list("tensor_split", "tensor_split_at")},
      {"Tensor.split", by_list("split", "split_with_sizes")},
      {"F.embedding", embedding},
      {"torch.arange", arange},
      {"torch.var", spread("var")},
      {"torch.std", spread("std")},
      {"torch.norm", norm},
      {"torch.where", where},
      {"Tensor.view", view_by_kind},
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
