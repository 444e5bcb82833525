// Extremes with their places: max(dim), argmax.
#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/kernels/cpu/reduce.h"
#include "core/kernels/cpu/reduce_ops.h"
#include "core/kernels/cpu/reduce_plan.h"
#include "core/kernels/cpu/workspace.h"
#include "core/kernels/parallel.h"

namespace muster::kernels::cpu {
namespace {
struct Best {
  Partial value;
  int64_t index;
};

struct Search {
  bool largest;
  ComputeType type;
  const TensorView& in;

  [[nodiscard]] bool is_real() const { return type != ComputeType::kI64; }
  // True when a later value replaces an earlier one; among equals the earlier stays.
  [[nodiscard]] bool beats(const Partial& later, const Partial& earlier) const {
    if (!is_real()) {
      return largest ? later.integer > earlier.integer : later.integer < earlier.integer;
    }
    if (std::isnan(earlier.real)) return false;
    return std::isnan(later.real) ||
           (largest ? later.real > earlier.real : later.real < earlier.real);
  }
  void merge(Best& earlier, const Best& later) const {
    if (beats(later.value, earlier.value)) earlier = later;
  }
};

template <typename Body>
void visit_input(ComputeType type, Body&& body) {
  switch (type) {
    case ComputeType::kF32:
      return body(float{});
    case ComputeType::kF64:
      return body(double{});
    default:
      return body(int64_t{});
  }
}

template <typename T>
Partial partial_of(T value) {
  Partial partial;
  if constexpr (std::is_floating_point_v<T>) {
    partial.real = static_cast<double>(value);
  } else {
    partial.integer = value;
  }
  return partial;
}

template <typename T>
int64_t first_place_of(const T* x, int64_t count, const Partial& value) {
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      if (static_cast<double>(x[i]) == value.real) return i;
      if (x[i] != x[i] && std::isnan(value.real)) return i;
    } else {
      if (x[i] == value.integer) return i;
    }
  }
  return 0;
}

// The extreme of a block by the fast reduction first; its place only if it beats what came before.
template <typename T>
Best best_of_chunk(const Search& search, const BlockReader& reader, int64_t base, int64_t begin,
                   int64_t end) {
  const ReduceOps& ops = reduce_ops(search.largest ? ReduceKind::kAmax : ReduceKind::kAmin,
                                    std::is_same_v<T, float>    ? ReduceInput::kF32
                                    : std::is_same_v<T, double> ? ReduceInput::kF64
                                                                : ReduceInput::kI64);
  Best best{};
  BlockBuffer buffer;
  for (int64_t at = begin; at < end; at += kBlockNumel) {
    const int64_t count = std::min(kBlockNumel, end - at);
    const T* x = static_cast<const T*>(reader.read(at, count, buffer.bytes, base));
    const Partial extreme = ops.run(x, count);
    if (at == begin || search.beats(extreme, best.value)) {
      best = {extreme, at + first_place_of(x, count, extreme)};
    }
  }
  return best;
}

void search_rows(const Search& search, const ReducePlan& plan, Best* results) {
  const BlockReader reader(search.in, plan.elements, 0, search.type);
  const int64_t chunks = num_tiles(plan.slice_numel, kReduceChunk);
  const Workspace<Best> more(plan.num_slices * chunks);
  parallel_tiles(plan.num_slices * chunks,
                 std::max<int64_t>(1, kReduceGrain / std::min(plan.slice_numel, kReduceChunk)),
                 [&](int64_t first, int64_t last) {
                   for (int64_t k = first; k < last; ++k) {
                     const int64_t base = plan.slices.offset_of(0, k / chunks);
                     const int64_t begin = k % chunks * kReduceChunk;
                     const int64_t end = std::min(plan.slice_numel, begin + kReduceChunk);
                     visit_input(search.type, [&](auto value) {
                       more[k] = best_of_chunk<decltype(value)>(search, reader, base, begin, end);
                     });
                   }
                 });
  for (int64_t slice = 0; slice < plan.num_slices; ++slice) {
    combine_in_tree(more.data() + slice * chunks, chunks,
                    [&](Best& a, const Best& b) { search.merge(a, b); });
    results[slice] = more[slice * chunks];
  }
}

// All rows of up to kBlockNumel slices that lie side by side.
template <typename T>
void search_column_tile(const Search& search, const ReducePlan& plan, int64_t first_slice,
                        int64_t count, Best* results) {
  const int64_t base = plan.slices.offset_of(0, first_slice);
  const int64_t step = plan.slices.strides[0][0];
  const int64_t item = item_nbytes(search.in.dtype);
  const LoadBlock load = block_loader(search.in.dtype, search.type);
  T best[kBlockNumel];
  int64_t places[kBlockNumel] = {};
  T x[kBlockNumel];
  int64_t row = 0;
  for_each_row(plan.elements, 0, 0, plan.slice_numel, [&](int64_t offset, int64_t rows) {
    for (int64_t k = 0; k < rows; ++k, ++row) {
      const int64_t at = base + offset + k * plan.elements.inner_stride(0);
      load(x, search.in.as<const std::byte>() + at * item, step, count);
      if (row == 0) {
        std::copy_n(x, count, best);
        continue;
      }
      for (int64_t i = 0; i < count; ++i) {
        const bool better = search.largest ? x[i] > best[i] : x[i] < best[i];
        if (better || (x[i] != x[i] && best[i] == best[i])) {
          best[i] = x[i];
          places[i] = row;
        }
      }
    }
  });
  for (int64_t i = 0; i < count; ++i) results[i] = {partial_of(best[i]), places[i]};
}

void search_columns(const Search& search, const ReducePlan& plan, Best* results) {
  const int64_t width = plan.slices.sizes[0];
  const int64_t tiles = num_tiles(width, kBlockNumel);
  const int64_t tile_numel = std::min(width, kBlockNumel) * plan.slice_numel;
  parallel_tiles(plan.num_slices / width * tiles, std::max<int64_t>(1, kReduceGrain / tile_numel),
                 [&](int64_t first, int64_t last) {
                   for (int64_t k = first; k < last; ++k) {
                     const int64_t column = k % tiles * kBlockNumel;
                     const int64_t slice = k / tiles * width + column;
                     visit_input(search.type, [&](auto value) {
                       search_column_tile<decltype(value)>(search, plan, slice,
                                                           std::min(kBlockNumel, width - column),
                                                           results + slice);
                     });
                   }
                 });
}

// A column of results to one output.
template <typename Get>
void store_column(const TensorView& out, const ReducePlan& plan, int operand, bool is_real,
                  const Get& get) {
  if (out.data == nullptr) return;
  const Workspace<Partial> values(plan.num_slices);
  for (int64_t i = 0; i < plan.num_slices; ++i) values[i] = get(i);
  const StoreBlock store = block_storer(is_real ? ComputeType::kF64 : ComputeType::kI64, out.dtype);
  int64_t done = 0;
  for_each_row(plan.slices, operand, 0, plan.num_slices, [&](int64_t offset, int64_t count) {
    store(out.as<std::byte>() + offset * item_nbytes(out.dtype), plan.slices.inner_stride(operand),
          values.data() + done, count);
    done += count;
  });
}
}  // namespace

void reduce_with_index(bool largest, const TensorView& values, const TensorView& indices,
                       const TensorView& in, Dims dims) {
  const char* operation = largest ? "argmax" : "argmin";
  const TensorView* outs[] = {&values, &indices};
  const ReducePlan plan = plan_reduction(operation, in, dims, outs, true);
  if (plan.num_slices == 0) return;
  MUSTER_CHECK(plan.slice_numel > 0, ErrorCode::kInvalidArgument,
               "{}: a reduced slice must not be empty; got sizes {} and dims {}", operation,
               to_string(in.sizes), to_string(dims));
  const ComputeType type =
      compute_type(in.dtype) == ComputeType::kI32 ? ComputeType::kI64 : compute_type(in.dtype);
  const Search search{largest, type, in};
  const Workspace<Best> best(plan.num_slices);
  if (plan.by_columns) {
    search_columns(search, plan, best.data());
  } else {
    search_rows(search, plan, best.data());
  }
  store_column(values, plan, 1, search.is_real(), [&](int64_t i) { return best[i].value; });
  store_column(indices, plan, 2, false,
               [&](int64_t i) { return Partial{.integer = best[i].index}; });
}
}  // namespace muster::kernels::cpu
