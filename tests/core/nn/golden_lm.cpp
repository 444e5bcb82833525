#include "tests/core/nn/golden_lm.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/nn/optim/clip_grad.h"
#include "core/nn/optim/lr_schedule.h"
#include "core/nn/optim/optimizer.h"
#include "core/ops/ops.h"
#include "tests/support/golden_close.h"
#include "tests/support/recorded_adamw.h"

namespace muster::testing {
namespace {
using nlohmann::json;

// [sum, sum of squares, largest magnitude].
std::vector<double> digest(const Tensor& tensor) {
  const Tensor wide = to(tensor, DType::kF64);
  return {sum(wide).item(), sum(square(wide)).item(), amax(abs(wide)).item()};
}

void expect_digest(const Tensor& tensor, const json& wanted, double bound,
                   const std::string& what) {
  const std::vector<double> got = digest(tensor);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], wanted[i].get<double>(), bound) << what << " " << i;
  }
}

Tensor in_file_layout(const GoldenLm& lm, const std::string& name, const Tensor& tensor) {
  return lm.is_transposed(name) ? contiguous(t(tensor)) : tensor;
}

std::unique_ptr<AdamW> make_optimizer(const GoldenLm& lm, CausalLm& model, const json& options) {
  std::vector<NamedTensor> decayed, plain;
  for (const NamedTensor& named : model.named_parameters()) {
    const bool decays = !lm.decays_matrices_only || named.tensor.ndim() >= 2;
    (decays ? decayed : plain).push_back(named);
  }
  return recorded_adamw(decayed, plain, options);
}

Tensor greedy(CausalLm& model, const Tensor& prompt, int64_t count, int64_t stop, bool cached) {
  const NoGradGuard no_grad;
  Tensor all = prompt, fresh = prompt;
  if (cached) model.open_cache(prompt.size(1) + count);
  for (int64_t i = 0; i < count; ++i) {
    const Tensor logits = model(cached ? fresh : all);
    fresh = argmax(narrow(logits, 1, logits.size(1) - 1, 1), -1);
    all = cat({all, fresh}, 1);
    if (fresh.item_int() == stop) break;
  }
  model.close_cache();
  return all;
}
}  // namespace

Tensor next_tokens(const Tensor& labels) {
  const Tensor none = full({labels.size(0), 1}, int64_t{-100});
  return cat({narrow(labels, 1, 1, labels.size(1) - 1), none}, 1);
}

void expect_forward(const GoldenLm& lm) {
  const GoldenFile& golden = GoldenFile::load(lm.name);
  const json& c = golden.find("forward");
  const Tensor tokens = golden.tensor(c["args"][0]), labels = golden.tensor(c["labels"]);
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const auto model = lm.load(dtype);
    const bool wide = dtype == DType::kF64;
    const Tensor wanted = golden.tensor(c[wide ? "logits_f64" : "logits_f32"]);
    const GoldenTolerance tolerance = wide ? GoldenTolerance{lm.f64_tolerance, lm.f64_tolerance, 0}
                                           : GoldenTolerance{1e-5, 2e-6, 0};
    expect_close((*model)(tokens), wanted, tolerance, std::string(to_string(dtype)));
    const LossSum loss = model->loss(tokens, next_tokens(labels));
    EXPECT_NEAR(loss.sum.item() / loss.count.item(),
                c[wide ? "loss_f64" : "loss_f32"].get<double>(), wide ? lm.f64_tolerance : 2e-6);
  }
}

void expect_gradients(const GoldenLm& lm) {
  const GoldenFile& golden = GoldenFile::load(lm.name);
  const json& c = golden.find("grads_f64");
  const auto model = lm.load(DType::kF64);
  const LossSum loss =
      model->loss(golden.tensor(c["args"][0]), next_tokens(golden.tensor(c["labels"])));
  backward(div(loss.sum, loss.count));
  const std::vector<NamedTensor> parameters = model->named_parameters();
  EXPECT_EQ(parameters.size(), c["grads"].size());
  for (const NamedTensor& named : parameters) {
    const std::string name = lm.prefix + named.name;
    const Tensor got = grad_of(named.tensor);
    const Tensor wanted = in_file_layout(lm, name, golden.tensor(c["grads"].at(name)));
    const bool rounded = wanted.dtype() == DType::kF32;  // the digest then holds the other digits
    expect_close(lm.meaningful(name, to(got, wanted.dtype())), lm.meaningful(name, wanted),
                 rounded ? GoldenTolerance{1.2e-7, 1e-10, 0} : GoldenTolerance{1e-10, 1e-11, 0},
                 name);
    if (rounded) expect_digest(got, c["digest"].at(name), 1e-9, name);
  }
  EXPECT_NEAR(total_grad_norm(model->parameters()), c["total_norm"].get<double>(), 1e-9);
}

void expect_training(const GoldenLm& lm, DType dtype, double tolerance) {
  const GoldenFile& golden = GoldenFile::load(lm.name);
  const json& c = golden.find("train");
  const json& options = c["options"];
  const json& wanted = c[dtype == DType::kF64 ? "f64" : "f32"];
  const auto model = lm.load(dtype);
  const auto optimizer = make_optimizer(lm, *model, options);
  const LrSchedule schedule{.kind = LrSchedule::Kind::kCosine,
                            .warmup_steps = options["warmup"],
                            .total_steps = options["steps"]};
  const Tensor batches = golden.tensor(c["batches"]);
  for (int64_t step = 0; step < options["steps"].get<int64_t>(); ++step) {
    const auto at = static_cast<size_t>(step);
    const double lr = options["lr"].get<double>() * schedule.factor(step);
    EXPECT_NEAR(lr, c["lr"][at].get<double>(), 1e-15) << step;
    optimizer->set_lr(lr);
    const Tensor tokens = select(batches, 0, step);
    const LossSum loss = model->loss(tokens, next_tokens(tokens));
    const Tensor mean_loss = div(loss.sum, loss.count);
    backward(mean_loss);
    const double norm = clip_grad_norm_(model->parameters(), options["clip"]);
    EXPECT_NEAR(mean_loss.item(), wanted["loss"][at].get<double>(), tolerance) << step;
    EXPECT_NEAR(norm, wanted["grad_norm"][at].get<double>(), 10 * tolerance) << step;
    optimizer->step();
    model->zero_grad();
  }
  for (const NamedTensor& named : model->named_parameters()) {
    const std::string name = lm.prefix + named.name;
    if (!lm.meaningful(name, named.tensor).is_same(named.tensor)) continue;
    const double bound = tolerance * 20 * (1 + static_cast<double>(named.tensor.numel()) * 0.02);
    expect_digest(named.tensor, wanted["final"].at(name), bound, name);
  }
}

void expect_generation(const GoldenLm& lm) {
  const GoldenFile& golden = GoldenFile::load(lm.name);
  const auto model = lm.load(DType::kF32);
  model->eval();
  for (const char* id : {"generate", "generate_stop"}) {
    const json& c = golden.find(id);
    const Tensor prompt = golden.tensor(c["args"][0]), wanted = golden.tensor(c["out"]);
    const int64_t stop = c.contains("eos_token_id") ? c["eos_token_id"].get<int64_t>() : -1;
    for (const bool cached : {false, true}) {
      const Tensor got = greedy(*model, prompt, c["max_new_tokens"], stop, cached);
      EXPECT_EQ(to_vector<int64_t>(got), to_vector<int64_t>(wanted)) << id << " cached " << cached;
    }
  }
}
}  // namespace muster::testing
