#include "core/kernels/cpu/sdpa.h"

#include <type_traits>

#include "core/base/error.h"
#include "core/kernels/cpu/rows.h"
#include "core/kernels/cpu/sdpa_internal.h"

namespace muster::kernels::cpu::internal {
namespace {
bool has_sizes(const TensorView& view, Dims sizes) {
  return std::equal(view.sizes.begin(), view.sizes.end(), sizes.begin(), sizes.end());
}

void check_like(const char* operation, const char* name, const TensorView& view, DType dtype,
                Dims sizes) {
  MUSTER_CHECK(view.dtype == dtype && has_sizes(view, sizes), ErrorCode::kInvalidArgument,
               "{}: {} must be {} {}; got {} {}", operation, name, dtype, to_string(sizes),
               view.dtype, to_string(view.sizes));
}

void check_per_query(const char* operation, const char* name, const std::optional<TensorView>& view,
                     const TensorView& q) {
  if (!view) return;
  check_like(operation, name, *view, arithmetic_dtype(q.dtype), q.sizes.first(3));
  MUSTER_CHECK(view->is_contiguous(), ErrorCode::kInvalidArgument,
               "{}: {} must be contiguous; got strides {}", operation, name,
               to_string(view->strides));
}

int64_t causal_offset(Causal causal, int64_t queries, int64_t keys) {
  if (causal == Causal::kNone) return keys;
  return causal == Causal::kUpperLeft ? 0 : keys - queries;
}

}  // namespace

SdpaShape check_forward(const char* operation, const TensorView& out,
                        const std::optional<TensorView>& lse, const TensorView& q,
                        const TensorView& k, const TensorView& v, const SdpaOptions& options) {
  MUSTER_CHECK(q.ndim() == 4 && k.ndim() == 4 && v.ndim() == 4, ErrorCode::kInvalidArgument,
               "{}: q, k, v must be [B, H, length, dim]; got q {}, k {}, v {}", operation,
               to_string(q.sizes), to_string(k.sizes), to_string(v.sizes));
  MUSTER_CHECK(is_floating(q.dtype), ErrorCode::kInvalidArgument, "{}: q must be floating; got {}",
               operation, q.dtype);
  const SdpaShape shape{.batch = q.sizes[0],
                        .heads = q.sizes[1],
                        .kv_heads = k.sizes[1],
                        .queries = q.sizes[2],
                        .keys = k.sizes[2],
                        .key_dim = q.sizes[3],
                        .value_dim = v.sizes[3],
                        .causal_offset = causal_offset(options.causal, q.sizes[2], k.sizes[2])};
  check_like(operation, "k", k, q.dtype, {shape.batch, shape.kv_heads, shape.keys, shape.key_dim});
  check_like(operation, "v", v, q.dtype,
             {shape.batch, shape.kv_heads, shape.keys, shape.value_dim});
  check_like(operation, "out", out, q.dtype,
             {shape.batch, shape.heads, shape.queries, shape.value_dim});
  MUSTER_CHECK(shape.kv_heads > 0 ? shape.heads % shape.kv_heads == 0 : shape.heads == 0,
               ErrorCode::kInvalidArgument,
               "{}: query heads must be a multiple of key heads; got {} and {}", operation,
               shape.heads, shape.kv_heads);
  check_per_query(operation, "lse", lse, q);
  if (options.mask) {
    const DType dtype = options.mask->dtype == DType::kBool ? DType::kBool : q.dtype;
    check_like(operation, "mask", *options.mask, dtype,
               {shape.batch, shape.heads, shape.queries, shape.keys});
  }
  return shape;
}

SdpaShape check_backward(const char* operation, const SdpaGradients& gradients,
                         const SdpaBackwardInputs& inputs, const SdpaOptions& options) {
  const SdpaShape shape =
      check_forward(operation, inputs.out, inputs.lse, inputs.q, inputs.k, inputs.v, options);
  const DType dtype = inputs.q.dtype;
  check_like(operation, "dout", inputs.dout, dtype, inputs.out.sizes);
  check_like(operation, "dq", gradients.dq, dtype, inputs.q.sizes);
  check_like(operation, "dk", gradients.dk, dtype, inputs.k.sizes);
  check_like(operation, "dv", gradients.dv, dtype, inputs.v.sizes);
  check_per_query(operation, "dlse", inputs.dlse, inputs.q);
  if (gradients.dmask)
    check_like(operation, "dmask", *gradients.dmask, dtype,
               {shape.batch, shape.heads, shape.queries, shape.keys});
  return shape;
}

TensorView plane(const TensorView& view, int64_t b, int64_t h) {
  const int64_t offset = b * view.strides[0] + h * view.strides[1];
  return {view.as<char>() + offset * item_nbytes(view.dtype), view.dtype, Dims(view.sizes.last(2)),
          Dims(view.strides.last(2))};
}

namespace {
constexpr int64_t kPrefetchRows = 8;  // heads of [B, S, H, D] have short rows, far apart

void prefetch_row(const TensorView& matrix, int64_t i) {
  if (i >= matrix.sizes[0]) return;
  const int64_t item = item_nbytes(matrix.dtype);
  const char* row = matrix.as<char>() + i * matrix.strides[0] * item;
  const int64_t nbytes = matrix.strides[1] == 1 ? matrix.sizes[1] * item : 1;
  for (int64_t at = 0; at < nbytes; at += 64) __builtin_prefetch(row + at);
}
}  // namespace

template <typename A>
void pack_rows(const TensorView& from, A* to, int64_t ld) {
  const RowMatrix rows(from);
  for (int64_t i = 0; i < rows.rows(); ++i) {
    prefetch_row(from, i + kPrefetchRows);
    widen_row(rows.row(i), to + i * ld);
  }
}

template <typename A>
void unpack_rows(const A* from, int64_t ld, const TensorView& to) {
  const RowMatrix rows(to);
  for (int64_t i = 0; i < rows.rows(); ++i) narrow_row(from + i * ld, rows.row(i));
}

namespace {
constexpr int64_t kTransposeBlock = 16;  // rows whose lines stay in L1 while columns go by

template <typename To, typename From>
To convert(From value) {
  if constexpr (std::is_arithmetic_v<To> && std::is_arithmetic_v<From>) {
    return static_cast<To>(value);
  } else if constexpr (std::is_arithmetic_v<To>) {
    return static_cast<float>(value);
  } else {
    return To(static_cast<float>(value));
  }
}

// Calls `move(column element, row element)` for each element of `rows` [n, m] and of its transpose,
// whose rows are `ld` apart.
template <typename A, typename T, typename Move>
void for_transposed(A* columns, int64_t ld, const TensorView& rows, const Move& move) {
  T* data = rows.as<T>();
  const int64_t n = rows.sizes[0], m = rows.sizes[1];
  const int64_t row_stride = rows.strides[0], col_stride = rows.strides[1];
  for (int64_t i0 = 0; i0 < n; i0 += kTransposeBlock) {
    const int64_t i1 = std::min(n, i0 + kTransposeBlock);
    for (int64_t i = i1; i < i1 + kTransposeBlock; ++i) prefetch_row(rows, i);
    for (int64_t j = 0; j < m; ++j) {
      for (int64_t i = i0; i < i1; ++i)
        move(columns[j * ld + i], data[i * row_stride + j * col_stride]);
    }
  }
}
}  // namespace

template <typename A>
void pack_columns(const TensorView& from, A* to, int64_t ld) {
  visit_dtype(from.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (!std::is_integral_v<T>)
      for_transposed<A, T>(to, ld, from, [](A& a, const T& t) { a = convert<A>(t); });
  });
}

template <typename A>
void unpack_columns(const A* from, int64_t ld, const TensorView& to) {
  visit_dtype(to.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (!std::is_integral_v<T>)
      for_transposed<const A, T>(from, ld, to, [](const A& a, T& t) { t = convert<T>(a); });
  });
}

template <typename A>
void HeadMask::read(int64_t i, int64_t begin, int64_t end, A* to, int64_t step) const {
  const int64_t stride = plane_->strides[1];
  const int64_t first = i * plane_->strides[0] + begin * stride;
  visit_dtype(plane_->dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* from = plane_->as<T>() + first;
    for (int64_t j = 0; j < end - begin; ++j) {
      const T value = from[j * stride];
      if constexpr (std::is_same_v<T, bool>) {
        to[j * step] = value ? A(0) : -std::numeric_limits<A>::infinity();
      } else if constexpr (std::is_arithmetic_v<T>) {
        to[j * step] = static_cast<A>(value);
      } else {
        to[j * step] = static_cast<float>(value);
      }
    }
  });
}

template void pack_rows(const TensorView&, float*, int64_t);
template void pack_rows(const TensorView&, double*, int64_t);
template void pack_columns(const TensorView&, float*, int64_t);
template void pack_columns(const TensorView&, double*, int64_t);
template void unpack_rows(const float*, int64_t, const TensorView&);
template void unpack_rows(const double*, int64_t, const TensorView&);
template void unpack_columns(const float*, int64_t, const TensorView&);
template void unpack_columns(const double*, int64_t, const TensorView&);
template void HeadMask::read(int64_t, int64_t, int64_t, float*, int64_t) const;
template void HeadMask::read(int64_t, int64_t, int64_t, double*, int64_t) const;

}  // namespace muster::kernels::cpu::internal
