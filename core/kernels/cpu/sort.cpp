#include "core/kernels/cpu/sort.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "core/base/error.h"
#include "core/kernels/cpu/copy_block.h"
#include "core/kernels/cpu/copy_convert.h"
#include "core/kernels/cpu/iterate.h"
#include "core/kernels/cpu/workspace.h"
#include "core/kernels/parallel.h"

namespace muster::kernels::cpu {
namespace {
// An element as an unsigned number in sort order, with its place: comparing pairs is a stable sort.
struct Entry {
  uint64_t key;
  int64_t place;
  bool operator<(const Entry& other) const {
    return key != other.key ? key < other.key : place < other.place;
  }
};

template <typename T>
uint64_t sort_key(T value) {
  if constexpr (kIsStorageFloat<T> || std::is_same_v<T, float>) {
    return sort_key(convert<double>(value));
  } else if constexpr (std::is_same_v<T, double>) {
    if (std::isnan(value)) return ~uint64_t{0};
    const uint64_t bits = std::bit_cast<uint64_t>(value + 0.0);  // -0 becomes 0
    return (bits >> 63) != 0 ? ~bits : bits | uint64_t{1} << 63;
  } else {
    return static_cast<uint64_t>(static_cast<int64_t>(value)) ^ uint64_t { 1 } << 63;
  }
}

// The lines of `in` along `dim`, and of outputs that differ from it in that dim's size at most.
struct Lines {
  LoopNest starts;  ///< operands: in, values, indices
  int64_t length = 1;
  int64_t out_length = 1;
  int64_t steps[3] = {};
};

Lines lines_along(const char* operation, const TensorView& in, const TensorView& values,
                  const TensorView& indices, int64_t dim) {
  const TensorView* views[] = {&in, &values, &indices};
  MUSTER_CHECK(values.data == nullptr || values.dtype == in.dtype, ErrorCode::kInvalidArgument,
               "{}: values must be {}; got {}", operation, in.dtype, values.dtype);
  MUSTER_CHECK(indices.data == nullptr || indices.dtype == DType::kI64, ErrorCode::kInvalidArgument,
               "{}: indices must be i64; got {}", operation, indices.dtype);
  const auto d = static_cast<size_t>(wrap_dim(dim, static_cast<int64_t>(in.ndim()), operation));
  Lines lines;
  DimVector sizes(in.sizes);
  DimVector strides[3];
  if (!in.sizes.empty()) {
    lines.length = in.sizes[d];
    lines.out_length = lines.length;
    sizes.erase(d);
  }
  for (size_t k = 0; k < 3; ++k) {
    const TensorView& view = *views[k];
    if (k > 0 && view.data == nullptr) {
      strides[k] = DimVector(sizes.size(), 0);
      continue;
    }
    MUSTER_CHECK(view.ndim() == in.ndim(), ErrorCode::kInvalidArgument,
                 "{}: outputs must have the input's dims; got sizes {} and {}", operation,
                 to_string(view.sizes), to_string(in.sizes));
    strides[k] = DimVector(view.strides);
    if (in.sizes.empty()) continue;
    if (k > 0) lines.out_length = view.sizes[d];
    lines.steps[k] = view.strides[d];
    strides[k].erase(d);
  }
  const Dims starts[] = {strides[0].span(), strides[1].span(), strides[2].span()};
  lines.starts = LoopNest(sizes.span(), starts, LoopNest::Order::kByStride);
  return lines;
}

// Sort keys of single elements of a view, in f64 or i64.
class KeyReader {
 public:
  KeyReader(const TensorView& view, bool real)
      : data_(view.as<const std::byte>()),
        item_(item_nbytes(view.dtype)),
        real_(real),
        load_(block_loader(view.dtype, real ? ComputeType::kF64 : ComputeType::kI64)) {}

  [[nodiscard]] uint64_t at(int64_t offset) const {
    if (real_) {
      double value = 0;
      load_(&value, data_ + offset * item_, 1, 1);
      return sort_key(value);
    }
    int64_t value = 0;
    load_(&value, data_ + offset * item_, 1, 1);
    return sort_key(value);
  }

 private:
  const std::byte* data_;
  int64_t item_;
  bool real_;
  LoadBlock load_;
};

// Runs `order(entries, length)` on each line, then writes the first out_length entries.
template <typename T, typename Order>
void sort_lines(const Lines& lines, const TensorView& in, const TensorView& values,
                const TensorView& indices, bool descending, const Order& order) {
  constexpr int64_t kGrain = 4096;
  parallel_tiles(lines.starts.numel,
                 std::max<int64_t>(1, kGrain / std::max<int64_t>(1, lines.length)),
                 [&](int64_t begin, int64_t end) {
                   const Workspace<Entry> entries(lines.length);
                   const Workspace<T> line(lines.length);
                   for (int64_t i = begin; i < end; ++i) {
                     const T* from = in.as<const T>() + lines.starts.offset_of(0, i);
                     for (int64_t k = 0; k < lines.length; ++k) {
                       line[k] = from[k * lines.steps[0]];
                       const uint64_t key = sort_key(line[k]);
                       entries[k] = {descending ? ~key : key, k};
                     }
                     order(entries.data(), lines.length);
                     T* to = values.as<T>() + lines.starts.offset_of(1, i);
                     int64_t* places = indices.as<int64_t>() + lines.starts.offset_of(2, i);
                     for (int64_t k = 0; k < lines.out_length; ++k) {
                       const int64_t place = entries[k].place;
                       if (values.data != nullptr) to[k * lines.steps[1]] = line[place];
                       if (indices.data != nullptr) places[k * lines.steps[2]] = place;
                     }
                   }
                 });
}
}  // namespace

void sort(const TensorView& values, const TensorView& indices, const TensorView& in, int64_t dim,
          bool descending) {
  const Lines lines = lines_along("sort", in, values, indices, dim);
  MUSTER_CHECK(lines.out_length == lines.length, ErrorCode::kInvalidArgument,
               "sort: outputs must have {} elements along the dim; got {}", lines.length,
               lines.out_length);
  visit_dtype(in.dtype, [&](auto type) {
    sort_lines<decltype(type)>(
        lines, in, values, indices, descending,
        [](Entry* entries, int64_t count) { std::sort(entries, entries + count); });
  });
}

void topk(const TensorView& values, const TensorView& indices, const TensorView& in, int64_t dim,
          bool largest) {
  const Lines lines = lines_along("topk", in, values, indices, dim);
  MUSTER_CHECK(lines.out_length <= lines.length, ErrorCode::kOutOfRange,
               "topk: k must be at most the size of the dim, {}; got {}", lines.length,
               lines.out_length);
  const int64_t k = lines.out_length;
  visit_dtype(in.dtype, [&](auto type) {
    sort_lines<decltype(type)>(lines, in, values, indices, largest,
                               [k](Entry* entries, int64_t count) {
                                 if (k < count) {
                                   std::nth_element(entries, entries + k, entries + count);
                                 }
                                 std::sort(entries, entries + k);
                               });
  });
}

void kthvalue(const TensorView& values, const TensorView& indices, const TensorView& in,
              int64_t dim, int64_t k) {
  const Lines lines = lines_along("kthvalue", in, values, indices, dim);
  MUSTER_CHECK(k >= 1 && k <= lines.length, ErrorCode::kOutOfRange,
               "kthvalue: k must be in [1, {}]; got {}", lines.length, k);
  visit_dtype(in.dtype, [&](auto type) {
    sort_lines<decltype(type)>(lines, in, values, indices, false,
                               [k](Entry* entries, int64_t count) {
                                 std::nth_element(entries, entries + (k - 1), entries + count);
                                 std::swap(entries[0], entries[k - 1]);
                               });
  });
}

void searchsorted(const TensorView& out, const TensorView& sorted, const TensorView& values,
                  bool right) {
  MUSTER_CHECK(sorted.ndim() >= 1 && out.dtype == DType::kI64, ErrorCode::kInvalidArgument,
               "searchsorted: a sorted tensor of at least one dim and an i64 output; got {} dims "
               "and {}",
               sorted.ndim(), out.dtype);
  MUSTER_CHECK(std::ranges::equal(out.sizes, values.sizes), ErrorCode::kInvalidArgument,
               "searchsorted: the output must have the sizes of the values, {}; got {}",
               to_string(values.sizes), to_string(out.sizes));
  const size_t last = sorted.ndim() - 1;
  const bool one_line = sorted.ndim() == 1;
  // Where the line of each value starts: along its own leading dims, or everywhere the same.
  DimVector line_strides(values.ndim(), 0);
  if (!one_line) {
    MUSTER_CHECK(values.ndim() == sorted.ndim() &&
                     std::ranges::equal(values.sizes.first(last), sorted.sizes.first(last)),
                 ErrorCode::kInvalidArgument,
                 "searchsorted: leading sizes must agree; got {} and {}", to_string(sorted.sizes),
                 to_string(values.sizes));
    for (size_t d = 0; d < last; ++d) line_strides[d] = sorted.strides[d];
  }
  const Dims strides[] = {out.strides, values.strides, line_strides.span()};
  const LoopNest nest(values.sizes, strides, LoopNest::Order::kRowMajor);
  const int64_t length = sorted.sizes[last];
  const int64_t step = sorted.strides[last];
  const bool real = is_floating(sorted.dtype) || is_floating(values.dtype);
  const KeyReader line_key(sorted, real);
  const KeyReader value_key(values, real);
  parallel_tiles(nest.numel, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t line = nest.offset_of(2, i);
      const uint64_t key = value_key.at(nest.offset_of(1, i));
      int64_t low = 0;
      int64_t high = length;
      while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const uint64_t candidate = line_key.at(line + middle * step);
        if (right ? candidate <= key : candidate < key) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      out.as<int64_t>()[nest.offset_of(0, i)] = low;
    }
  });
}
}  // namespace muster::kernels::cpu
