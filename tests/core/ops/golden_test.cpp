// Every recorded call of PyTorch whose operator we have: values, layouts, dtypes, gradients, double
// backward, refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "tests/core/ops/golden_call.h"
#include "tests/support/golden_close.h"

namespace muster::testing {
namespace {
using nlohmann::json;

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::vector<Tensor> run(GoldenCall& call) {
  std::vector<Tensor> outs(call.op().num_outputs(call.args()));
  call.op().call(call.args(), outs);
  return outs;
}

// The expected tensors, flattened; a plain value stands alone.
std::vector<json> flattened(const json& value) {
  if (!value.is_array()) return {value};
  std::vector<json> out;
  for (const json& part : value) {
    for (json& leaf : flattened(part)) out.push_back(std::move(leaf));
  }
  return out;
}

std::string compare_layout(const json& c, const Tensor& out, const json& expected_strides) {
  const DimVector row_major = contiguous_strides(out.sizes());
  std::vector<int64_t> wanted(row_major.begin(), row_major.end());
  if (!expected_strides.is_null()) wanted = golden_ints(expected_strides);
  const std::vector<int64_t> actual(out.strides().begin(), out.strides().end());
  if (actual == wanted || c["ns"] == "linalg") return "";
  return fmt::format("strides {} against {}", to_string(out.strides()), to_string(Dims(wanted)));
}

std::string compare_outs(const GoldenFile& file, const json& c, const std::vector<Tensor>& outs) {
  const std::vector<json> expected = flattened(c["out"]);
  if (expected.size() != outs.size()) {
    return fmt::format("{} results against {}", outs.size(), expected.size());
  }
  const bool single = !c["out"].is_array();
  for (size_t i = 0; i < outs.size(); ++i) {
    if (!is_tensor_reference(expected[i])) continue;
    const Tensor wanted = file.tensor(expected[i]);
    const auto close = is_close(outs[i], wanted, out_tolerance(c, wanted.dtype()));
    if (!close) return fmt::format("out {}: {}", i, close.message());
    json strides = c.value("out_strides", json());
    if (!single && !strides.is_null()) strides = strides[i];
    const std::string layout = compare_layout(c, outs[i], strides);
    if (!layout.empty()) return fmt::format("out {}: {}", i, layout);
  }
  return "";
}

// Compares a gradient; a null stands for "none", for which zeros are as good.
std::string compare_grad(const GoldenFile& file, const json& c, const json& expected,
                         const Tensor& actual, const std::string& path) {
  if (expected.is_null()) {
    const bool none = !actual.defined() || !any(ne(actual, 0)).item_int();
    return none ? "" : fmt::format("{}: a gradient where there is none", path);
  }
  const Tensor wanted = file.tensor(expected);
  // No gradient is a gradient of zeros.
  if (!actual.defined() && !any(ne(wanted, 0)).item_int()) return "";
  const auto close = is_close(actual, wanted, grad_tolerance(c, wanted.dtype(), path));
  return close ? "" : fmt::format("grad {}: {}", path, close.message());
}

struct Backward {
  std::vector<Tensor> outputs;
  std::vector<Tensor> grad_outputs;
  std::vector<std::string> out_names;  // "grad_out", or "grad_out.0" ..
};

Backward backward_of(const GoldenFile& file, const json& c, const std::vector<Tensor>& outs,
                     bool second) {
  Backward b;
  const bool single = !c["out"].is_array();
  const std::vector<json> given =
      single ? std::vector<json>{c["grad_out"]} : flattened(c["grad_out"]);
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i].is_null() || !outs[i].requires_grad()) continue;
    b.outputs.push_back(outs[i]);
    Tensor grad_out = file.tensor(given[i]);
    if (second) requires_grad_(grad_out);
    b.grad_outputs.push_back(grad_out);
    b.out_names.push_back(outs.size() == 1 && single ? "grad_out" : fmt::format("grad_out.{}", i));
  }
  return b;
}

std::string check_second(const GoldenFile& file, const json& c,
                         const std::vector<std::string>& paths, const std::vector<Tensor>& leaves,
                         const std::vector<Tensor>& grads, const Backward& b) {
  Tensor loss;
  for (size_t i = 0; i < paths.size(); ++i) {
    if (!c["v"].contains(paths[i]) || c["v"][paths[i]].is_null() || !grads[i].defined()) continue;
    const Tensor term = sum(mul(grads[i], file.tensor(c["v"][paths[i]])));
    loss = loss.defined() ? add(loss, term) : term;
  }
  std::vector<Tensor> inputs = leaves;
  std::vector<std::string> names = paths;
  for (size_t i = 0; i < b.grad_outputs.size(); ++i) {
    inputs.push_back(b.grad_outputs[i]);
    names.push_back(b.out_names[i]);
  }
  std::vector<Tensor> second(inputs.size());
  if (loss.defined() && loss.requires_grad()) {
    second = grad(std::span<const Tensor>(&loss, 1), inputs, {}, {.allow_unused = true});
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (!c["grads2"].contains(names[i])) continue;
    const std::string fault = compare_grad(file, c, c["grads2"][names[i]], second[i], names[i]);
    if (!fault.empty()) return "second " + fault;
  }
  return "";
}

std::string check_grads(const GoldenFile& file, const json& c,
                        const std::vector<std::string>& paths, const std::vector<Tensor>& leaves,
                        const std::vector<Tensor>& outs) {
  const bool second = c.contains("grads2");
  const Backward b = backward_of(file, c, outs, second);
  std::vector<Tensor> grads(leaves.size());
  if (!b.outputs.empty()) {
    grads = grad(b.outputs, leaves, b.grad_outputs, {.create_graph = second, .allow_unused = true});
  }
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string fault = compare_grad(file, c, c["grads"][paths[i]], grads[i], paths[i]);
    if (!fault.empty()) return fault;
  }
  return second ? check_second(file, c, paths, leaves, grads, b) : "";
}

std::string check_refusal(const json& c, GoldenCall& call) {
  try {
    run(call);
  } catch (const Error& error) {
    const std::string message = lower(error.what());
    for (const json& name : c["error"]["names"]) {
      if (message.find(lower(name.get<std::string>())) == std::string::npos) {
        return fmt::format("the message lacks \"{}\": {}", name.get<std::string>(), message);
      }
    }
    return "";
  }
  return "not refused: " + c["error"]["fact"].get<std::string>();
}

// "" or what differs.
std::string replay(const GoldenFile& file, const json& c, GoldenCall& call) {
  if (c.contains("error")) return check_refusal(c, call);
  std::vector<std::string> paths;
  std::vector<Tensor> leaves;
  if (c.contains("grads")) {
    for (const auto& [path, expected] : c["grads"].items()) {
      Tensor& argument = call.tensor_at(path);
      leaves.push_back(requires_grad_(argument));
      paths.push_back(path);
      // An in-place call needs a non-leaf of the same layout.
      if (call.op().writes_self() && path == "0") argument = clone(argument);
    }
  }
  const std::vector<Tensor> outs = run(call);
  const std::string fault = compare_outs(file, c, outs);
  if (!fault.empty() || paths.empty()) return fault;
  return check_grads(file, c, paths, leaves, outs);
}

// Where we differ on purpose; docs/deviations.md says more.
const std::map<std::string, std::string> kDeviations = {
    {"matmul.b1x3x4_0x4x2", "the layout of an empty product is row-major"},
    {"linear.w1d", "a weight without output dim is refused"},
    {"var.dim_empty", "PyTorch's gradient for dim=[] divides by the wrong count"},
    {"std.dim_empty", "PyTorch's gradient for dim=[] divides by the wrong count"},
    {"sigmoid.special.f32", "PyTorch's vector code gives 0 for a subnormal result"},
};

class GoldenOps : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenOps, EqualPyTorch) {
  const GoldenFile& file = GoldenFile::load(std::string("ops/") + GetParam());
  std::map<std::string, int> absent;
  int ran = 0, failed = 0, deviating = 0;
  for (const json& c : file.cases()) {
    std::optional<GoldenCall> call = GoldenCall::make(file, c);
    if (!call) {
      ++absent[golden_op_name(c)];
      continue;
    }
    ++ran;
    std::string fault;
    try {
      fault = replay(file, c, *call);
    } catch (const std::exception& error) {
      fault = std::string("raised ") + error.what();
    }
    if (fault.empty()) continue;
    if (kDeviations.contains(c["id"].get<std::string>())) {
      ++deviating;
      continue;
    }
    ++failed;
    ADD_FAILURE() << c["id"].get<std::string>() << ": " << fault;
  }
  std::string skipped;
  int skipped_count = 0;
  for (const auto& [name, count] : absent) {
    skipped += fmt::format(" {}({})", name, count);
    skipped_count += count;
  }
  fmt::print("golden {}: {} ran, {} differ, {} differ on purpose, {} skipped:{}\n", GetParam(), ran,
             failed, deviating, skipped_count, skipped);
  EXPECT_GT(ran, 0);
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenOps,
                         ::testing::Values("unary", "activation", "binary", "reduce", "shape",
                                           "create", "index", "linalg", "norm"),
                         [](const auto& name) { return std::string(name.param); });
}  // namespace
}  // namespace muster::testing
