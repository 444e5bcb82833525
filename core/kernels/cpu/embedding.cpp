#include "core/kernels/cpu/embedding.h"

#include <cstring>

#include "core/base/error.h"
#include "core/kernels/cpu/rows.h"
#include "core/kernels/cpu/workspace.h"
#include "core/kernels/parallel.h"

namespace muster::kernels::cpu {
namespace {
constexpr int64_t kGrainElements = int64_t{1} << 15;

int64_t row_grain(int64_t cols) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, cols));
}

// Indices as dense i64, each checked against [0, rows).
Workspace<int64_t> read_indices(const char* operation, const TensorView& indices, int64_t rows) {
  MUSTER_CHECK(
      indices.ndim() == 1 && (indices.dtype == DType::kI64 || indices.dtype == DType::kI32),
      ErrorCode::kInvalidArgument, "{}: indices must be i64 or i32 [N]; got {} {}", operation,
      indices.dtype, to_string(indices.sizes));
  const int64_t count = indices.sizes[0];
  const int64_t stride = indices.strides[0];
  Workspace<int64_t> dense(count);
  for (int64_t i = 0; i < count; ++i) {
    dense[i] = indices.dtype == DType::kI64 ? indices.as<int64_t>()[i * stride]
                                            : indices.as<int32_t>()[i * stride];
    MUSTER_CHECK(dense[i] >= 0 && dense[i] < rows, ErrorCode::kOutOfRange,
                 "{}: an index must be in [0, {}); got {} at position {}", operation, rows,
                 dense[i], i);
  }
  return dense;
}

void check_matrices(const char* operation, const TensorView& table, const TensorView& rows,
                    const TensorView& indices) {
  MUSTER_CHECK(table.ndim() == 2 && rows.ndim() == 2 && rows.sizes[1] == table.sizes[1] &&
                   rows.sizes[0] == indices.numel() && rows.dtype == table.dtype,
               ErrorCode::kInvalidArgument,
               "{}: the table must be [V, D] and there must be a row [D] for each of {} indices; "
               "got table {} {}, rows {} {}",
               operation, indices.numel(), table.dtype, to_string(table.sizes), rows.dtype,
               to_string(rows.sizes));
}

void copy_row(const RowRef& to, const RowRef& from) {
  if (to.cols == 0) return;  // an empty shard of the columns has no memory
  const size_t item = static_cast<size_t>(item_nbytes(to.dtype));
  if (to.stride == 1 && from.stride == 1) {
    std::memcpy(to.data, from.data, item * static_cast<size_t>(to.cols));
    return;
  }
  char* target = static_cast<char*>(to.data);
  const char* source = static_cast<const char*>(from.data);
  for (int64_t j = 0; j < to.cols; ++j) {
    std::memcpy(target, source, item);
    target += to.stride * static_cast<int64_t>(item);
    source += from.stride * static_cast<int64_t>(item);
  }
}

// Positions of each index, in ascending order: those of v are order[first[v]] .. order[first[v+1]].
struct Occurrences {
  Occurrences(const Workspace<int64_t>& indices, int64_t count, int64_t rows)
      : first(rows + 1), order(count) {
    std::fill(first.data(), first.data() + rows + 1, int64_t{0});
    for (int64_t i = 0; i < count; ++i) ++first[indices[i] + 1];
    for (int64_t v = 0; v < rows; ++v) first[v + 1] += first[v];
    for (int64_t i = 0; i < count; ++i) order[first[indices[i]]++] = i;
    // Each entry has moved to the end of its range, which is where the next one starts.
    for (int64_t v = rows; v > 0; --v) first[v] = first[v - 1];
    first[0] = 0;
  }
  Workspace<int64_t> first;
  Workspace<int64_t> order;
};

template <typename A>
void add_row(A* to, const A* from, int64_t cols, A factor) {
  if (factor == A(1)) {
    for (int64_t j = 0; j < cols; ++j) to[j] += from[j];
  } else {
    for (int64_t j = 0; j < cols; ++j) to[j] += from[j] * factor;
  }
}

template <typename A>
void backward(const RowMatrix& table, const RowMatrix& rows, const Occurrences& occurrences,
              const EmbeddingBackwardOptions& options) {
  const int64_t cols = table.cols();
  parallel_tiles(table.rows(), row_grain(cols), [&](int64_t begin, int64_t end) {
    const Workspace<A> sum_scratch(cols), row_scratch(cols);
    for (int64_t v = begin; v < end; ++v) {
      const int64_t from = occurrences.first[v];
      const int64_t to = v == options.padding_idx ? from : occurrences.first[v + 1];
      if (options.accumulate && from == to) continue;
      const RowRef target = table.row(v);
      A* sum = begin_row(target, sum_scratch.data());
      if (options.accumulate) {
        read_row(target, sum);  // widens into the scratch row, or is the row itself
      } else {
        std::fill(sum, sum + cols, A(0));
      }
      const A factor = options.scale_grad_by_freq ? A(1) / static_cast<A>(to - from) : A(1);
      for (int64_t k = from; k < to; ++k)
        add_row(sum, read_row(rows.row(occurrences.order[k]), row_scratch.data()), cols, factor);
      finish_row(target, sum);
    }
  });
}

}  // namespace

void embedding(const TensorView& out, const TensorView& weight, const TensorView& indices) {
  check_matrices("embedding", weight, out, indices);
  const Workspace<int64_t> dense = read_indices("embedding", indices, weight.sizes[0]);
  const RowMatrix table(weight), rows(out);
  parallel_tiles(rows.rows(), row_grain(rows.cols()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) copy_row(rows.row(i), table.row(dense[i]));
  });
}

void embedding_backward(const TensorView& dweight, const TensorView& dout,
                        const TensorView& indices, const EmbeddingBackwardOptions& options) {
  check_matrices("embedding_backward", dweight, dout, indices);
  const int64_t count = indices.numel();
  const Workspace<int64_t> dense = read_indices("embedding_backward", indices, dweight.sizes[0]);
  const Occurrences occurrences(dense, count, dweight.sizes[0]);
  visit_arithmetic("embedding_backward", dweight.dtype, [&](auto zero) {
    backward<decltype(zero)>(RowMatrix(dweight), RowMatrix(dout), occurrences, options);
  });
}

}  // namespace muster::kernels::cpu
