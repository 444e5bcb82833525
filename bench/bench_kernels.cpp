// Kernels alone: products against raw oneDNN, AdamW, attention, layer norm and cross entropy.
// Arguments end with the number of threads. `best_*` counters are minima over iterations: they
// mean something on a busy machine, where averages do not.

#include <benchmark/benchmark.h>
#include <oneapi/dnnl/dnnl.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <vector>

#include "bench/registered.h"
#include "core/kernels/cpu/gemm.h"
#include "core/kernels/cpu/grad_norm.h"
#include "core/kernels/cpu/loss.h"
#include "core/kernels/cpu/norm.h"
#include "core/kernels/cpu/optimizer.h"
#include "core/kernels/cpu/sdpa.h"
#include "core/kernels/parallel.h"
#include "core/kernels/precision.h"

namespace muster::kernels::cpu {
namespace {

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The shortest run of `body`, in seconds. On one thread its CPU time counts, which neighbours
// disturb less than the wall clock.
class BestTime {
 public:
  template <typename Body>
  void run(const Body& body) {
    const clockid_t clock = num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    const double start = seconds_of(clock);
    body();
    best_ = std::min(best_, seconds_of(clock) - start);
  }
  [[nodiscard]] double seconds() const { return best_; }

 private:
  double best_ = 1e30;
};

std::vector<float> values(int64_t numel) {
  std::vector<float> out(static_cast<size_t>(numel));
  uint32_t state = 1;
  for (float& value : out) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
  }
  return out;
}

// Forms of a linear layer: y = x W^T, dx = dy W, dW = dy^T x.
enum Form { kForward, kInputGradient, kWeightGradient };

void BM_GemmAgainstOneDnn(benchmark::State& state) {
  const Form form = static_cast<Form>(state.range(0));
  const int64_t m = state.range(1), n = state.range(2), k = state.range(3);
  set_num_threads(static_cast<int>(state.range(4)));
  const bool transpose_a = form == kWeightGradient, transpose_b = form == kForward;
  const std::vector<float> a = values(m * k), b = values(k * n);
  std::vector<float> out(static_cast<size_t>(m * n));
  const DimVector a_sizes = {m, k}, b_sizes = {k, n}, out_sizes = {m, n}, out_strides = {n, 1};
  const DimVector a_strides = transpose_a ? DimVector{1, m} : DimVector{k, 1};
  const DimVector b_strides = transpose_b ? DimVector{1, k} : DimVector{n, 1};
  const auto view = [](const std::vector<float>& data, const DimVector& sizes,
                       const DimVector& strides) {
    return TensorView(const_cast<float*>(data.data()), DType::kF32, sizes.span(), strides.span());
  };
  BestTime raw, ours;
  for (auto _ : state) {
    raw.run([&] {
      dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1.0f, a.data(),
                 transpose_a ? m : k, b.data(), transpose_b ? k : n, 0.0f, out.data(), n);
    });
    ours.run([&] {
      gemm(view(out, out_sizes, out_strides), view(a, a_sizes, a_strides),
           view(b, b_sizes, b_strides));
    });
  }
  const double gflop = 2e-9 * static_cast<double>(m * n * k);
  state.counters["best_raw_gflops"] = gflop / raw.seconds();
  state.counters["best_gflops"] = gflop / ours.seconds();
  state.counters["ratio"] = raw.seconds() / ours.seconds();
}

void gemm_shapes(benchmark::internal::Benchmark* bench) {
  for (const int64_t threads : {1, 2}) {
    for (const auto& [tokens, in, out] : {std::array<int64_t, 3>{256, 768, 2304},
                                          {256, 768, 768},
                                          {1024, 768, 3072},
                                          {1024, 3072, 768},
                                          {256, 768, 50257}}) {
      bench->Args({kForward, tokens, out, in, threads});
      bench->Args({kInputGradient, tokens, in, out, threads});
      bench->Args({kWeightGradient, out, in, tokens, threads});
    }
  }
}
BENCHMARK(BM_GemmAgainstOneDnn)->Apply(gemm_shapes)->Unit(benchmark::kMillisecond);

// bf16 products against our f32 ones of the same shape: by the CPU's own instructions, or widened.
void BM_GemmBf16AgainstF32(benchmark::State& state) {
  const Form form = static_cast<Form>(state.range(0));
  const int64_t m = state.range(1), n = state.range(2), k = state.range(3);
  set_num_threads(1);
  set_bf16_products(state.range(4) != 0 ? Bf16Products::kAuto : Bf16Products::kWiden);
  const bool transpose_a = form == kWeightGradient, transpose_b = form == kForward;
  const std::vector<float> a = values(m * k), b = values(k * n);
  std::vector<float> out(static_cast<size_t>(m * n));
  const std::vector<BFloat16> low_a(a.size(), BFloat16(0.5f)), low_b(b.size(), BFloat16(0.25f));
  std::vector<BFloat16> low_out(out.size());
  const DimVector a_sizes = {m, k}, b_sizes = {k, n}, out_sizes = {m, n}, out_strides = {n, 1};
  const DimVector a_strides = transpose_a ? DimVector{1, m} : DimVector{k, 1};
  const DimVector b_strides = transpose_b ? DimVector{1, k} : DimVector{n, 1};
  const auto view = [](const auto& data, const DimVector& sizes, const DimVector& strides) {
    using T = std::remove_cvref_t<decltype(data[0])>;
    return TensorView(const_cast<T*>(data.data()), dtype_of<T>, sizes.span(), strides.span());
  };
  BestTime f32, bf16;
  for (auto _ : state) {
    f32.run([&] {
      gemm(view(out, out_sizes, out_strides), view(a, a_sizes, a_strides),
           view(b, b_sizes, b_strides));
    });
    bf16.run([&] {
      gemm(view(low_out, out_sizes, out_strides), view(low_a, a_sizes, a_strides),
           view(low_b, b_sizes, b_strides));
    });
  }
  set_bf16_products(Bf16Products::kAuto);
  const double gflop = 2e-9 * static_cast<double>(m * n * k);
  state.counters["best_f32_gflops"] = gflop / f32.seconds();
  state.counters["best_bf16_gflops"] = gflop / bf16.seconds();
  state.counters["speedup"] = f32.seconds() / bf16.seconds();
}
void bf16_shapes(benchmark::internal::Benchmark* b) {
  for (const int native : {1, 0}) {
    for (const int form : {kForward, kInputGradient, kWeightGradient}) {
      b->Args({form, 256, 2304, 768, native});
      b->Args({form, 64, 64, 64, native});
      b->Args({form, 256, 50257, 768, native});
    }
  }
}
BENCHMARK(BM_GemmBf16AgainstF32)->Apply(bf16_shapes)->Unit(benchmark::kMillisecond);

void BM_GemmF64(benchmark::State& state) {
  const int64_t n = state.range(0);
  set_num_threads(static_cast<int>(state.range(1)));
  const std::vector<double> a(static_cast<size_t>(n * n), 1.5);
  std::vector<double> out(a.size());
  const DimVector sizes = {n, n}, strides = {n, 1};
  const TensorView in(const_cast<double*>(a.data()), DType::kF64, sizes.span(), strides.span());
  BestTime best;
  for (auto _ : state)
    best.run([&] { gemm({out.data(), DType::kF64, sizes.span(), strides.span()}, in, in); });
  state.counters["best_gflops"] = 2e-9 * static_cast<double>(n * n * n) / best.seconds();
}
BENCHMARK(BM_GemmF64)->Args({64, 1})->Args({512, 1})->Args({512, 2});

TensorView flat(const std::vector<float>& data, const DimVector& sizes, const DimVector& strides) {
  return {const_cast<float*>(data.data()), DType::kF32, sizes.span(), strides.span()};
}

// Milliseconds in PyTorch's terms: [B, H, S, 64] causal attention read in place from [B, S, H, 64].
void BM_SdpaCausal(benchmark::State& state) {
  const int64_t heads = 12, length = state.range(0), dim = 64;
  set_num_threads(static_cast<int>(state.range(1)));
  const int64_t width = heads * dim;
  const DimVector sizes = {1, heads, length, dim}, strides = {length * width, dim, width, 1};
  const DimVector row_sizes = {1, heads, length}, row_strides = {heads * length, length, 1};
  const std::vector<float> q = values(length * width), k = q, v = q, dout = q;
  std::vector<float> out(q.size()), dq(q.size()), dk(q.size()), dv(q.size());
  std::vector<float> lse(static_cast<size_t>(heads * length));
  const auto at = [&](const std::vector<float>& data) { return flat(data, sizes, strides); };
  const SdpaOptions options{.scale = 0.125, .causal = Causal::kUpperLeft, .mask = {}};
  BestTime forward, backward;
  for (auto _ : state) {
    forward.run([&] {
      sdpa_flash(at(out), flat(lse, row_sizes, row_strides), at(q), at(k), at(v), options);
    });
    backward.run([&] {
      sdpa_flash_backward(
          {at(dq), at(dk), at(dv), {}},
          {at(dout), at(q), at(k), at(v), at(out), flat(lse, row_sizes, row_strides), {}}, options);
    });
  }
  state.counters["best_forward_ms"] = 1e3 * forward.seconds();
  state.counters["best_backward_ms"] = 1e3 * backward.seconds();
  state.counters["best_ms"] = 1e3 * (forward.seconds() + backward.seconds());
}
BENCHMARK(BM_SdpaCausal)
    ->ArgsProduct({{256, 512, 1024, 2048}, {1, 2}})
    ->Unit(benchmark::kMillisecond);

void BM_AdamW(benchmark::State& state) {
  const int64_t numel = state.range(0);
  set_num_threads(static_cast<int>(state.range(1)));
  const DimVector sizes = {numel}, strides = {1};
  const std::vector<float> param = values(numel), grad = param, m = param;
  const std::vector<float> v(param.size(), 1.0f);
  const auto at = [&](const std::vector<float>& data) { return flat(data, sizes, strides); };
  BestTime best;
  int64_t step = 0;
  for (auto _ : state) {
    best.run([&] {
      adam_step(at(param), at(grad), {at(m), at(v), {}}, ++step, {.weight_decay = 0.1});
    });
  }
  state.counters["best_ns_per_param"] = 1e9 * best.seconds() / static_cast<double>(numel);
}
BENCHMARK(BM_AdamW)->ArgsProduct({{1 << 16, 1 << 25}, {1, 2}})->Unit(benchmark::kMillisecond);

void BM_SumOfSquares(benchmark::State& state) {
  const int64_t numel = state.range(0);
  set_num_threads(static_cast<int>(state.range(1)));
  const DimVector sizes = {numel}, strides = {1};
  const std::vector<float> x = values(numel);
  BestTime best;
  for (auto _ : state)
    best.run([&] { benchmark::DoNotOptimize(sum_of_squares(flat(x, sizes, strides))); });
  state.counters["best_gbytes_per_s"] = 4e-9 * static_cast<double>(numel) / best.seconds();
}
BENCHMARK(BM_SumOfSquares)->ArgsProduct({{1 << 25}, {1, 2}})->Unit(benchmark::kMillisecond);

void BM_LayerNorm(benchmark::State& state) {
  const int64_t rows = state.range(0), n = state.range(1);
  set_num_threads(static_cast<int>(state.range(2)));
  const DimVector sizes = {rows, n}, strides = {n, 1}, row = {rows}, column = {n}, one = {1};
  const std::vector<float> x = values(rows * n), dy = x, weight = values(n), bias = weight;
  std::vector<float> y(x.size()), dx(x.size()), mean(static_cast<size_t>(rows)), rstd = mean;
  std::vector<float> dweight(weight.size()), dbias(weight.size());
  const auto matrix = [&](const std::vector<float>& data) { return flat(data, sizes, strides); };
  BestTime forward, backward;
  for (auto _ : state) {
    forward.run([&] {
      layer_norm(matrix(y), flat(mean, row, one), flat(rstd, row, one), matrix(x),
                 flat(weight, column, one), flat(bias, column, one), 1e-5);
    });
    backward.run([&] {
      layer_norm_backward({matrix(dx), flat(dweight, column, one), flat(dbias, column, one)},
                          matrix(dy), matrix(x), flat(mean, row, one), flat(rstd, row, one),
                          flat(weight, column, one));
    });
  }
  state.counters["best_forward_us"] = 1e6 * forward.seconds();
  state.counters["best_backward_us"] = 1e6 * backward.seconds();
}
BENCHMARK(BM_LayerNorm)->ArgsProduct({{1024}, {768}, {1, 2}});

void BM_CrossEntropyInPlace(benchmark::State& state) {
  const int64_t rows = state.range(0), classes = state.range(1);
  set_num_threads(static_cast<int>(state.range(2)));
  const DimVector sizes = {rows, classes}, strides = {classes, 1}, row = {rows}, one = {1};
  const std::vector<float> logits = values(rows * classes);
  std::vector<int64_t> targets(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i) targets[static_cast<size_t>(i)] = i * 131 % classes;
  const TensorView target_view(targets.data(), DType::kI64, row.span(), one.span());
  BestTime best;
  for (auto _ : state) {
    best.run([&] {
      benchmark::DoNotOptimize(
          cross_entropy_in_place(flat(logits, sizes, strides), target_view, 1.0, {}, {}, {}));
    });
  }
  state.counters["best_ms"] = 1e3 * best.seconds();
}
BENCHMARK(BM_CrossEntropyInPlace)
    ->ArgsProduct({{512}, {50304}, {1, 2}})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace muster::kernels::cpu

int main(int argc, char** argv) { return muster::bench::run_registered(argc, argv); }
