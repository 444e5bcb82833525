#include "core/kernels/cpu/rope.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/kernels/cpu/iterate.h"
#include "core/kernels/cpu/rows.h"
#include "core/kernels/cpu/workspace.h"
#include "core/kernels/parallel.h"

namespace muster::kernels::cpu {
namespace {
constexpr int64_t kGrainNumel = 16384;  // elements per tile: some microseconds of work

template <typename A>
void turn_halves(A* __restrict y, const A* __restrict x, const A* __restrict c,
                 const A* __restrict s, int64_t half, A sign) {
  for (int64_t i = 0; i < half; ++i) {
    const A a = x[i], b = x[half + i], sine = sign * s[i];
    y[i] = a * c[i] - b * sine;
    y[half + i] = b * c[i] + a * sine;
  }
}

template <typename A>
void turn_neighbours(A* __restrict y, const A* __restrict x, const A* __restrict c,
                     const A* __restrict s, int64_t half, A sign) {
  for (int64_t i = 0; i < half; ++i) {
    const A a = x[2 * i], b = x[2 * i + 1], sine = sign * s[i];
    y[2 * i] = a * c[i] - b * sine;
    y[2 * i + 1] = b * c[i] + a * sine;
  }
}

// One operand's rows: where they start and how their elements lie.
struct RowSource {
  char* data;
  DType dtype;
  int64_t cols;
  int64_t stride;

  explicit RowSource(const TensorView& view)
      : data(view.as<char>()),
        dtype(view.dtype),
        cols(view.sizes.back()),
        stride(view.sizes.back() == 1 ? 1 : view.strides.back()) {}
  [[nodiscard]] RowRef at(int64_t offset) const {
    return {data + offset * item_nbytes(dtype), dtype, cols, stride};
  }
};

Dims leading(Dims dims) { return dims.first(dims.size() - 1); }

template <typename A>
void turn_rows(const LoopNest& nest, const RowSource (&rows)[4], const RopeOptions& options,
               int64_t begin, int64_t end) {
  const int64_t dim = rows[0].cols, half = rows[2].cols;
  const Workspace<A> out_scratch(dim), in_scratch(dim), cos_scratch(half), sin_scratch(half);
  const A sign = options.inverse ? A(-1) : A(1);
  for_each_row(nest, begin, end, [&](const int64_t* offsets, int64_t count) {
    int64_t at[4] = {offsets[0], offsets[1], offsets[2], offsets[3]};
    for (int64_t i = 0; i < count; ++i) {
      const RowRef out = rows[0].at(at[0]);
      A* y = begin_row(out, out_scratch.data());
      const A* x = read_row(rows[1].at(at[1]), in_scratch.data());
      const A* c = read_row(rows[2].at(at[2]), cos_scratch.data());
      const A* s = read_row(rows[3].at(at[3]), sin_scratch.data());
      options.interleaved ? turn_neighbours(y, x, c, s, half, sign)
                          : turn_halves(y, x, c, s, half, sign);
      std::copy(x + 2 * half, x + dim, y + 2 * half);
      finish_row(out, y);
      for (int k = 0; k < 4; ++k) at[k] += nest.inner_stride(k);
    }
  });
}

void check(const TensorView& out, const TensorView& in, const TensorView& cos,
           const TensorView& sin) {
  const bool has_dims = in.ndim() >= 1 && cos.ndim() == in.ndim() && sin.ndim() == in.ndim();
  bool fits = has_dims && std::ranges::equal(out.sizes, in.sizes) &&
              std::ranges::equal(cos.sizes, sin.sizes) &&
              std::ranges::equal(leading(cos.sizes), leading(in.sizes)) &&
              2 * cos.sizes.back() <= in.sizes.back();
  fits = fits && out.dtype == in.dtype && is_floating(cos.dtype) && is_floating(sin.dtype);
  MUSTER_CHECK(fits, ErrorCode::kInvalidArgument,
               "rope kernel: cos and sin must be [.., R/2] with the leading sizes of in [.., D] "
               "and R <= D; got in {}, out {}, cos {}, sin {}",
               to_string(in.sizes), to_string(out.sizes), to_string(cos.sizes),
               to_string(sin.sizes));
}
}  // namespace

void rope(const TensorView& out, const TensorView& in, const TensorView& cos, const TensorView& sin,
          const RopeOptions& options) {
  check(out, in, cos, sin);
  if (in.sizes.back() == 0) return;
  const Dims strides[] = {leading(out.strides), leading(in.strides), leading(cos.strides),
                          leading(sin.strides)};
  const LoopNest nest(leading(in.sizes), strides, LoopNest::Order::kByStride);
  const RowSource rows[] = {RowSource(out), RowSource(in), RowSource(cos), RowSource(sin)};
  const int64_t grain = std::max<int64_t>(1, kGrainNumel / in.sizes.back());
  visit_arithmetic("rope", in.dtype, [&](auto zero) {
    using A = decltype(zero);
    parallel_tiles(nest.numel, grain, [&](int64_t begin, int64_t end) {
      turn_rows<A>(nest, rows, options, begin, end);
    });
  });
}
}  // namespace muster::kernels::cpu
