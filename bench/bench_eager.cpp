// What a small operator costs: dispatch, shape rule, allocation, kernel; with and without a record.
#include <benchmark/benchmark.h>

#include "bench/registered.h"
#include "core/autograd/autograd.h"
#include "core/ops/ops.h"

namespace muster {
namespace {

void eager_add_64(benchmark::State& state) {
  const Tensor x = ones({64}), y = ones({64});
  for (auto _ : state) benchmark::DoNotOptimize(add(x, y));
}
BENCHMARK(eager_add_64);

void eager_add_number_64(benchmark::State& state) {
  const Tensor x = ones({64});
  for (auto _ : state) benchmark::DoNotOptimize(add(x, 2.0));
}
BENCHMARK(eager_add_number_64);

void eager_add_in_place_64(benchmark::State& state) {
  const Tensor x = ones({64}), y = ones({64});
  for (auto _ : state) benchmark::DoNotOptimize(add_(x, y));
}
BENCHMARK(eager_add_in_place_64);

void recorded_add_64(benchmark::State& state) {
  const Tensor x = requires_grad_(ones({64})), y = ones({64});
  for (auto _ : state) benchmark::DoNotOptimize(add(x, y));
}
BENCHMARK(recorded_add_64);

void recorded_mul_64(benchmark::State& state) {
  const Tensor x = requires_grad_(ones({64})), y = ones({64});
  for (auto _ : state) benchmark::DoNotOptimize(mul(x, y));
}
BENCHMARK(recorded_mul_64);

void eager_view(benchmark::State& state) {
  const Tensor x = ones({8, 8});
  for (auto _ : state) benchmark::DoNotOptimize(view(x, {64}));
}
BENCHMARK(eager_view);

void eager_transpose(benchmark::State& state) {
  const Tensor x = ones({8, 8});
  for (auto _ : state) benchmark::DoNotOptimize(transpose(x, 0, 1));
}
BENCHMARK(eager_transpose);

void eager_sum_64(benchmark::State& state) {
  const Tensor x = ones({64});
  for (auto _ : state) benchmark::DoNotOptimize(sum(x));
}
BENCHMARK(eager_sum_64);

void backward_of_four_ops(benchmark::State& state) {
  const Tensor x = requires_grad_(ones({64})), y = ones({64});
  for (auto _ : state) {
    backward(sum(mul(add(x, y), y)));
    set_grad(x, {});
  }
}
BENCHMARK(backward_of_four_ops);

void add_1m(benchmark::State& state) {
  const Tensor x = ones({1 << 20}), y = ones({1 << 20});
  for (auto _ : state) benchmark::DoNotOptimize(add(x, y));
  state.SetBytesProcessed(state.iterations() * 3 * 4 * (int64_t{1} << 20));
}
BENCHMARK(add_1m);
}  // namespace
}  // namespace muster

int main(int argc, char** argv) { return muster::bench::run_registered(argc, argv); }
