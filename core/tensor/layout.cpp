#include "core/tensor/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace muster {
namespace {
// Dim indices from the largest stride to the smallest; equal strides keep their order.
DimVector order_by_stride(Dims sizes, Dims strides) {
  DimVector order(sizes.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return strides[static_cast<size_t>(a)] > strides[static_cast<size_t>(b)];
  });
  return order;
}
}  // namespace

int64_t checked_numel(Dims sizes) {
  int64_t n = 1;
  for (const int64_t size : sizes) {
    MUSTER_CHECK(size >= 0, ErrorCode::kInvalidArgument, "sizes: no size may be negative; got {}",
                 to_string(sizes));
    MUSTER_CHECK(!__builtin_mul_overflow(n, size, &n), ErrorCode::kInvalidArgument,
                 "sizes: the number of elements must fit 63 bits; got {}", to_string(sizes));
  }
  return n;
}

DimVector contiguous_strides(Dims sizes) {
  DimVector strides(sizes.size());
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = step;
    step *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

bool is_contiguous(Dims sizes, Dims strides) noexcept {
  int64_t step = 1;
  bool matches = true;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 0) return true;
    if (sizes[i] == 1) continue;
    matches = matches && strides[i] == step;
    step *= sizes[i];
  }
  return matches;
}

bool is_non_overlapping_and_dense(Dims sizes, Dims strides) noexcept {
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return true;
  DimVector order = order_by_stride(sizes, strides);
  int64_t step = 1;
  for (size_t k = order.size(); k-- > 0;) {
    const size_t i = static_cast<size_t>(order[k]);
    if (sizes[i] == 1) continue;
    if (strides[i] != step) return false;
    step *= sizes[i];
  }
  return true;
}

DimVector preserved_strides(Dims sizes, Dims strides) {
  if (is_non_overlapping_and_dense(sizes, strides)) return DimVector(strides);
  // An insertion sort of the dims, innermost first. A broadcast dim (stride 0) compares with
  // nothing: it keeps its place while others pass it.
  const size_t n = sizes.size();
  DimVector order(n);
  for (size_t i = 0; i < n; ++i) order[i] = static_cast<int64_t>(n - 1 - i);
  for (size_t i = 1; i < n; ++i) {
    size_t at = i;
    for (size_t below = i; below-- > 0;) {
      const auto inner = static_cast<size_t>(order[below]);
      const auto outer = static_cast<size_t>(order[at]);
      if (strides[inner] == 0 || strides[outer] == 0) continue;
      if (strides[inner] < strides[outer]) break;
      if (strides[inner] == strides[outer] && sizes[inner] <= sizes[outer]) continue;
      std::swap(order[below], order[at]);
      at = below;
    }
  }
  DimVector out(n);
  int64_t step = 1;
  for (const int64_t dim : order) {
    out[static_cast<size_t>(dim)] = step;
    step *= std::max<int64_t>(sizes[static_cast<size_t>(dim)], 1);
  }
  return out;
}

int64_t storage_extent(const Layout& layout) noexcept {
  int64_t last = layout.offset;
  for (size_t i = 0; i < layout.sizes.size(); ++i) {
    if (layout.sizes[i] == 0) return 0;
    last += (layout.sizes[i] - 1) * layout.strides[i];
  }
  return last + 1;
}

bool certainly_overlaps_itself(Dims sizes, Dims strides) noexcept {
  for (const int64_t size : sizes) {
    if (size == 0) return false;
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1 && strides[i] == 0) return true;
  }
  return false;
}

int64_t wrap_dim(int64_t dim, int64_t ndim, const char* operation) {
  const int64_t range = std::max<int64_t>(ndim, 1);
  MUSTER_CHECK(dim >= -range && dim < range, ErrorCode::kOutOfRange,
               "{}: dim must be in [{}, {}]; got {}", operation, -range, range - 1, dim);
  return dim < 0 ? dim + range : dim;
}

DimVector broadcast_sizes(Dims a, Dims b, const char* operation) {
  const size_t n = std::max(a.size(), b.size());
  DimVector out(n);
  for (size_t k = 0; k < n; ++k) {
    const int64_t x = k < a.size() ? a[a.size() - 1 - k] : 1;
    const int64_t y = k < b.size() ? b[b.size() - 1 - k] : 1;
    MUSTER_CHECK(x == y || x == 1 || y == 1, ErrorCode::kInvalidArgument,
                 "{}: sizes must be equal or 1 at dimension {}; got {} and {}", operation,
                 n - 1 - k, to_string(a), to_string(b));
    out[n - 1 - k] = x == 1 ? y : x;
  }
  return out;
}

bool is_expandable_to(Dims from, Dims to) noexcept {
  if (from.size() > to.size()) return false;
  for (size_t k = 1; k <= from.size(); ++k) {
    const int64_t x = from[from.size() - k];
    if (x != to[to.size() - k] && x != 1) return false;
  }
  return true;
}

DimVector infer_size(Dims sizes, int64_t numel, const char* operation) {
  DimVector out(sizes);
  int64_t known = 1;
  int inferred = -1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == -1) {
      MUSTER_CHECK(inferred < 0, ErrorCode::kInvalidArgument,
                   "{}: at most one size may be -1; got {}", operation, to_string(sizes));
      inferred = static_cast<int>(i);
    } else {
      MUSTER_CHECK(sizes[i] >= 0, ErrorCode::kInvalidArgument,
                   "{}: sizes must be >= 0 or one -1; got {}", operation, to_string(sizes));
      known *= sizes[i];
    }
  }
  if (inferred >= 0) {
    MUSTER_CHECK(known != 0, ErrorCode::kInvalidArgument,
                 "{}: -1 is ambiguous when the other sizes multiply to 0; got {}", operation,
                 to_string(sizes));
    out[static_cast<size_t>(inferred)] = numel / known;
    known *= numel / known;
  }
  MUSTER_CHECK(known == numel, ErrorCode::kInvalidArgument, "{}: sizes {} must hold {} elements",
               operation, to_string(sizes), numel);
  return out;
}

std::optional<DimVector> view_strides(Dims old_sizes, Dims old_strides, Dims new_sizes) {
  const int64_t numel = numel_of(old_sizes);
  if (numel == 0) {
    if (std::equal(old_sizes.begin(), old_sizes.end(), new_sizes.begin(), new_sizes.end())) {
      return DimVector(old_strides);
    }
    return contiguous_strides(new_sizes);
  }
  DimVector out(new_sizes.size(), 1);
  if (old_sizes.empty()) return out;
  // Walk the old dims from the last, in groups that are contiguous among themselves; the new dims
  // must tile each group exactly.
  auto view_dim = static_cast<int64_t>(new_sizes.size()) - 1;
  int64_t group_stride = old_strides.back();
  int64_t group_numel = 1;
  int64_t view_numel = 1;
  for (size_t i = old_sizes.size(); i-- > 0;) {
    group_numel *= old_sizes[i];
    if (i != 0 && (old_sizes[i - 1] == 1 || old_strides[i - 1] == group_numel * group_stride))
      continue;
    while (view_dim >= 0 &&
           (view_numel < group_numel || new_sizes[static_cast<size_t>(view_dim)] == 1)) {
      out[static_cast<size_t>(view_dim)] = view_numel * group_stride;
      view_numel *= new_sizes[static_cast<size_t>(view_dim)];
      --view_dim;
    }
    if (view_numel != group_numel) return std::nullopt;
    if (i > 0) {
      group_stride = old_strides[i - 1];
      group_numel = 1;
      view_numel = 1;
    }
  }
  if (view_dim != -1) return std::nullopt;
  return out;
}

Layout expand_layout(const Layout& in, Dims sizes) {
  MUSTER_CHECK(sizes.size() >= in.sizes.size(), ErrorCode::kInvalidArgument,
               "expand: at least as many sizes as dims; got {} for a tensor of sizes {}",
               to_string(sizes), to_string(in.sizes));
  const size_t lead = sizes.size() - in.sizes.size();
  Layout out{DimVector(sizes), DimVector(sizes.size()), in.offset};
  for (size_t i = sizes.size(); i-- > 0;) {
    const bool is_new = i < lead;
    MUSTER_CHECK(sizes[i] >= 0 || (sizes[i] == -1 && !is_new), ErrorCode::kInvalidArgument,
                 "expand: sizes must be >= 0, or -1 for an existing dim; got {}", to_string(sizes));
    if (is_new) {
      // A new dim of size 1 gets the stride that unsqueeze would give it.
      if (sizes[i] == 1 && !in.sizes.empty())
        out.strides[i] = out.sizes[i + 1] * out.strides[i + 1];
      continue;
    }
    const int64_t old = in.sizes[i - lead];
    const int64_t wanted = sizes[i] == -1 ? old : sizes[i];
    MUSTER_CHECK(old == wanted || old == 1, ErrorCode::kInvalidArgument,
                 "expand: only dims of size 1 can be expanded; got {} for a tensor of sizes {}",
                 to_string(sizes), to_string(in.sizes));
    out.sizes[i] = wanted;
    out.strides[i] = old == wanted ? in.strides[i - lead] : 0;
  }
  return out;
}

Layout permute_layout(const Layout& in, Dims order) {
  const size_t n = in.sizes.size();
  MUSTER_CHECK(order.size() == n, ErrorCode::kInvalidArgument,
               "permute: {} dims must be named; got {}", n, to_string(order));
  Layout out{DimVector(n), DimVector(n), in.offset};
  uint64_t seen = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto dim = static_cast<size_t>(wrap_dim(order[i], static_cast<int64_t>(n), "permute"));
    MUSTER_CHECK((seen >> dim & 1) == 0, ErrorCode::kInvalidArgument,
                 "permute: each dim once; got {}", to_string(order));
    seen |= uint64_t{1} << dim;
    out.sizes[i] = in.sizes[dim];
    out.strides[i] = in.strides[dim];
  }
  return out;
}

Layout transpose_layout(const Layout& in, int64_t dim0, int64_t dim1) {
  const auto n = static_cast<int64_t>(in.sizes.size());
  dim0 = wrap_dim(dim0, n, "transpose");
  dim1 = wrap_dim(dim1, n, "transpose");
  Layout out = in;
  if (n == 0) return out;
  std::swap(out.sizes[static_cast<size_t>(dim0)], out.sizes[static_cast<size_t>(dim1)]);
  std::swap(out.strides[static_cast<size_t>(dim0)], out.strides[static_cast<size_t>(dim1)]);
  return out;
}

Layout select_layout(const Layout& in, int64_t dim, int64_t index) {
  MUSTER_CHECK(!in.sizes.empty(), ErrorCode::kInvalidArgument,
               "select: at least one dim; got a 0-dim tensor");
  const auto d =
      static_cast<size_t>(wrap_dim(dim, static_cast<int64_t>(in.sizes.size()), "select"));
  const int64_t size = in.sizes[d];
  MUSTER_CHECK(index >= -size && index < size, ErrorCode::kOutOfRange,
               "select: index must be in [{}, {}) for dim {} of sizes {}; got {}", -size, size, dim,
               to_string(in.sizes), index);
  Layout out = in;
  out.offset += (index < 0 ? index + size : index) * in.strides[d];
  out.sizes.erase(d);
  out.strides.erase(d);
  return out;
}

Layout slice_layout(const Layout& in, int64_t dim, int64_t start, int64_t end, int64_t step) {
  MUSTER_CHECK(!in.sizes.empty(), ErrorCode::kInvalidArgument,
               "slice: at least one dim; got a 0-dim tensor");
  MUSTER_CHECK(step > 0, ErrorCode::kInvalidArgument, "slice: step must be positive; got {}", step);
  const auto d = static_cast<size_t>(wrap_dim(dim, static_cast<int64_t>(in.sizes.size()), "slice"));
  const int64_t size = in.sizes[d];
  if (start < 0) start += size;
  if (end < 0) end += size;
  start = std::clamp<int64_t>(start, 0, size);
  end = std::clamp<int64_t>(end, start, size);
  Layout out = in;
  out.offset += start * in.strides[d];
  out.sizes[d] = (end - start + step - 1) / step;
  out.strides[d] *= step;
  return out;
}

Layout unsqueeze_layout(const Layout& in, int64_t dim) {
  const auto n = static_cast<int64_t>(in.sizes.size());
  const auto d = static_cast<size_t>(wrap_dim(dim, n + 1, "unsqueeze"));
  Layout out = in;
  const int64_t stride = d < in.sizes.size() ? in.sizes[d] * in.strides[d] : 1;
  out.sizes.insert(d, 1);
  out.strides.insert(d, stride);
  return out;
}

Layout squeeze_layout(const Layout& in, int64_t dim) {
  const auto d =
      static_cast<size_t>(wrap_dim(dim, static_cast<int64_t>(in.sizes.size()), "squeeze"));
  Layout out = in;
  if (in.sizes.empty() || in.sizes[d] != 1) return out;
  out.sizes.erase(d);
  out.strides.erase(d);
  return out;
}

Layout diagonal_layout(const Layout& in, int64_t offset, int64_t dim0, int64_t dim1) {
  const auto n = static_cast<int64_t>(in.sizes.size());
  const auto a = static_cast<size_t>(wrap_dim(dim0, n, "diagonal"));
  const auto b = static_cast<size_t>(wrap_dim(dim1, n, "diagonal"));
  MUSTER_CHECK(a != b, ErrorCode::kInvalidArgument, "diagonal: two different dims; got {} and {}",
               dim0, dim1);
  const int64_t length = offset >= 0 ? std::min(in.sizes[a], in.sizes[b] - offset)
                                     : std::min(in.sizes[a] + offset, in.sizes[b]);
  Layout out = in;
  if (length > 0) out.offset += offset >= 0 ? offset * in.strides[b] : -offset * in.strides[a];
  const int64_t stride = in.strides[a] + in.strides[b];
  out.sizes.erase(std::max(a, b));
  out.sizes.erase(std::min(a, b));
  out.strides.erase(std::max(a, b));
  out.strides.erase(std::min(a, b));
  out.sizes.push_back(std::max<int64_t>(length, 0));
  out.strides.push_back(stride);
  return out;
}

Layout unfold_layout(const Layout& in, int64_t dim, int64_t size, int64_t step) {
  const auto d =
      static_cast<size_t>(wrap_dim(dim, static_cast<int64_t>(in.sizes.size()), "unfold"));
  const int64_t have = in.sizes.empty() ? 1 : in.sizes[d];
  MUSTER_CHECK(size >= 0 && size <= have && step > 0, ErrorCode::kInvalidArgument,
               "unfold: 0 <= size <= {} and step > 0; got size {} and step {}", have, size, step);
  Layout out = in;
  out.sizes.push_back(size);
  out.strides.push_back(in.sizes.empty() ? 1 : in.strides[d]);
  if (!in.sizes.empty()) {
    out.sizes[d] = (have - size) / step + 1;
    out.strides[d] *= step;
  }
  return out;
}

DimVector chunk_sizes(int64_t n, int64_t parts) {
  const int64_t each = parts > 0 ? (n + parts - 1) / parts : 0;
  DimVector out;
  if (each == 0) {
    for (int64_t i = 0; i < parts; ++i) out.push_back(0);
    return out;
  }
  for (int64_t left = n; left > 0; left -= each) out.push_back(std::min(each, left));
  return out;
}

DimVector tensor_split_sizes(int64_t n, int64_t parts) {
  DimVector out;
  for (int64_t i = 0; i < parts; ++i) out.push_back(n / parts + (i < n % parts ? 1 : 0));
  return out;
}

std::string to_string(Dims dims) { return fmt::format("[{}]", fmt::join(dims, ", ")); }
}  // namespace muster
