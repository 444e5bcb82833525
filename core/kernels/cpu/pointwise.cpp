#include "core/kernels/cpu/pointwise.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "core/kernels/cpu/pointwise_tables.h"
#include "core/kernels/parallel.h"

namespace muster::kernels::cpu {
namespace {
// Elements per tile: some ten microseconds of work.
constexpr int64_t kGrain = 32768;
constexpr int64_t kCostlyGrain = 8192;

const PointwiseTables& tables() {
  static const PointwiseTables filled = [] {
    PointwiseTables fresh;
    fill_scalar_unary(fresh);
    fill_scalar_binary(fresh);
    fill_scalar_ternary(fresh);
    fill_vector_unary(fresh);
    fill_vector_binary(fresh);
    return fresh;
  }();
  return filled;
}

int64_t grain_of(UnaryKind kind) {
  const bool cheap = kind < UnaryKind::kRsqrt || kind == UnaryKind::kFrac ||
                     (kind >= UnaryKind::kLeakyRelu && kind <= UnaryKind::kHardswish);
  return cheap ? kGrain : kCostlyGrain;
}
int64_t grain_of(BinaryKind kind) {
  switch (kind) {
    case BinaryKind::kAdd:
    case BinaryKind::kSub:
    case BinaryKind::kMul:
    case BinaryKind::kDiv:
    case BinaryKind::kMaximum:
    case BinaryKind::kMinimum:
    case BinaryKind::kReluBackward:
    case BinaryKind::kThresholdBackward:
    case BinaryKind::kSigmoidBackward:
    case BinaryKind::kTanhBackward:
    case BinaryKind::kLerp:
      return kGrain;
    default:
      return kCostlyGrain;
  }
}

// The number of elements if all views are f32, row-major and of the same sizes, else -1: what runs
// without any planning.
template <typename... Views>
int64_t plain_f32_numel(const TensorView& out, const Views&... in) {
  const size_t n = out.sizes.size();
  if (out.dtype != DType::kF32 || ((in.dtype != DType::kF32 || in.sizes.size() != n) || ...)) {
    return -1;
  }
  int64_t step = 1;
  for (size_t i = n; i-- > 0;) {
    const int64_t size = out.sizes[i];
    if (((in.sizes[i] != size) || ...)) return -1;
    if (size == 1) continue;
    if (out.strides[i] != step || ((in.strides[i] != step) || ...)) return -1;
    step *= size;
  }
  return step;
}

void run_contiguous(BlockFn fn, float* out, std::array<const float*, 3> in, int64_t count,
                    const PointwiseParams& params, int64_t grain) {
  if (count <= grain) {
    const void* pointers[] = {in[0], in[1], in[2]};
    if (count > 0) fn(out, pointers, count, params);
    return;
  }
  parallel_tiles(count, grain, [&](int64_t begin, int64_t end) {
    const void* pointers[3];
    for (size_t k = 0; k < 3; ++k) pointers[k] = in[k] == nullptr ? nullptr : in[k] + begin;
    fn(out + begin, pointers, end - begin, params);
  });
}

// One operand of the general path: read block by block, or one value repeated.
struct Input {
  BlockReader reader;
  const void* repeated = nullptr;
};

struct Problem {
  BlockFn fn;
  ComputeType type;
  const TensorView& out;
  std::array<const TensorView*, 3> in;  // null beyond the kind's arity
  const PointwiseParams& params;
  int64_t grain;
  const char* family;
};

void check_sizes(const Problem& problem) {
  for (const TensorView* view : problem.in) {
    if (view == nullptr) continue;
    MUSTER_CHECK(std::ranges::equal(view->sizes, problem.out.sizes), ErrorCode::kInvalidArgument,
                 "{}: inputs must have the sizes of the output; got {} and {}", problem.family,
                 to_string(view->sizes), to_string(problem.out.sizes));
  }
}

void run_tile(const Problem& problem, const LoopNest& nest, const BlockWriter& writer,
              const std::array<Input, 3>& inputs, size_t arity, int64_t begin, int64_t end) {
  BlockBuffer buffers[4];
  for_each_block(nest, begin, end, [&](int64_t at, int64_t count) {
    const void* pointers[3] = {};
    for (size_t k = 0; k < arity; ++k) {
      pointers[k] = inputs[k].repeated != nullptr
                        ? inputs[k].repeated
                        : inputs[k].reader.read(at, count, buffers[k].bytes);
    }
    void* target = writer.target(at, count, buffers[3].bytes);
    problem.fn(target, pointers, count, problem.params);
    writer.write(at, count, target);
  });
}

// Any layout, any dtype.
void run_general(const Problem& problem) {
  check_sizes(problem);
  const Dims strides[] = {problem.out.strides,
                          problem.in[0] != nullptr ? problem.in[0]->strides : Dims(),
                          problem.in[1] != nullptr ? problem.in[1]->strides : Dims(),
                          problem.in[2] != nullptr ? problem.in[2]->strides : Dims()};
  const auto arity = static_cast<size_t>(
      std::ranges::count_if(problem.in, [](const TensorView* view) { return view != nullptr; }));
  const LoopNest nest(problem.out.sizes, std::span(strides, arity + 1), LoopNest::Order::kByStride);
  if (nest.numel == 0) return;

  BlockBuffer repeated[3];
  std::array<Input, 3> inputs;
  for (size_t k = 0; k < arity; ++k) {
    const TensorView& view = *problem.in[k];
    if (nest.is_broadcast(static_cast<int>(k) + 1)) {
      const int64_t count = std::min(nest.numel, kBlockNumel);
      block_loader(view.dtype, problem.type)(repeated[k].bytes, view.data, 0, count);
      inputs[k].repeated = repeated[k].bytes;
    } else {
      inputs[k].reader = BlockReader(view, nest, static_cast<int>(k) + 1, problem.type);
    }
  }
  const BlockWriter writer(problem.out, nest, 0, problem.type);
  parallel_tiles(nest.numel, problem.grain, [&](int64_t begin, int64_t end) {
    run_tile(problem, nest, writer, inputs, arity, begin, end);
  });
}

BlockFn defined_or_throw(BlockFn fn, const char* family, int kind, ComputeType type) {
  MUSTER_CHECK(fn != nullptr, ErrorCode::kUnimplemented,
               "{} kernel: kind {} must be defined for the compute dtype; got {}", family, kind,
               dtype_of_compute(type));
  return fn;
}

// Kinds that another one computes in that dtype: bool has no ~ of its own, as both values would
// give nonzero; an integer hardtanh is a clamp.
UnaryKind kind_for(UnaryKind kind, DType dtype) {
  if (kind == UnaryKind::kBitwiseNot && dtype == DType::kBool) return UnaryKind::kLogicalNot;
  if (kind == UnaryKind::kHardtanh && !is_floating(dtype)) return UnaryKind::kClamp;
  return kind;
}

// Strides of a view that repeats one element.
Dims zero_strides(size_t ndim) {
  static constexpr int64_t kZeros[64] = {};
  MUSTER_CHECK(ndim <= std::size(kZeros), ErrorCode::kUnimplemented,
               "pointwise: at most {} dims; got {}", std::size(kZeros), ndim);
  return {kZeros, ndim};
}

// A number in memory, in the dtype that the compute type is stored in.
struct StoredNumber {
  union {
    float f32;
    double f64;
    int64_t i64;
    int32_t i32;
  };
  DType dtype;

  StoredNumber(const Scalar& number, ComputeType type) : i64(0), dtype(dtype_of_compute(type)) {
    const PointwiseParams params{.a = number};
    switch (type) {
      case ComputeType::kF32:
        f32 = Numbers<float>(params).a;
        break;
      case ComputeType::kF64:
        f64 = Numbers<double>(params).a;
        break;
      case ComputeType::kI64:
        i64 = Numbers<int64_t>(params).a;
        break;
      case ComputeType::kI32:
        i32 = Numbers<int32_t>(params).a;
        break;
    }
  }
};

// Powers by the exponents that models use, as the same few multiplications PyTorch does.
std::optional<UnaryKind> unary_for_power(double exponent) {
  if (exponent == 2.0) return UnaryKind::kSquare;
  if (exponent == 0.5) return UnaryKind::kSqrt;
  if (exponent == -0.5) return UnaryKind::kRsqrt;
  if (exponent == -1.0) return UnaryKind::kReciprocal;
  return std::nullopt;
}

// Contiguous f32 with one number: no planning, the number repeated in a small block.
void run_f32_with_number(BlockFn fn, float* out, const float* in, float number, bool number_first,
                         int64_t count, const PointwiseParams& params, int64_t grain) {
  alignas(64) float repeated[kBlockNumel];
  std::fill_n(repeated, std::min(count, kBlockNumel), number);
  parallel_tiles(count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kBlockNumel) {
      const void* pointers[2] = {in + at, repeated};
      if (number_first) std::swap(pointers[0], pointers[1]);
      fn(out + at, pointers, std::min(kBlockNumel, end - at), params);
    }
  });
}
}  // namespace

void unary(UnaryKind kind, const TensorView& out, const TensorView& in,
           const PointwiseParams& params) {
  kind = kind_for(kind, in.dtype);
  const int64_t grain = grain_of(kind);
  const ComputeType type = compute_type(in.dtype);
  const BlockFn fn =
      defined_or_throw(tables().unary[static_cast<int>(type)][static_cast<int>(kind)], "unary",
                       static_cast<int>(kind), type);
  if (const int64_t count = plain_f32_numel(out, in); count >= 0) {
    run_contiguous(fn, out.as<float>(), {in.as<const float>(), nullptr, nullptr}, count, params,
                   grain);
    return;
  }
  run_general({fn, type, out, {&in, nullptr, nullptr}, params, grain, "unary"});
}

void binary_as(DType compute, BinaryKind kind, const TensorView& out, const TensorView& a,
               const TensorView& b, const PointwiseParams& params) {
  const ComputeType type = compute_type(compute);
  const BlockFn fn =
      defined_or_throw(tables().binary[static_cast<int>(type)][static_cast<int>(kind)], "binary",
                       static_cast<int>(kind), type);
  run_general({fn, type, out, {&a, &b, nullptr}, params, grain_of(kind), "binary"});
}

void binary(BinaryKind kind, const TensorView& out, const TensorView& a, const TensorView& b,
            const PointwiseParams& params) {
  if (const int64_t count = plain_f32_numel(out, a, b); count >= 0) {
    const BlockFn fn = defined_or_throw(tables().binary[0][static_cast<int>(kind)], "binary",
                                        static_cast<int>(kind), ComputeType::kF32);
    run_contiguous(fn, out.as<float>(), {a.as<const float>(), b.as<const float>(), nullptr}, count,
                   params, grain_of(kind));
    return;
  }
  binary_as(promote_types(a.dtype, b.dtype), kind, out, a, b, params);
}

void binary_scalar(BinaryKind kind, const TensorView& out, const TensorView& in, Scalar number,
                   bool number_first, const PointwiseParams& params) {
  const DType compute = number.is_floating() && !is_floating(in.dtype) ? kDefaultDType : in.dtype;
  const ComputeType type = compute_type(compute);
  if (kind == BinaryKind::kPow && !number_first && is_floating(compute) && is_floating(in.dtype)) {
    if (const auto simpler = unary_for_power(number.to_double())) return unary(*simpler, out, in);
  }
  const StoredNumber stored(number, type);
  const int64_t count = type == ComputeType::kF32 ? plain_f32_numel(out, in) : -1;
  if (count >= 0) {
    const BlockFn fn = defined_or_throw(tables().binary[0][static_cast<int>(kind)], "binary",
                                        static_cast<int>(kind), type);
    run_f32_with_number(fn, out.as<float>(), in.as<const float>(), stored.f32, number_first, count,
                        params, grain_of(kind));
    return;
  }
  const TensorView number_view(const_cast<int64_t*>(&stored.i64), stored.dtype, out.sizes,
                               zero_strides(out.ndim()));
  binary_as(compute, kind, out, number_first ? number_view : in, number_first ? in : number_view,
            params);
}

void ternary(TernaryKind kind, const TensorView& out, const TensorView& a, const TensorView& b,
             const TensorView& c, const PointwiseParams& params) {
  DType compute = promote_types(b.dtype, c.dtype);
  if (kind != TernaryKind::kWhere) compute = promote_types(compute, a.dtype);
  const ComputeType type = compute_type(compute);
  const BlockFn fn =
      defined_or_throw(tables().ternary[static_cast<int>(type)][static_cast<int>(kind)], "ternary",
                       static_cast<int>(kind), type);
  if (const int64_t count = plain_f32_numel(out, a, b, c); count >= 0) {
    run_contiguous(fn, out.as<float>(),
                   {a.as<const float>(), b.as<const float>(), c.as<const float>()}, count, params,
                   kGrain);
    return;
  }
  run_general({fn, type, out, {&a, &b, &c}, params, kGrain, "ternary"});
}

void masked_fill(const TensorView& out, const TensorView& in, const TensorView& mask,
                 Scalar value) {
  const StoredNumber stored(value, compute_type(in.dtype));
  const TensorView number(const_cast<int64_t*>(&stored.i64), stored.dtype, out.sizes,
                          zero_strides(out.ndim()));
  const ComputeType type = compute_type(in.dtype);
  const BlockFn fn =
      tables().ternary[static_cast<int>(type)][static_cast<int>(TernaryKind::kWhere)];
  run_general({fn, type, out, {&mask, &number, &in}, {}, kGrain, "masked_fill"});
}
}  // namespace muster::kernels::cpu
