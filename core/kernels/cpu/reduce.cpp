#include "core/kernels/cpu/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/kernels/cpu/pointwise.h"
#include "core/kernels/cpu/reduce_ops.h"
#include "core/kernels/cpu/reduce_plan.h"
#include "core/kernels/cpu/workspace.h"
#include "core/kernels/parallel.h"

namespace muster::kernels::cpu {
namespace {
// Changes a block of inputs before it is reduced; `slice` is the linear index of its slice.
struct BlockMap {
  void (*apply)(const void* context, int64_t slice, void* block, int64_t count) = nullptr;
  const void* context = nullptr;
};

struct Reduction {
  ReduceOps ops;
  ComputeType type;
  const TensorView& in;
  BlockMap map;
};

ComputeType reduce_type(DType dtype) {
  const ComputeType type = compute_type(dtype);
  return type == ComputeType::kI32 ? ComputeType::kI64 : type;
}
ReduceInput input_of(ComputeType type) {
  switch (type) {
    case ComputeType::kF32:
      return ReduceInput::kF32;
    case ComputeType::kF64:
      return ReduceInput::kF64;
    default:
      return ReduceInput::kI64;
  }
}

// One partial result of elements [begin, end) of a slice whose element 0 lies at `base`.
Partial reduce_chunk(const Reduction& r, const BlockReader& reader, int64_t slice, int64_t base,
                     int64_t begin, int64_t end, bool whole) {
  if (whole && r.map.apply == nullptr) {
    return r.ops.run(reader.read(begin, end - begin, nullptr, base), end - begin);
  }
  Partial lanes[kLanes];
  std::fill_n(lanes, kLanes, r.ops.identity);
  BlockBuffer buffer;
  const int64_t item = item_nbytes(dtype_of_compute(r.type));
  for (int64_t at = begin; at < end; at += kBlockNumel) {
    const int64_t count = std::min(kBlockNumel, end - at);
    const void* block = reader.read(at, count, buffer.bytes, base);
    if (r.map.apply != nullptr) {
      if (block != buffer.bytes) {
        std::copy_n(static_cast<const std::byte*>(block), count * item, buffer.bytes);
      }
      r.map.apply(r.map.context, slice, buffer.bytes, count);
      block = buffer.bytes;
    }
    r.ops.rows(lanes, block, count);
  }
  return combine_lanes(r.ops, lanes);
}

// Slice after slice; long slices in chunks, combined in a tree that depends on their length only.
void reduce_rows(const Reduction& r, const ReducePlan& plan, Partial* results) {
  const BlockReader reader(r.in, plan.elements, 0, r.type);
  const bool whole = r.in.dtype == dtype_of_compute(r.type) && plan.elements.is_contiguous(0);
  const int64_t chunks = std::max<int64_t>(1, num_tiles(plan.slice_numel, kReduceChunk));
  const Workspace<Partial> more(chunks > 1 ? plan.num_slices * chunks : 0);
  Partial* partials = chunks > 1 ? more.data() : results;
  const int64_t chunk_numel = std::clamp<int64_t>(plan.slice_numel, 1, kReduceChunk);
  parallel_tiles(plan.num_slices * chunks, std::max<int64_t>(1, kReduceGrain / chunk_numel),
                 [&](int64_t first, int64_t last) {
                   for (int64_t k = first; k < last; ++k) {
                     const int64_t slice = k / chunks;
                     const int64_t begin = k % chunks * kReduceChunk;
                     const int64_t end = std::min(plan.slice_numel, begin + kReduceChunk);
                     partials[k] = reduce_chunk(r, reader, slice, plan.slices.offset_of(0, slice),
                                                begin, end, whole);
                   }
                 });
  if (chunks == 1) return;
  for (int64_t slice = 0; slice < plan.num_slices; ++slice) {
    combine_in_tree(partials + slice * chunks, chunks,
                    [&](Partial& a, const Partial& b) { r.ops.combine(&a, &b, 1); });
    results[slice] = partials[slice * chunks];
  }
}

// Rows of up to kBlockNumel slices that lie side by side.
void reduce_column_tile(const Reduction& r, const ReducePlan& plan, int64_t first_slice,
                        int64_t count, int64_t row_begin, int64_t row_end, Partial* into) {
  std::fill_n(into, count, r.ops.identity);
  const int64_t base = plan.slices.offset_of(0, first_slice);
  const int64_t step = plan.slices.strides[0][0];
  const int64_t item = item_nbytes(r.in.dtype);
  const bool direct = step == 1 && r.in.dtype == dtype_of_compute(r.type);
  const LoadBlock load = block_loader(r.in.dtype, r.type);
  const auto* data = r.in.as<const std::byte>();
  BlockBuffer buffer;
  const int64_t row_step = plan.elements.inner_stride(0);
  for_each_row(plan.elements, 0, row_begin, row_end, [&](int64_t offset, int64_t rows) {
    const std::byte* x = data + (base + offset) * item;
    if (direct) {
      r.ops.columns(into, x, count, rows, row_step);
      return;
    }
    for (int64_t row = 0; row < rows; ++row) {
      load(buffer.bytes, x + row * row_step * item, step, count);
      r.ops.columns(into, buffer.bytes, count, 1, 0);
    }
  });
}

void reduce_columns(const Reduction& r, const ReducePlan& plan, Partial* results) {
  const int64_t width = plan.slices.sizes[0];
  const int64_t tiles = num_tiles(width, kBlockNumel);
  const int64_t outer = plan.num_slices / width;
  const int64_t chunks = std::max<int64_t>(1, num_tiles(plan.slice_numel, kColumnRows));
  const Workspace<Partial> more(chunks > 1 ? plan.num_slices * chunks : 0);
  Partial* partials = chunks > 1 ? more.data() : results;
  const int64_t tile_numel =
      std::min(width, kBlockNumel) * std::clamp<int64_t>(plan.slice_numel, 1, kColumnRows);
  // Partial results of chunk c are the slices' results of c, all slices of one chunk together.
  parallel_tiles(chunks * outer * tiles, std::max<int64_t>(1, kReduceGrain / tile_numel),
                 [&](int64_t first, int64_t last) {
                   for (int64_t k = first; k < last; ++k) {
                     const int64_t chunk = k / (outer * tiles);
                     const int64_t column = k % tiles * kBlockNumel;
                     const int64_t slice = k / tiles % outer * width + column;
                     const int64_t row_begin = chunk * kColumnRows;
                     reduce_column_tile(r, plan, slice, std::min(kBlockNumel, width - column),
                                        row_begin,
                                        std::min(plan.slice_numel, row_begin + kColumnRows),
                                        partials + chunk * plan.num_slices + slice);
                   }
                 });
  if (chunks == 1) return;
  parallel_tiles(plan.num_slices, kBlockNumel, [&](int64_t begin, int64_t end) {
    for (int64_t step = 1; step < chunks; step *= 2) {
      for (int64_t c = 0; c + step < chunks; c += 2 * step) {
        r.ops.combine(partials + c * plan.num_slices + begin,
                      partials + (c + step) * plan.num_slices + begin, end - begin);
      }
    }
    std::copy(partials + begin, partials + end, results + begin);
  });
}

void run(const Reduction& r, const ReducePlan& plan, Partial* results) {
  if (plan.by_columns && r.map.apply == nullptr) {
    reduce_columns(r, plan, results);
  } else {
    reduce_rows(r, plan, results);
  }
}

// results[slice] to the output, converted.
void store_results(const TensorView& out, const ReducePlan& plan, const Partial* results,
                   bool is_real) {
  const StoreBlock store = block_storer(is_real ? ComputeType::kF64 : ComputeType::kI64, out.dtype);
  const int64_t item = item_nbytes(out.dtype);
  int64_t done = 0;
  for_each_row(plan.slices, 1, 0, plan.num_slices, [&](int64_t offset, int64_t count) {
    store(out.as<std::byte>() + offset * item, plan.slices.inner_stride(1), results + done, count);
    done += count;
  });
}

void finish(ReduceKind kind, Partial* results, int64_t count, int64_t slice_numel, bool* is_real) {
  if (kind == ReduceKind::kMean) {
    for (int64_t i = 0; i < count; ++i) {
      const double sum = *is_real ? results[i].real : static_cast<double>(results[i].integer);
      results[i].real = sum / static_cast<double>(slice_numel);
    }
    *is_real = true;
  } else if (kind == ReduceKind::kNorm2) {
    for (int64_t i = 0; i < count; ++i) {
      results[i].real =
          std::sqrt(*is_real ? results[i].real : static_cast<double>(results[i].integer));
    }
    *is_real = true;
  }
}

// A handful of slices without going to the allocator.
class Results {
 public:
  explicit Results(int64_t count) : many_(count > kInline ? count : 0) {
    data_ = count > kInline ? many_.data() : few_;
  }
  Partial* data() noexcept { return data_; }

 private:
  static constexpr int64_t kInline = 64;
  Partial few_[kInline];
  Workspace<Partial> many_;
  Partial* data_;
};

// log(sum(exp(x - shift))) + shift, with the slice's largest element as shift.
void logsumexp(const TensorView& out, const TensorView& in, Dims dims) {
  MUSTER_CHECK(is_floating(in.dtype), ErrorCode::kUnimplemented,
               "logsumexp: the input must be floating; got {}", in.dtype);
  const TensorView* outs[] = {&out};
  const ReducePlan plan = plan_reduction("logsumexp", in, dims, outs, false);
  const ComputeType type = reduce_type(in.dtype);
  Results shifts(plan.num_slices);
  Results sums(plan.num_slices);
  const ReduceOps& max_ops = reduce_ops(ReduceKind::kAmax, input_of(type));
  reduce_rows({max_ops, type, in, {}}, plan, shifts.data());
  for (int64_t i = 0; i < plan.num_slices; ++i) {
    // An infinite maximum is no shift: inf - inf would be nan.
    if (std::isinf(shifts.data()[i].real)) shifts.data()[i].real = 0;
  }
  struct Context {
    const Partial* shifts;
    ComputeType type;
  };
  const Context context{shifts.data(), type};
  const BlockMap map{[](const void* raw, int64_t slice, void* block, int64_t count) {
                       const Context& c = *static_cast<const Context*>(raw);
                       const int64_t size[] = {count};
                       const int64_t stride[] = {1};
                       const TensorView view(block, dtype_of_compute(c.type), size, stride);
                       binary_scalar(BinaryKind::kSub, view, view, c.shifts[slice].real);
                       unary(UnaryKind::kExp, view, view);
                     },
                     &context};
  reduce_rows({reduce_ops(ReduceKind::kSum, input_of(type)), type, in, map}, plan, sums.data());
  for (int64_t i = 0; i < plan.num_slices; ++i) {
    sums.data()[i].real = std::log(sums.data()[i].real) + shifts.data()[i].real;
  }
  store_results(out, plan, sums.data(), true);
}
}  // namespace

void reduce(ReduceKind kind, const TensorView& out, const TensorView& in, Dims dims) {
  if (kind == ReduceKind::kLogsumexp) {
    logsumexp(out, in, dims);
    return;
  }
  const TensorView* outs[] = {&out};
  const ReducePlan plan = plan_reduction("reduce", in, dims, outs, false);
  if (plan.num_slices == 0) return;
  MUSTER_CHECK(plan.slice_numel > 0 || (kind != ReduceKind::kAmax && kind != ReduceKind::kAmin),
               ErrorCode::kInvalidArgument,
               "amax, amin: a reduced slice must not be empty; got sizes {} and dims {}",
               to_string(in.sizes), to_string(dims));
  const ComputeType type = reduce_type(in.dtype);
  const ReduceOps& ops = reduce_ops(kind, input_of(type));
  Results results(plan.num_slices);
  run({ops, type, in, {}}, plan, results.data());
  bool is_real = ops.is_real;
  finish(kind, results.data(), plan.num_slices, plan.slice_numel, &is_real);
  store_results(out, plan, results.data(), is_real);
}

void vector_norm(const TensorView& out, const TensorView& in, double p, Dims dims) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (p == 0) return reduce(ReduceKind::kCountNonzero, out, in, dims);
  if (p == 1) return reduce(ReduceKind::kNorm1, out, in, dims);
  if (p == 2) return reduce(ReduceKind::kNorm2, out, in, dims);
  if (p == kInfinity) return reduce(ReduceKind::kNormInf, out, in, dims);

  const TensorView* outs[] = {&out};
  const ReducePlan plan = plan_reduction("vector_norm", in, dims, outs, false);
  const bool smallest = p == -kInfinity;
  MUSTER_CHECK(plan.slice_numel > 0 || p > 0 || plan.num_slices == 0, ErrorCode::kInvalidArgument,
               "vector_norm: a slice must not be empty for p < 0; got sizes {}, dims {} and p {}",
               to_string(in.sizes), to_string(dims), p);
  const BlockMap map{[](const void* raw, int64_t, void* block, int64_t count) {
                       const double exponent = *static_cast<const double*>(raw);
                       double* x = static_cast<double*>(block);
                       for (int64_t i = 0; i < count; ++i) {
                         const double size = std::abs(x[i]);
                         x[i] = std::isinf(exponent) ? size : std::pow(size, exponent);
                       }
                     },
                     &p};
  const ReduceKind kind = smallest ? ReduceKind::kAmin : ReduceKind::kSum;
  Results results(plan.num_slices);
  reduce_rows({reduce_ops(kind, ReduceInput::kF64), ComputeType::kF64, in, map}, plan,
              results.data());
  for (int64_t i = 0; i < plan.num_slices && !smallest; ++i) {
    results.data()[i].real = std::pow(results.data()[i].real, 1.0 / p);
  }
  store_results(out, plan, results.data(), true);
}
}  // namespace muster::kernels::cpu
