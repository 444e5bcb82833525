// Variance: moments of blocks, merged along a fixed tree.
// @source Chan, Golub, LeVeque 1979: updating formulae for sample variances
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/kernels/cpu/reduce.h"
#include "core/kernels/cpu/reduce_ops.h"
#include "core/kernels/cpu/reduce_plan.h"
#include "core/kernels/cpu/workspace.h"
#include "core/kernels/parallel.h"

namespace muster::kernels::cpu {
namespace {
struct Moments {
  double count;
  double mean;
  double m2;  // sum of squared distances from the mean
};

void merge(Moments& a, const Moments& b) {
  if (b.count == 0) return;
  const double count = a.count + b.count;
  const double distance = b.mean - a.mean;
  a.mean += distance * (b.count / count);
  a.m2 += b.m2 + distance * distance * (a.count * b.count / count);
  a.count = count;
}

double tree_sum(double* lanes) {
  for (int64_t step = kLanes / 2; step > 0; step /= 2) {
    for (int64_t j = 0; j < step; ++j) lanes[j] += lanes[j + step];
  }
  return lanes[0];
}

Moments moments_of_block(const void* block, ComputeType type, int64_t count) {
  const ReduceTables& tables = reduce_tables();
  const bool is_f32 = type == ComputeType::kF32;
  const ReduceOps& ops =
      reduce_ops(ReduceKind::kSum, is_f32 ? ReduceInput::kF32 : ReduceInput::kF64);
  Moments moments{static_cast<double>(count), 0, 0};
  moments.mean = ops.run(block, count).real / moments.count;
  double squares[kLanes] = {};
  if (is_f32) {
    tables.squared_distances_f32(squares, static_cast<const float*>(block), count, moments.mean);
  } else {
    tables.squared_distances_f64(squares, static_cast<const double*>(block), count, moments.mean);
  }
  moments.m2 = tree_sum(squares);
  return moments;
}

Moments moments_of_chunk(const BlockReader& reader, ComputeType type, int64_t base, int64_t begin,
                         int64_t end) {
  constexpr int64_t kBlocks = kReduceChunk / kBlockNumel;
  std::array<Moments, kBlocks> blocks;
  BlockBuffer buffer;
  int64_t used = 0;
  for (int64_t at = begin; at < end; at += kBlockNumel) {
    const int64_t count = std::min(kBlockNumel, end - at);
    blocks[static_cast<size_t>(used++)] =
        moments_of_block(reader.read(at, count, buffer.bytes, base), type, count);
  }
  if (used == 0) return {0, 0, 0};
  combine_in_tree(blocks.data(), used, merge);
  return blocks[0];
}

void moments_by_rows(const ReducePlan& plan, const TensorView& in, ComputeType type,
                     Moments* results) {
  const BlockReader reader(in, plan.elements, 0, type);
  const int64_t chunks = std::max<int64_t>(1, num_tiles(plan.slice_numel, kReduceChunk));
  const int64_t chunk_numel = std::clamp<int64_t>(plan.slice_numel, 1, kReduceChunk);
  const Workspace<Moments> more(plan.num_slices * chunks);
  parallel_tiles(plan.num_slices * chunks, std::max<int64_t>(1, kReduceGrain / chunk_numel),
                 [&](int64_t first, int64_t last) {
                   for (int64_t k = first; k < last; ++k) {
                     const int64_t begin = k % chunks * kReduceChunk;
                     more[k] =
                         moments_of_chunk(reader, type, plan.slices.offset_of(0, k / chunks), begin,
                                          std::min(plan.slice_numel, begin + kReduceChunk));
                   }
                 });
  for (int64_t slice = 0; slice < plan.num_slices; ++slice) {
    combine_in_tree(more.data() + slice * chunks, chunks, merge);
    results[slice] = more[slice * chunks];
  }
}

// Moments of `rows` rows, for up to kBlockNumel slices side by side.
void moments_of_columns(const ReducePlan& plan, const TensorView& in, ComputeType type,
                        int64_t first_slice, int64_t count, int64_t row_begin, int64_t row_end,
                        Moments* into) {
  const ReduceTables& tables = reduce_tables();
  const int64_t base = plan.slices.offset_of(0, first_slice);
  const int64_t step = plan.slices.strides[0][0];
  const int64_t item = item_nbytes(in.dtype);
  const bool direct = step == 1 && in.dtype == dtype_of_compute(type);
  const LoadBlock load = block_loader(in.dtype, type);
  double mean[kBlockNumel] = {};
  double m2[kBlockNumel] = {};
  double row = 0;
  BlockBuffer buffer;
  for_each_row(plan.elements, 0, row_begin, row_end, [&](int64_t offset, int64_t rows) {
    for (int64_t k = 0; k < rows; ++k) {
      const int64_t at = base + offset + k * plan.elements.inner_stride(0);
      const void* x = in.as<const std::byte>() + at * item;
      if (!direct) {
        load(buffer.bytes, x, step, count);
        x = buffer.bytes;
      }
      row += 1;
      if (type == ComputeType::kF32) {
        tables.welford_f32(mean, m2, static_cast<const float*>(x), count, row);
      } else {
        tables.welford_f64(mean, m2, static_cast<const double*>(x), count, row);
      }
    }
  });
  for (int64_t i = 0; i < count; ++i) into[i] = {row, mean[i], m2[i]};
}

void moments_by_columns(const ReducePlan& plan, const TensorView& in, ComputeType type,
                        Moments* results) {
  const int64_t width = plan.slices.sizes[0];
  const int64_t tiles = num_tiles(width, kBlockNumel);
  const int64_t outer = plan.num_slices / width;
  const int64_t chunks = std::max<int64_t>(1, num_tiles(plan.slice_numel, kColumnRows));
  const Workspace<Moments> more(plan.num_slices * chunks);
  const int64_t tile_numel =
      std::min(width, kBlockNumel) * std::clamp<int64_t>(plan.slice_numel, 1, kColumnRows);
  parallel_tiles(chunks * outer * tiles, std::max<int64_t>(1, kReduceGrain / tile_numel),
                 [&](int64_t first, int64_t last) {
                   for (int64_t k = first; k < last; ++k) {
                     const int64_t chunk = k / (outer * tiles);
                     const int64_t column = k % tiles * kBlockNumel;
                     const int64_t slice = k / tiles % outer * width + column;
                     const int64_t row_begin = chunk * kColumnRows;
                     moments_of_columns(plan, in, type, slice,
                                        std::min(kBlockNumel, width - column), row_begin,
                                        std::min(plan.slice_numel, row_begin + kColumnRows),
                                        more.data() + chunk * plan.num_slices + slice);
                   }
                 });
  for (int64_t step = 1; step < chunks; step *= 2) {
    for (int64_t c = 0; c + step < chunks; c += 2 * step) {
      for (int64_t i = 0; i < plan.num_slices; ++i) {
        merge(more[c * plan.num_slices + i], more[(c + step) * plan.num_slices + i]);
      }
    }
  }
  std::copy_n(more.data(), plan.num_slices, results);
}

void store_column(const TensorView& out, const ReducePlan& plan, int operand,
                  const double* values) {
  const StoreBlock store = block_storer(ComputeType::kF64, out.dtype);
  int64_t done = 0;
  for_each_row(plan.slices, operand, 0, plan.num_slices, [&](int64_t offset, int64_t count) {
    store(out.as<std::byte>() + offset * item_nbytes(out.dtype), plan.slices.inner_stride(operand),
          values + done, count);
    done += count;
  });
}
}  // namespace

void var_mean(const TensorView& var, const TensorView& mean, const TensorView& in, Dims dims,
              double correction, bool root) {
  const TensorView* outs[] = {&var, &mean};
  const ReducePlan plan = plan_reduction("var", in, dims, outs, false);
  if (plan.num_slices == 0) return;
  const ComputeType type =
      compute_type(in.dtype) == ComputeType::kF32 ? ComputeType::kF32 : ComputeType::kF64;
  const Workspace<Moments> moments(plan.num_slices);
  if (plan.by_columns) {
    moments_by_columns(plan, in, type, moments.data());
  } else {
    moments_by_rows(plan, in, type, moments.data());
  }
  const Workspace<double> values(plan.num_slices);
  const auto numel = static_cast<double>(plan.slice_numel);
  for (int64_t i = 0; i < plan.num_slices; ++i) {
    const double variance = moments[i].m2 / std::max(0.0, numel - correction);
    values[i] = root ? std::sqrt(variance) : variance;
  }
  store_column(var, plan, 1, values.data());
  if (mean.data == nullptr) return;
  for (int64_t i = 0; i < plan.num_slices; ++i) {
    values[i] = plan.slice_numel == 0 ? std::numeric_limits<double>::quiet_NaN() : moments[i].mean;
  }
  store_column(mean, plan, 2, values.data());
}
}  // namespace muster::kernels::cpu
