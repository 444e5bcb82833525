// Reduction loops in plain C++, every kind and type. Rows use fixed lanes, as the SIMD loops do.
#include <cmath>
#include <limits>
#include <type_traits>

#include "core/kernels/cpu/reduce_ops.h"

namespace muster::kernels::cpu {
namespace {
// A: the type of a partial result.
template <typename A>
A add(A a, A b) {
  if constexpr (std::is_same_v<A, double>) {
    return a + b;
  } else {
    return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
}
template <typename A>
A multiply(A a, A b) {
  if constexpr (std::is_same_v<A, double>) {
    return a * b;
  } else {
    return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  }
}
// A nan, once there, stays: nothing compares greater.
template <typename A>
A larger(A a, A b) {
  return b > a || b != b ? b : a;
}
template <typename A>
A smaller(A a, A b) {
  return b < a || b != b ? b : a;
}
template <typename A>
A magnitude(A x) {
  if constexpr (std::is_same_v<A, double>) {
    return std::fabs(x);
  } else {
    return x < 0 ? static_cast<A>(0 - static_cast<uint64_t>(x)) : x;
  }
}
template <typename A>
constexpr A lowest() {
  return std::is_same_v<A, double> ? -std::numeric_limits<A>::infinity()
                                   : std::numeric_limits<A>::min();
}
template <typename A>
constexpr A highest() {
  return std::is_same_v<A, double> ? std::numeric_limits<A>::infinity()
                                   : std::numeric_limits<A>::max();
}

#define MUSTER_REDUCTION(name, start, mapped, combined) \
  template <typename A>                                 \
  struct name {                                         \
    static constexpr A identity() { return start; }     \
    static A map(A x) { return mapped; }                \
    static A combine(A a, A b) { return combined; }     \
  }
MUSTER_REDUCTION(Sum, A(0), x, add(a, b));
MUSTER_REDUCTION(Nansum, A(0), (x == x ? x : A(0)), add(a, b));
MUSTER_REDUCTION(Prod, A(1), x, multiply(a, b));
MUSTER_REDUCTION(Amax, lowest<A>(), x, larger(a, b));
MUSTER_REDUCTION(Amin, highest<A>(), x, smaller(a, b));
MUSTER_REDUCTION(Any, A(0), (x != 0 ? A(1) : A(0)), larger(a, b));
MUSTER_REDUCTION(All, A(1), (x != 0 ? A(1) : A(0)), smaller(a, b));
MUSTER_REDUCTION(CountNonzero, A(0), (x != 0 ? A(1) : A(0)), add(a, b));
MUSTER_REDUCTION(SumOfSquares, A(0), multiply(x, x), add(a, b));
MUSTER_REDUCTION(SumOfMagnitudes, A(0), magnitude(x), add(a, b));
MUSTER_REDUCTION(LargestMagnitude, A(0), magnitude(x), larger(a, b));
#undef MUSTER_REDUCTION

template <typename A>
A* values(Partial* partials) {
  return reinterpret_cast<A*>(partials);
}

template <class Op, typename A, typename T>
void rows(Partial* lanes, const void* in, int64_t count) {
  const T* x = static_cast<const T*>(in);
  A sums[kLanes];
  for (int64_t j = 0; j < kLanes; ++j) sums[j] = values<A>(lanes)[j];
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      sums[j] = Op::combine(sums[j], Op::map(static_cast<A>(x[i + j])));
    }
  }
  for (int64_t j = 0; i + j < count; ++j) {
    sums[j] = Op::combine(sums[j], Op::map(static_cast<A>(x[i + j])));
  }
  for (int64_t j = 0; j < kLanes; ++j) values<A>(lanes)[j] = sums[j];
}

template <class Op, typename A, typename T>
Partial run(const void* in, int64_t count) {
  Partial lanes[kLanes];
  A* sums = values<A>(lanes);
  for (int64_t j = 0; j < kLanes; ++j) sums[j] = Op::identity();
  rows<Op, A, T>(lanes, in, count);
  for (int64_t step = kLanes / 2; step > 0; step /= 2) {
    for (int64_t j = 0; j < step; ++j) sums[j] = Op::combine(sums[j], sums[j + step]);
  }
  return lanes[0];
}

template <class Op, typename A, typename T>
void columns(Partial* into, const void* in, int64_t count, int64_t num_rows, int64_t pitch) {
  A* sums = values<A>(into);
  for (int64_t row = 0; row < num_rows; ++row) {
    const T* x = static_cast<const T*>(in) + row * pitch;
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      sums[i] = Op::combine(sums[i], Op::map(static_cast<A>(x[i])));
    }
  }
}

template <class Op, typename A>
void combine(Partial* into, const Partial* other, int64_t count) {
  A* sums = values<A>(into);
  const A* more = values<A>(const_cast<Partial*>(other));
  for (int64_t i = 0; i < count; ++i) sums[i] = Op::combine(sums[i], more[i]);
}

template <class Op, typename A, typename T>
ReduceOps make_ops() {
  ReduceOps ops;
  values<A>(&ops.identity)[0] = Op::identity();
  ops.is_real = std::is_same_v<A, double>;
  ops.rows = &rows<Op, A, T>;
  ops.run = &run<Op, A, T>;
  ops.columns = &columns<Op, A, T>;
  ops.combine = &combine<Op, A>;
  return ops;
}

template <template <typename> class Op>
void fill_kind(ReduceTables& tables, ReduceKind kind) {
  ReduceOps* row = tables.ops[static_cast<int>(kind)];
  row[static_cast<int>(ReduceInput::kF32)] = make_ops<Op<double>, double, float>();
  row[static_cast<int>(ReduceInput::kF64)] = make_ops<Op<double>, double, double>();
  row[static_cast<int>(ReduceInput::kI64)] = make_ops<Op<int64_t>, int64_t, int64_t>();
}

template <typename T>
void squared_distances(double* lanes, const T* x, int64_t count, double mean) {
  double sums[kLanes];
  for (int64_t j = 0; j < kLanes; ++j) sums[j] = lanes[j];
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      const double distance = static_cast<double>(x[i + j]) - mean;
      sums[j] += distance * distance;
    }
  }
  for (int64_t j = 0; i + j < count; ++j) {
    const double distance = static_cast<double>(x[i + j]) - mean;
    sums[j] += distance * distance;
  }
  for (int64_t j = 0; j < kLanes; ++j) lanes[j] = sums[j];
}

template <typename T>
void welford(double* mean, double* m2, const T* x, int64_t count, double row) {
  const double weight = 1.0 / row;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const double value = static_cast<double>(x[i]);
    const double distance = value - mean[i];
    mean[i] += distance * weight;
    m2[i] += distance * (value - mean[i]);
  }
}

}  // namespace

void fill_scalar_reductions(ReduceTables& tables) {
  fill_kind<Sum>(tables, ReduceKind::kSum);
  fill_kind<Sum>(tables, ReduceKind::kMean);
  fill_kind<Nansum>(tables, ReduceKind::kNansum);
  fill_kind<Prod>(tables, ReduceKind::kProd);
  fill_kind<Amax>(tables, ReduceKind::kAmax);
  fill_kind<Amin>(tables, ReduceKind::kAmin);
  fill_kind<Any>(tables, ReduceKind::kAny);
  fill_kind<All>(tables, ReduceKind::kAll);
  fill_kind<CountNonzero>(tables, ReduceKind::kCountNonzero);
  fill_kind<SumOfSquares>(tables, ReduceKind::kSumOfSquares);
  fill_kind<SumOfSquares>(tables, ReduceKind::kNorm2);
  fill_kind<SumOfMagnitudes>(tables, ReduceKind::kNorm1);
  fill_kind<LargestMagnitude>(tables, ReduceKind::kNormInf);
  tables.squared_distances_f32 = &squared_distances<float>;
  tables.squared_distances_f64 = &squared_distances<double>;
  tables.welford_f32 = &welford<float>;
  tables.welford_f64 = &welford<double>;
}
}  // namespace muster::kernels::cpu
