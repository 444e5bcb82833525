// GradScaler against PyTorch's transcripts.
#include "core/nn/optim/grad_scaler.h"

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/nn/optim/clip_grad.h"
#include "core/ops/ops.h"
#include "tests/support/golden_case.h"
#include "tests/support/golden_close.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::muster::testing::golden_number;
using ::muster::testing::GoldenFile;
using ::muster::testing::is_close;
using nlohmann::json;
using ::testing::HasSubstr;

const GoldenFile& file() { return GoldenFile::load("amp/grad_scaler"); }

GradScalerOptions options_of(const json& kwargs) {
  GradScalerOptions options;
  options.init_scale = kwargs.value("init_scale", options.init_scale);
  options.growth_factor = kwargs.value("growth_factor", options.growth_factor);
  options.backoff_factor = kwargs.value("backoff_factor", options.backoff_factor);
  options.growth_interval = kwargs.value("growth_interval", options.growth_interval);
  return options;
}

Tensor leaf(const json& values) {
  std::vector<float> numbers;
  for (const json& value : values) numbers.push_back(static_cast<float>(golden_number(value)));
  return requires_grad_(
      from_span(std::span<const float>(numbers), {static_cast<int64_t>(numbers.size())}));
}

// A gradient as a scaled loss would give it.
Tensor scaled_gradient(GradScaler& scaler, const Tensor& gradient) {
  return mul(gradient, scaler.scale(ones({})));
}

void expect_state(const GradScaler& scaler, const json& wanted) {
  EXPECT_EQ(scaler.scale_value(), golden_number(wanted["scale"]));
  EXPECT_EQ(scaler.state().clean_steps, wanted["tracker"]);
}

void replay(const json& entry) {
  GradScaler scaler(options_of(entry["kwargs"]));
  EXPECT_EQ(scaler.scale_value(), entry["scale_before_first_use"]);
  const Tensor p = leaf(entry["param"]), gradients = file().tensor(entry["true_grads"]);
  Sgd optimizer({{"p", p}}, {.lr = entry["lr"]});
  constexpr float kBad[] = {INFINITY, -INFINITY, NAN};
  for (size_t i = 0; i < entry["steps"].size(); ++i) {
    const json& step = entry["steps"][i];
    const auto row = static_cast<int64_t>(i);
    const Tensor grad = clone(scaled_gradient(scaler, select(gradients, 0, row)));
    if (entry["found_inf"][i] != 0) grad.data<float>()[i % 2] = kBad[i % 3];
    set_grad(p, grad);
    EXPECT_EQ(scaler.step(optimizer), step["stepped"]) << "step " << i;
    scaler.update();
    expect_state(scaler, step);
    for (size_t k = 0; k < 2; ++k) {
      const double wanted = golden_number(step["param"][k]), got = p.data<float>()[k];
      const bool both_nan = std::isnan(wanted) && std::isnan(got);
      EXPECT_TRUE(both_nan || got == wanted) << "step " << i << ": " << got << " for " << wanted;
    }
    if (i == 16) {
      EXPECT_EQ(scaler.state().clean_steps, entry["state_dict_after_17"]["_growth_tracker"]);
    }
  }
}

TEST(GradScaler, ReplaysPyTorchsTranscripts) {
  int replayed = 0;
  for (const json& entry : file().cases()) {
    if (entry["op"] != "grad_scaler") continue;
    SCOPED_TRACE(entry["id"].get<std::string>());
    replay(entry);
    ++replayed;
  }
  EXPECT_EQ(replayed, 17);
}

TEST(GradScaler, TheRuleOfTheScaleIsPyTorchs) {
  for (const json& entry : file().cases()) {
    if (entry["op"] != "amp_update_scale") continue;
    SCOPED_TRACE(entry["id"].get<std::string>());
    const json& args = entry["args"];
    const double found = file().tensor(args[2]).item();
    const GradScalerState after =
        updated_scale({static_cast<float>(file().tensor(args[0]).item()), args[3], args[4], args[5],
                       file().tensor(args[1]).item_int()},
                      found != 0.0);
    EXPECT_EQ(after.scale, static_cast<float>(file().tensor(entry["out"]["scale"]).item()));
    EXPECT_EQ(after.clean_steps, file().tensor(entry["out"]["tracker"]).item_int());
  }
}

TEST(GradScaler, UnscalesInEveryDtypeAndLooksForInfinitiesFirst) {
  for (const json& entry : file().cases()) {
    if (entry["op"] != "amp_unscale" || entry["dtype"] == "f16") continue;
    SCOPED_TRACE(entry["id"].get<std::string>());
    std::vector<NamedTensor> parameters;
    for (const json& grad : entry["args"][0]) {
      const Tensor value = file().tensor(grad);
      const Tensor p = requires_grad_(zeros_like(value));
      set_grad(p, value);
      parameters.push_back({"p" + std::to_string(parameters.size()), p});
    }
    Sgd optimizer(parameters, {.lr = 0.0});
    GradScaler scaler({.init_scale = 1.0 / entry["args"][1].get<double>()});
    scaler.scale(ones({}));
    const double before = scaler.scale_value();
    scaler.unscale_(optimizer);
    scaler.update();
    EXPECT_EQ(scaler.scale_value() < before,
              file().tensor(entry["out"]["found_inf"]).item() != 0.0);
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(is_close(grad_of(parameters[i].tensor), file().tensor(entry["out"]["grads"][i])));
    }
  }
}

TEST(GradScaler, OneBadOptimizerSkipsAloneAndTheScaleBacksOffOnce) {
  const json& entry = file().find("two_optimizers");
  GradScaler scaler(options_of(entry["kwargs"]));
  const Tensor p = leaf({1.0, 1.0}), q = leaf({1.0, 1.0});
  Sgd first({{"p", p}}, {.lr = entry["lr"]}), second({{"q", q}}, {.lr = entry["lr"]});
  for (size_t i = 0; i < entry["out"].size(); ++i) {
    set_grad(p, scaled_gradient(scaler, ones({2})));
    set_grad(q, scaled_gradient(scaler, ones({2})));
    if (i == 1) grad_of(q).data<float>()[0] = INFINITY;
    EXPECT_TRUE(scaler.step(first));
    EXPECT_EQ(scaler.step(second), i != 1);
    scaler.update();
    expect_state(scaler, entry["out"][i]);
    EXPECT_TRUE(is_close(detach(p), file().tensor(entry["out"][i]["params"][0])));
    EXPECT_TRUE(is_close(detach(q), file().tensor(entry["out"][i]["params"][1])));
  }
}

TEST(GradScaler, UnscaledGradientsCanBeClippedBeforeTheStep) {
  const json& entry = file().find("unscale_clip_step");
  GradScaler scaler(options_of(entry["kwargs"]));
  const Tensor p = leaf(entry["param"]);
  Sgd optimizer({{"p", p}}, {.lr = entry["lr"]});
  set_grad(p, scaled_gradient(scaler, detach(leaf(entry["true_grad"]))));
  scaler.unscale_(optimizer);
  EXPECT_TRUE(equal(grad_of(p), file().tensor(entry["out"]["unscaled"])));
  EXPECT_EQ(clip_grad_norm_(std::span(&p, 1), entry["max_norm"]),
            file().tensor(entry["out"]["norm"]).item());
  EXPECT_TRUE(scaler.step(optimizer));
  scaler.update();
  EXPECT_TRUE(is_close(detach(p), file().tensor(entry["out"]["param"])));
  expect_state(scaler, entry["out"]);
}

TEST(GradScaler, AdamWKeepsItsStateWhenAStepIsSkipped) {
  for (const bool bad : {false, true}) {
    const json& entry = file().find(bad ? "fused_adamw/inf" : "fused_adamw/clean");
    GradScaler scaler(options_of(entry["kwargs"]));
    const Tensor p = leaf(entry["param"]);
    AdamW optimizer({{"p", p}}, {.lr = entry["lr"]});
    set_grad(p, scaled_gradient(scaler, detach(leaf(entry["true_grad"]))));
    EXPECT_EQ(scaler.step(optimizer), !bad);
    scaler.update();
    EXPECT_TRUE(is_close(detach(p), file().tensor(entry["out"]["param"])));
    expect_state(scaler, entry["out"]);
    EXPECT_EQ(optimizer.state().size(), bad ? 0u : 1u);
  }
}

TEST(GradScaler, UpdateMaySetTheScaleAndStateIsLoadedBeforeTheFirstUse) {
  const json& wanted = file().find("set_scale")["out"];
  GradScaler scaler({.init_scale = 16.0});
  scaler.scale(ones({}));
  scaler.update(4.0);
  expect_state(scaler, wanted["after_update_4"]);
  scaler.update(2.0);
  expect_state(scaler, wanted["after_update_tensor_2"]);
  GradScaler loaded;
  loaded.load_state({3.0f, 4.0, 0.25, 7, 5});
  EXPECT_EQ(loaded.scale_value(), wanted["loaded_scale"]);
  EXPECT_EQ(loaded.state().clean_steps, 5);
  const Tensor loss = ones({});
  GradScaler off({.enabled = false});
  EXPECT_EQ(off.scale_value(), wanted["disabled_scale"]);
  EXPECT_TRUE(off.scale(loss).is_same(loss));
}

// The calls of a case in order; the last one must be refused.
void run_calls(const json& calls) {
  if (calls[0].is_object()) return static_cast<void>(GradScaler(options_of(calls[0])));
  GradScaler scaler;
  const Tensor p = leaf({1.0});
  Sgd optimizer({{"p", p}}, {.lr = 0.1});
  for (const std::string call : calls) {
    if (call == "grad") set_grad(p, scaled_gradient(scaler, ones({1})));
    if (call == "scale") scaler.scale(ones({}));
    if (call == "unscale_") scaler.unscale_(optimizer);
    if (call == "step") scaler.step(optimizer);
    if (call == "update") scaler.update();
    if (call == "f16_grad") {
      const Tensor half = requires_grad_(to(ones({1}), DType::kF16));
      set_grad(half, to(ones({1}), DType::kF16));
      optimizer.set_parameter("p", half);
    }
  }
}

TEST(GradScaler, RefusesCallsInTheWrongOrder) {
  int refused = 0;
  for (const json& entry : file().cases()) {
    const std::string id = entry["id"];
    // There are no closures here, and a state is a struct, never empty.
    if (entry["op"] != "grad_scaler_error" || id == "error/closure" || id == "error/load_empty")
      continue;
    SCOPED_TRACE(id);
    EXPECT_THROW(run_calls(entry["calls"]), Error);
    ++refused;
  }
  EXPECT_EQ(refused, 12);
  EXPECT_ERROR(run_calls({"grad", "unscale_", "unscale_"}), ErrorCode::kFailedPrecondition,
               HasSubstr("already called on this optimizer"));
  EXPECT_ERROR(run_calls({"grad", "update"}), ErrorCode::kFailedPrecondition,
               HasSubstr("no inf checks were recorded"));
}

// An infinity on another rank makes this one skip too.
TEST(GradScaler, RanksAgreeBeforeTheyStep) {
  GradScaler scaler;
  bool asked_with = true;
  scaler.set_agreement([&](bool found) {
    asked_with = found;
    return true;
  });
  const Tensor p = leaf({1.0});
  Sgd optimizer({{"p", p}}, {.lr = 0.1});
  set_grad(p, scaled_gradient(scaler, ones({1})));
  EXPECT_FALSE(scaler.step(optimizer));
  EXPECT_FALSE(asked_with);
  EXPECT_EQ(detach(p).item(), 1.0);
  scaler.update();
  EXPECT_EQ(scaler.scale_value(), 32768.0);
}
}  // namespace
}  // namespace muster
