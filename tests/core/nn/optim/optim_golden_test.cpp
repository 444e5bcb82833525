// Optimizers, clipping and schedules against PyTorch.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/nn/optim/clip_grad.h"
#include "core/nn/optim/lr_schedule.h"
#include "core/nn/optim/optimizer.h"
#include "core/ops/ops.h"
#include "tests/support/golden_case.h"
#include "tests/support/golden_close.h"

namespace muster::testing {
namespace {
using nlohmann::json;

std::string name_of(int64_t index) { return "p" + std::to_string(index); }

// Makes the optimizer of a case; rates that the case sets per step are set later.
std::unique_ptr<Optimizer> make_optimizer(const json& c, const std::vector<Tensor>& params) {
  std::vector<ParameterGroup<AdamWOptions>> adam;
  std::vector<ParameterGroup<SgdOptions>> sgd;
  for (size_t g = 0; g < c["groups"].size(); ++g) {
    const json& o = c["options"][g];
    std::vector<NamedTensor> own;
    for (const int64_t i : golden_ints(c["groups"][g]["params"])) {
      own.push_back({name_of(i), params[static_cast<size_t>(i)]});
    }
    if (c["optimizer"] == "SGD") {
      sgd.push_back({own,
                     {.lr = o["lr"],
                      .momentum = o["momentum"],
                      .dampening = o["dampening"],
                      .weight_decay = o["weight_decay"],
                      .nesterov = o["nesterov"],
                      .maximize = o["maximize"]}});
    } else {
      adam.push_back({own,
                      {.lr = o["lr"],
                       .beta1 = o["betas"][0],
                       .beta2 = o["betas"][1],
                       .eps = o["eps"],
                       .weight_decay = o["weight_decay"],
                       .amsgrad = o["amsgrad"],
                       .maximize = o["maximize"],
                       .decoupled_decay = o["decoupled_weight_decay"]}});
    }
  }
  if (c["optimizer"] == "SGD") return std::make_unique<Sgd>(sgd);
  return std::make_unique<AdamW>(adam);
}

struct Trajectory {
  std::vector<Tensor> params;
  std::vector<Tensor> grads;  // [steps, ..] each
  std::unique_ptr<Optimizer> optimizer;
};

Trajectory start(const GoldenFile& file, const json& c) {
  Trajectory run;
  for (const json& p : c["params"]) run.params.push_back(requires_grad_(file.tensor(p)));
  for (const json& g : c["grads"]) run.grads.push_back(file.tensor(g));
  run.optimizer = make_optimizer(c, run.params);
  return run;
}

bool has_gradient(const json& c, int64_t step, int64_t index) {
  for (const json& none : c["none"]) {
    if (none[0].get<int64_t>() == step && none[1].get<int64_t>() == index) return false;
  }
  if (!c.contains("add_group_before_step") || step >= c["add_group_before_step"].get<int64_t>()) {
    return true;
  }
  for (const int64_t late : golden_ints(c["groups"][1]["params"])) {
    if (late == index) return false;
  }
  return true;
}

void step_once(Trajectory& run, const json& c, int64_t step) {
  for (size_t i = 0; i < run.params.size(); ++i) {
    const bool has = has_gradient(c, step, static_cast<int64_t>(i)) && run.grads[i].defined();
    set_grad(run.params[i], has ? clone(select(run.grads[i], 0, step - 1)) : Tensor());
  }
  if (c.contains("lr_per_step")) {
    run.optimizer->set_lr(c["lr_per_step"][static_cast<size_t>(step - 1)].get<double>());
  }
  run.optimizer->step();
}

void compare_after(const GoldenFile& file, const json& c, const Trajectory& run, int64_t step) {
  const std::string key = std::to_string(step);
  if (!c["after"].contains(key)) return;
  for (size_t i = 0; i < run.params.size(); ++i) {
    const Tensor wanted = file.tensor(c["after"][key][i]);
    expect_close(detach(run.params[i]), wanted, out_tolerance(c, wanted.dtype()),
                 c["id"].get<std::string>() + " after " + key + " p" + std::to_string(i));
  }
}

void compare_state(const GoldenFile& file, const json& c, const Trajectory& run) {
  std::map<std::string, OptimizerStateEntry> by_name;
  for (OptimizerStateEntry& entry : run.optimizer->state()) by_name[entry.parameter] = entry;
  for (size_t i = 0; i < run.params.size(); ++i) {
    const json& wanted = c["state"][i];
    const std::string name = name_of(static_cast<int64_t>(i));
    const std::string what = c["id"].get<std::string>() + " state " + name;
    const bool expects = !wanted.is_null() && !wanted.empty();
    ASSERT_EQ(expects, by_name.contains(name)) << what;
    if (!expects) continue;
    for (const NamedTensor& named : by_name[name].tensors) {
      const std::string key =
          named.name == "max_exp_avg_sq" ? std::string("max_exp_avg_sq") : named.name;
      ASSERT_TRUE(wanted.contains(key)) << what << " " << key;
      const Tensor tensor = file.tensor(wanted[key]);
      expect_close(named.tensor, tensor, out_tolerance(c, tensor.dtype()), what + " " + key);
    }
    if (wanted.contains("step")) {
      EXPECT_EQ(static_cast<double>(by_name[name].step), file.tensor(wanted["step"]).item())
          << what;
    }
  }
}

bool is_ours(const json& c) {
  if (c["op"] != "optim" || c["dtype"] == "bf16") return false;
  return c["optimizer"] == "SGD" || c["optimizer"] == "Adam" || c["optimizer"] == "AdamW";
}

TEST(OptimGolden, TrajectoriesEqualPyTorch) {
  const GoldenFile& file = GoldenFile::load("optim/trajectory");
  int ran = 0;
  for (const json& c : file.cases()) {
    if (!is_ours(c)) continue;
    ++ran;
    Trajectory run = start(file, c);
    for (int64_t step = 1; step <= 20; ++step) {
      step_once(run, c, step);
      compare_after(file, c, run, step);
    }
    compare_state(file, c, run);
  }
  EXPECT_GE(ran, 58);
}

// State moved to a new optimizer at step 10 continues to the last bit.
TEST(OptimGolden, AResumedRunEqualsTheUninterruptedOneBitForBit) {
  const GoldenFile& file = GoldenFile::load("optim/trajectory");
  int ran = 0;
  for (const json& c : file.cases()) {
    if (!is_ours(c) || !c.contains("resume_at_10")) continue;
    ++ran;
    Trajectory whole = start(file, c), resumed = start(file, c);
    for (int64_t step = 1; step <= 20; ++step) {
      step_once(whole, c, step);
      if (step == 11) {
        std::unique_ptr<Optimizer> fresh = make_optimizer(c, resumed.params);
        for (const OptimizerStateEntry& entry : resumed.optimizer->state()) {
          fresh->load_state(entry);
        }
        resumed.optimizer = std::move(fresh);
      }
      step_once(resumed, c, step);
    }
    for (size_t i = 0; i < whole.params.size(); ++i) {
      EXPECT_TRUE(equal(whole.params[i], resumed.params[i])) << c["id"] << " p" << i;
    }
  }
  EXPECT_GE(ran, 50);
}

TEST(OptimGolden, ClippingEqualsPyTorch) {
  const GoldenFile& file = GoldenFile::load("optim/clip");
  int ran = 0;
  for (const json& c : file.cases()) {
    std::vector<Tensor> params;
    for (size_t i = 0; i < c["grads_in"].size(); ++i) {
      const Tensor grad = file.tensor(c["grads_in"][i]);
      params.push_back(requires_grad_(zeros(grad.sizes(), grad.dtype())));
      set_grad(params.back(), clone(grad));
    }
    if (c.contains("none")) {
      for (const json& none : c["none"]) set_grad(params.at(none.get<size_t>()), {});
    }
    ++ran;
    const std::string id = c["id"];
    if (id == "huge_f32") {  // PyTorch's f32 squares overflow to inf; our sums are double
      EXPECT_TRUE(std::isfinite(total_grad_norm(params))) << id;
      continue;
    }
    const json& kw = c["kwargs"];
    const double norm_type = kw.contains("norm_type") ? golden_number(kw["norm_type"]) : 2.0;
    const auto run = [&]() -> double {
      if (c["op"] == "clip_grad_value_") {
        clip_grad_value_(params, kw["clip_value"].get<double>());
        return 0;
      }
      if (c["op"] == "get_total_norm") return total_grad_norm(params, norm_type);
      return clip_grad_norm_(
          params, golden_number(kw["max_norm"]),
          {.norm_type = norm_type, .error_if_nonfinite = kw.value("error_if_nonfinite", false)});
    };
    if (c.contains("error")) {
      EXPECT_THROW(run(), Error) << id;
      for (size_t i = 0; i < params.size(); ++i) {
        if (!grad_of(params[i]).defined()) continue;
        expect_close(grad_of(params[i]), file.tensor(c["grads_in"][i]), {}, id + " unchanged");
      }
      continue;
    }
    const double norm = run();
    if (c["out"].contains("total_norm")) {
      const Tensor wanted = file.tensor(c["out"]["total_norm"]);
      expect_close(full({}, norm, wanted.dtype()), wanted, out_tolerance(c, wanted.dtype()), id);
    }
    if (!c["out"].contains("grads")) continue;
    for (size_t i = 0; i < params.size(); ++i) {
      if (c["out"]["grads"][i].is_null()) continue;
      const Tensor wanted = file.tensor(c["out"]["grads"][i]);
      expect_close(grad_of(params[i]), wanted, out_tolerance(c, wanted.dtype()),
                   id + " grad " + std::to_string(i));
    }
  }
  EXPECT_GT(ran, 50);
}

// The rate of a case's schedule, or nan where we have no such schedule.
double rate(const json& s, double base, int64_t step) {
  const std::string name = s["name"];
  if (name == "StepLR") return step_lr(base, step, s["step_size"], s.value("gamma", 0.1));
  if (name == "ExponentialLR") return exponential_lr(base, step, s["gamma"]);
  if (name == "ConstantLR") {
    return constant_lr(base, step, s.value("factor", 1.0 / 3), s.value("total_iters", 5));
  }
  if (name == "LinearLR") {
    return linear_lr(base, step, s.value("start_factor", 1.0 / 3), s.value("end_factor", 1.0),
                     s.value("total_iters", 5));
  }
  if (name == "CosineAnnealingLR") {
    return cosine_annealing_lr(base, step, s["T_max"], s.value("eta_min", 0.0));
  }
  if (name == "PolynomialLR") {
    return polynomial_lr(base, step, s.value("total_iters", 5), s.value("power", 1.0));
  }
  return std::nan("");
}

TEST(OptimGolden, SchedulesEqualPyTorchAsFunctionsOfTheStep) {
  const GoldenFile& file = GoldenFile::load("optim/lr");
  int ran = 0;
  for (const json& c : file.cases()) {
    if (c["op"] != "lr" || !c.contains("lrs") || std::isnan(rate(c["schedule"], 1.0, 0))) continue;
    ++ran;
    for (size_t step = 0; step < c["lrs"].size(); ++step) {
      for (size_t g = 0; g < c["base_lrs"].size(); ++g) {
        const double wanted = golden_number(c["lrs"][step][g]);
        const double got = rate(c["schedule"], c["base_lrs"][g], static_cast<int64_t>(step));
        EXPECT_NEAR(got, wanted, 1e-12 * std::max(1.0, std::abs(wanted)))
            << c["id"] << " step " << step;
      }
    }
  }
  EXPECT_GT(ran, 10);
}
}  // namespace
}  // namespace muster::testing
