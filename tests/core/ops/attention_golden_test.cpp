// Attention against PyTorch: every recorded case on every kernel that takes it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "tests/support/golden_case.h"
#include "tests/support/golden_close.h"

namespace muster::testing {
namespace {
using nlohmann::json;

struct Call {
  std::vector<Tensor> operands;  // q, k, v, and the mask if there is one
  SdpaOptions options;
};

Call call_of(const GoldenFile& file, const json& c) {
  const json& args = c["args"];
  Call call;
  for (size_t i = 0; i < 3; ++i) call.operands.push_back(file.tensor(args[i]));
  if (args.size() > 3 && !args[3].is_null()) {
    call.operands.push_back(file.tensor(args[3]));
    call.options.attn_mask = call.operands[3];
  }
  if (args.size() > 4) call.options.dropout_p = args[4].get<double>();
  if (args.size() > 5 && args[5].get<bool>()) call.options.causal = CausalAlignment::kUpperLeft;
  if (c.contains("bias")) {
    call.options.causal = c["bias"]["kind"] == "causal_lower_right" ? CausalAlignment::kLowerRight
                                                                    : CausalAlignment::kUpperLeft;
  }
  const json& kwargs = c["kwargs"];
  if (kwargs.contains("scale") && !kwargs["scale"].is_null()) {
    call.options.scale = kwargs["scale"].get<double>();
  }
  call.options.enable_gqa = kwargs.value("enable_gqa", false);
  return call;
}

void check(const GoldenFile& file, const json& c, SdpaKernel kernel) {
  Call call = call_of(file, c);
  std::vector<Tensor> leaves;
  const json grads = c.value("grads", json::object());
  for (const auto& [index, expected] : grads.items()) {
    leaves.push_back(requires_grad_(call.operands[std::stoul(index)]));
  }
  const std::string what = c["id"].get<std::string>() + " " + std::string(to_string(kernel));
  const SdpaResult result = scaled_dot_product_attention_lse(call.operands[0], call.operands[1],
                                                             call.operands[2], call.options);
  const Tensor wanted = file.tensor(c["out"]["out"]);
  expect_close(result.out, wanted, out_tolerance(c, wanted.dtype()), what + " out");
  if (c["out"].contains("lse")) {
    const Tensor lse = file.tensor(c["out"]["lse"]);
    GoldenTolerance tolerance = out_tolerance(c, lse.dtype());
    expect_close(to(result.lse, lse.dtype()), lse, tolerance, what + " lse");
  }
  if (leaves.empty()) return;
  const Tensor grad_out = file.tensor(c["grad_out"]);
  const std::vector<Tensor> got =
      grad(std::span<const Tensor>(&result.out, 1), leaves, std::span<const Tensor>(&grad_out, 1));
  size_t i = 0;
  for (const auto& [index, expected] : grads.items()) {
    const Tensor wanted_grad = file.tensor(expected);
    expect_close(got[i++], wanted_grad, grad_tolerance(c, wanted_grad.dtype(), index),
                 what + " grad " + index);
  }
}

TEST(SdpaGolden, EveryKernelEqualsPyTorch) {
  const GoldenFile& file = GoldenFile::load("attention/sdpa");
  int ran[kNumSdpaKernels] = {0, 0};
  for (const json& c : file.cases()) {
    if (c.contains("error")) continue;
    for (const SdpaKernel kernel : {SdpaKernel::kFlash, SdpaKernel::kMath}) {
      const SdpaKernelGuard only({kernel});
      Call call = call_of(file, c);
      if (c.contains("grads") && c["grads"].contains("3")) requires_grad_(call.operands[3]);
      const SdpaChoice choice =
          sdpa_explain(call.operands[0], call.operands[1], call.operands[2], call.options);
      if (!choice.kernel) {
        EXPECT_EQ(kernel, SdpaKernel::kFlash) << choice.describe();
        continue;
      }
      ++ran[static_cast<int>(kernel)];
      check(file, c, kernel);
    }
  }
  EXPECT_GT(ran[0], 70);
  EXPECT_GT(ran[1], 200);
}

TEST(SdpaGolden, RefusesWhatPyTorchRefuses) {
  const GoldenFile& file = GoldenFile::load("attention/sdpa");
  int refused = 0;
  for (const json& c : file.cases()) {
    if (!c.contains("error")) continue;
    const Call call = call_of(file, c);
    ++refused;
    EXPECT_THROW(scaled_dot_product_attention(call.operands[0], call.operands[1], call.operands[2],
                                              call.options),
                 Error)
        << c["id"] << ": " << c["error"]["fact"];
  }
  EXPECT_GT(refused, 12);
}
}  // namespace
}  // namespace muster::testing
