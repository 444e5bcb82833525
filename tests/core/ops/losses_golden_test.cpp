// Losses against PyTorch: values, gradients, refusals.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/ops/op_registry.h"
#include "core/ops/ops.h"
#include "tests/support/golden_case.h"
#include "tests/support/golden_close.h"

namespace muster::testing {
namespace {
using nlohmann::json;

Tensor optional_tensor(const GoldenFile& file, const json& kwargs, const char* name) {
  return kwargs.contains(name) && !kwargs[name].is_null() ? file.tensor(kwargs[name]) : Tensor();
}

// The call by name: losses take the reduction as text.
Tensor run(const GoldenFile& file, const json& c, const std::vector<Tensor>& in) {
  const std::string name = c["op"];
  const json& kw = c["kwargs"];
  const std::string reduction = kw.value("reduction", "mean");
  const Tensor weight = optional_tensor(file, kw, "weight");
  const Op& op = ops::find_op(name);
  const int64_t ignore = kw.value("ignore_index", int64_t{-100});
  if (name == "cross_entropy") {
    return call_one(op, in[0], in[1], weight, ignore, kw.value("label_smoothing", 0.0),
                    std::string_view(reduction));
  }
  if (name == "nll_loss") {
    return call_one(op, in[0], in[1], weight, ignore, std::string_view(reduction));
  }
  if (name == "binary_cross_entropy") {
    return call_one(op, in[0], in[1], weight, std::string_view(reduction));
  }
  if (name == "binary_cross_entropy_with_logits") {
    return call_one(op, in[0], in[1], weight, optional_tensor(file, kw, "pos_weight"),
                    std::string_view(reduction));
  }
  if (name == "smooth_l1_loss") {
    return call_one(op, in[0], in[1], std::string_view(reduction), kw.value("beta", 1.0));
  }
  if (name == "huber_loss") {
    return call_one(op, in[0], in[1], std::string_view(reduction), kw.value("delta", 1.0), weight);
  }
  if (name == "kl_div") {
    return call_one(op, in[0], in[1], std::string_view(reduction), kw.value("log_target", false));
  }
  return call_one(op, in[0], in[1], std::string_view(reduction), weight);
}

// Cases where we decided otherwise, and why.
const std::map<std::string, std::string> kGradDeviations = {
    {"cross_entropy/nan_row_ignored", "an ignored row has gradient 0, whatever its logits"},
};

void check(const GoldenFile& file, const json& c) {
  const std::string id = c["id"];
  std::vector<Tensor> in = {file.tensor(c["args"][0]), file.tensor(c["args"][1])};
  std::vector<Tensor> leaves;
  const json grads = c.value("grads", json::object());
  for (const auto& [index, expected] : grads.items()) {
    leaves.push_back(requires_grad_(in.at(std::stoul(index))));
  }
  const Tensor out = run(file, c, in);
  const Tensor wanted = file.tensor(c["out"]);
  expect_close(out, wanted, out_tolerance(c, wanted.dtype()), id);
  if (leaves.empty() || kGradDeviations.contains(id.substr(0, id.find('/', id.find('/') + 1)))) {
    return;
  }
  const Tensor grad_out = file.tensor(c["grad_out"]);
  const std::vector<Tensor> got =
      grad(std::span<const Tensor>(&out, 1), leaves, std::span<const Tensor>(&grad_out, 1));
  size_t i = 0;
  for (const auto& [index, expected] : grads.items()) {
    const Tensor wanted_grad = file.tensor(expected);
    expect_close(got[i++], wanted_grad, grad_tolerance(c, wanted_grad.dtype(), index),
                 id + " grad " + index);
  }
}

class LossGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(LossGolden, EqualsPyTorch) {
  const GoldenFile& file = GoldenFile::load(std::string("losses/") + GetParam());
  int ran = 0;
  for (const json& c : file.cases()) {
    if (c.contains("error")) {
      const std::vector<Tensor> in = {file.tensor(c["args"][0]), file.tensor(c["args"][1])};
      EXPECT_THROW(run(file, c, in), Error) << c["id"] << ": " << c["error"]["fact"];
    } else {
      ASSERT_NO_THROW(check(file, c)) << c["id"];
    }
    ++ran;
  }
  EXPECT_GT(ran, 190);
}

INSTANTIATE_TEST_SUITE_P(Files, LossGolden, ::testing::Values("cross_entropy", "elementwise"),
                         [](const auto& name) { return std::string(name.param); });
}  // namespace
}  // namespace muster::testing
