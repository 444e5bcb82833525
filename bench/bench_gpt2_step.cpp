// One training step of GPT-2 124M (or the toy) in one process: forward, backward, clip, AdamW.
// The last line is one JSON object: median_ms, min_ms, tokens_per_s, peak_mib (the allocator's,
// over the measured steps), gemm_floor_ms (the step's matrix products alone, in f32, measured in
// the same run with raw oneDNN).

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "bench/command_line.h"
#include "core/autograd/autocast.h"
#include "core/autograd/autograd.h"
#include "core/autograd/checkpoint.h"
#include "core/base/time.h"
#include "core/kernels/parallel.h"
#include "core/nn/gpt.h"
#include "core/nn/optim/clip_grad.h"
#include "core/nn/optim/optimizer.h"
#include "core/ops/ops.h"
#include "core/tensor/allocator.h"

namespace {
using namespace muster;  // NOLINT(google-build-using-namespace): a main file

struct Options {
  std::string model = "gpt2";
  int64_t threads = 1;
  int64_t batch = 4;
  int64_t sequence = 64;
  int64_t steps = 0;     // 0: five, or fifty for the toy
  std::string autocast;  // "" or "bf16"
  bool checkpoint = false;
  bool json = false;
};

void declare(CLI::App& app, Options& options) {
  app.add_option("--model", options.model, "gpt2 (124M) or toy")
      ->check(CLI::IsMember({"gpt2", "toy"}));
  app.add_option("--threads", options.threads, "threads; default 1")->check(bench::count());
  app.add_option("--batch", options.batch, "sequences a step; default 4")->check(bench::count());
  app.add_option("--seq", options.sequence, "tokens of a sequence; default 64")
      ->check(bench::count());
  app.add_option("--steps", options.steps, "steps measured; default 5, of the toy 50")
      ->check(bench::count());
  app.add_option("--autocast", options.autocast, "bf16: products in bf16")
      ->check(CLI::IsMember({"bf16"}));
  app.add_flag("--checkpoint", options.checkpoint, "recompute each block in backward");
  app.add_flag("--json", options.json, "has no effect: the last line always is JSON");
}

GptConfig config_of(const Options& options) {
  GptConfig config;
  if (options.model == "toy") {
    config.layers = 4;
    config.dim = 64;
    config.heads = 4;
    config.vocab_size = 256;
  }
  config.max_positions = std::max<int64_t>(options.sequence, options.model == "toy" ? 64 : 1024);
  return config;
}

double ms_since(TimePoint start) { return to_seconds(real_clock().now() - start) * 1e3; }

// The products of one step by raw oneDNN: y = x W^T, dx = dy W, dW = dy^T x for every projection.
double gemm_floor_ms(const GptConfig& config, int64_t tokens) {
  struct Shape {
    int64_t m, n, k, times;
  };
  const int64_t d = config.dim;
  const std::vector<Shape> shapes = {{tokens, 3 * d, d, config.layers},
                                     {tokens, d, d, config.layers},
                                     {tokens, 4 * d, d, config.layers},
                                     {tokens, d, 4 * d, config.layers},
                                     {tokens, config.vocab_size, d, 1}};
  int64_t most = 0;
  for (const Shape& s : shapes) most = std::max({most, s.m * s.n, s.n * s.k, s.m * s.k});
  std::vector<float> a(static_cast<size_t>(most), 0.5f), b(static_cast<size_t>(most), 0.25f),
      c(static_cast<size_t>(most));
  double total = 0;
  for (const Shape& s : shapes) {
    double best = 1e30;
    for (int round = 0; round < 3; ++round) {
      const TimePoint start = real_clock().now();
      dnnl_sgemm('N', 'T', s.m, s.n, s.k, 1, a.data(), s.k, b.data(), s.k, 0, c.data(), s.n);
      dnnl_sgemm('N', 'N', s.m, s.k, s.n, 1, a.data(), s.n, b.data(), s.k, 0, c.data(), s.k);
      dnnl_sgemm('T', 'N', s.n, s.k, s.m, 1, a.data(), s.n, b.data(), s.k, 0, c.data(), s.k);
      best = std::min(best, ms_since(start));
    }
    total += best * static_cast<double>(s.times);
  }
  return total;
}

int measure(const Options& options) {
  kernels::set_num_threads(static_cast<int>(options.threads));
  const GptConfig config = config_of(options);
  Gpt model(config);
  model.reset_parameters(1);
  if (options.checkpoint) {
    for (int64_t i = 0; i < config.layers; ++i)
      model.module_at(fmt::format("h.{}", i)).set_checkpoint(CheckpointOptions{});
  }
  AdamW optimizer(model.named_parameters(), {.lr = 3e-4, .weight_decay = 0.1});
  const int64_t tokens = options.batch * options.sequence;
  const Tensor input =
      empty_from_spec(TensorSpec::contiguous({options.batch, options.sequence}, DType::kI64));
  const Tensor target =
      empty_from_spec(TensorSpec::contiguous({options.batch, options.sequence}, DType::kI64));
  for (int64_t i = 0; i < tokens; ++i) {
    input.data<int64_t>()[i] = (i * 7919 + 13) % config.vocab_size;
    target.data<int64_t>()[i] = (i * 104729 + 7) % config.vocab_size;
  }
  const int64_t steps = options.steps > 0 ? options.steps : options.model == "toy" ? 50 : 5;
  std::vector<double> times;
  double loss_value = 0;
  for (int64_t step = 0; step < steps + 2; ++step) {
    if (step == 2) cpu_allocator().reset_peak();
    const TimePoint start = real_clock().now();
    std::optional<AutocastGuard> autocast;
    if (!options.autocast.empty()) autocast.emplace(DeviceType::kCpu, DType::kBF16);
    const LossSum loss = model.loss(input, target);
    autocast.reset();
    backward(div(loss.sum, static_cast<double>(tokens)));
    clip_grad_norm_(model.parameters(), 1.0);
    optimizer.step();
    optimizer.zero_grad();
    if (step >= 2) times.push_back(ms_since(start));  // two to warm up
    loss_value = detach(loss.sum).item() / static_cast<double>(tokens);
  }
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  const double floor = gemm_floor_ms(config, tokens);
  const double peak_mib =
      static_cast<double>(cpu_allocator().stats().peak_allocated.count) / (1 << 20);
  fmt::print(
      "{} B{} T{}, {} threads{}{}: {:.1f} ms a step (least {:.1f}), f32 products alone {:.1f} ms, "
      "peak {:.0f} MiB, loss {:.4f}\n",
      options.model, options.batch, options.sequence, options.threads,
      options.autocast.empty() ? "" : ", bf16 autocast", options.checkpoint ? ", checkpointed" : "",
      median, times.front(), floor, peak_mib, loss_value);
  fmt::print(
      "{{\"model\": \"{}\", \"threads\": {}, \"batch\": {}, \"seq\": {}, \"autocast\": \"{}\", "
      "\"checkpoint\": {}, \"median_ms\": {:.3f}, \"min_ms\": {:.3f}, \"tokens_per_s\": {:.1f}, "
      "\"gemm_floor_ms\": {:.3f}, \"peak_mib\": {:.1f}, \"loss\": {:.4f}}}\n",
      options.model, options.threads, options.batch, options.sequence,
      options.autocast.empty() ? "none" : options.autocast, options.checkpoint, median,
      times.front(), static_cast<double>(tokens) / median * 1e3, floor, peak_mib, loss_value);
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures a training step of GPT-2 in one process.", "bench_gpt2_step");
  Options options;
  declare(app, options);
  if (const std::optional<int> status = bench::parse(app, argc, argv)) return *status;
  return bench::guarded(app, [&] { return measure(options); });
}
