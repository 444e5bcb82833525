#include "core/kernels/cpu/gemm.h"

#include <array>
#include <type_traits>

#include "core/base/error.h"
#include "core/kernels/cpu/gemm_internal.h"
#include "core/kernels/cpu/rows.h"
#include "core/kernels/cpu/workspace.h"
#include "core/kernels/parallel.h"
#include "core/kernels/precision.h"

namespace muster::kernels::cpu {
namespace {
using internal::BatchedMatrix;
using internal::GemmProblem;
using internal::Matrix;

// A view as a batch of matrices; a 2-D view is a batch of one.
template <typename T>
BatchedMatrix<T> batched_matrix(const TensorView& view) {
  const size_t at = view.ndim() - 2;
  const int64_t batch_stride = at == 0 || view.sizes[0] == 1 ? 0 : view.strides[0];
  return {{static_cast<T*>(view.data), view.sizes[at], view.sizes[at + 1], view.strides[at],
           view.strides[at + 1]},
          batch_stride};
}

// bf16 and f16 take their scalars from `options` later, unrounded.
template <typename T>
GemmProblem<T> make_problem(const TensorView& out, const TensorView& a, const TensorView& b,
                            const GemmOptions& options) {
  GemmProblem<T> problem;
  problem.batch = out.ndim() == 2 ? 1 : out.sizes[0];
  problem.out = batched_matrix<T>(out);
  problem.a = batched_matrix<const T>(a);
  problem.b = batched_matrix<const T>(b);
  if constexpr (std::is_arithmetic_v<T>) {
    problem.alpha = static_cast<T>(options.alpha);
    problem.beta = static_cast<T>(options.beta);
  }
  if (options.bias) {
    problem.bias = options.bias->as<T>();
    problem.bias_stride = options.bias->strides[0];
  }
  return problem;
}

void check(const char* name, size_t ndim, const TensorView& out, const TensorView& a,
           const TensorView& b, const GemmOptions& options) {
  MUSTER_CHECK(a.ndim() == ndim && b.ndim() == ndim && out.ndim() == ndim,
               ErrorCode::kInvalidArgument,
               "{}: operands must have {} dims; got out {}, a {}, b {}", name, ndim,
               to_string(out.sizes), to_string(a.sizes), to_string(b.sizes));
  const size_t at = ndim - 2;
  bool fits = a.sizes[at + 1] == b.sizes[at] && out.sizes[at] == a.sizes[at] &&
              out.sizes[at + 1] == b.sizes[at + 1];
  if (ndim == 3) fits = fits && a.sizes[0] == out.sizes[0] && b.sizes[0] == out.sizes[0];
  MUSTER_CHECK(fits, ErrorCode::kInvalidArgument,
               "{}: out [M, N] must be a [M, K] times b [K, N]; got out {}, a {}, b {}", name,
               to_string(out.sizes), to_string(a.sizes), to_string(b.sizes));
  MUSTER_CHECK(a.dtype == out.dtype && b.dtype == out.dtype, ErrorCode::kInvalidArgument,
               "{}: operands must have one dtype; got out {}, a {}, b {}", name, out.dtype, a.dtype,
               b.dtype);
  MUSTER_CHECK(out.dtype != DType::kBool, ErrorCode::kUnimplemented,
               "{}: there is no product of bool; convert to an integer or floating dtype", name);
  if (!options.bias) return;
  MUSTER_CHECK(options.bias->ndim() == 1 && options.bias->sizes[0] == out.sizes[at + 1] &&
                   options.bias->dtype == out.dtype,
               ErrorCode::kInvalidArgument, "{}: bias must be {} [{}]; got {} {}", name, out.dtype,
               out.sizes[at + 1], options.bias->dtype, to_string(options.bias->sizes));
}

// Integers wrap around, as PyTorch's do; unsigned arithmetic makes that defined.
template <typename T>
void gemm_integer(const GemmProblem<T>& problem) {
  const Matrix<T>& shape = problem.out.first;
  const int64_t depth = problem.a.first.cols;
  const int64_t rows = problem.batch * shape.rows;
  const int64_t grain =
      std::max<int64_t>(1, (int64_t{1} << 15) / std::max<int64_t>(1, shape.cols * depth));
  parallel_tiles(rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const Matrix<T> out = problem.out[row / shape.rows];
      const Matrix<const T> a = problem.a[row / shape.rows];
      const Matrix<const T> b = problem.b[row / shape.rows];
      const int64_t i = row % shape.rows;
      for (int64_t j = 0; j < shape.cols; ++j) {
        uint64_t sum = 0;
        for (int64_t k = 0; k < depth; ++k)
          sum += static_cast<uint64_t>(*a.at(i, k)) * static_cast<uint64_t>(*b.at(k, j));
        sum *= static_cast<uint64_t>(problem.alpha);
        if (problem.beta != T(0))
          sum += static_cast<uint64_t>(problem.beta) * static_cast<uint64_t>(*out.at(i, j));
        if (problem.bias != nullptr)
          sum += static_cast<uint64_t>(problem.bias[j * problem.bias_stride]);
        *out.at(i, j) = static_cast<T>(sum);
      }
    }
  });
}

template <typename T>
RowRef row_of(const Matrix<T>& m, int64_t i) {
  using Plain = std::remove_const_t<T>;
  return {const_cast<Plain*>(m.at(i, 0)), dtype_of<Plain>, m.cols, m.col_stride};
}

// Widens (or narrows back) every matrix of a batch; one side is f32 with dense rows.
template <typename To, typename From>
void convert(const BatchedMatrix<To>& to, const BatchedMatrix<const From>& from, int64_t batch) {
  const int64_t rows = from.first.rows;
  const int64_t grain =
      std::max<int64_t>(1, (int64_t{1} << 15) / std::max<int64_t>(1, from.first.cols));
  parallel_tiles(batch * rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const Matrix<const From> source = from[row / rows];
      const Matrix<To> target = to[row / rows];
      if constexpr (std::is_same_v<To, float>) {
        internal::widen_row(row_of(source, row % rows), target.at(row % rows, 0));
      } else {
        internal::narrow_row(source.at(row % rows, 0), row_of(target, row % rows));
      }
    }
  });
}

template <typename T>
BatchedMatrix<const T> read_only(const BatchedMatrix<T>& m) {
  return {{m.first.data, m.first.rows, m.first.cols, m.first.row_stride, m.first.col_stride},
          m.batch_stride};
}

// A dense f32 copy of a bf16 or f16 operand; of one that lies by columns, the copy does too.
template <typename T>
struct Widened {
  Widened(const BatchedMatrix<const T>& from, int64_t batch, bool fill)
      : by_columns(from.first.col_stride != 1 && from.first.row_stride == 1),
        copies(from.batch_stride == 0 ? 1 : batch),
        rows(by_columns ? from.first.cols : from.first.rows),
        cols(by_columns ? from.first.rows : from.first.cols),
        memory(copies * rows * cols) {
    if (!fill) return;
    const Matrix<const T> lying = by_columns ? from.first.transposed() : from.first;
    convert(BatchedMatrix<float>{dense(), rows * cols},
            BatchedMatrix<const T>{lying, from.batch_stride}, copies);
  }
  [[nodiscard]] BatchedMatrix<float> matrix() const {
    return {by_columns ? dense().transposed() : dense(), copies == 1 ? 0 : rows * cols};
  }
  [[nodiscard]] Matrix<float> dense() const { return {memory.data(), rows, cols, cols, 1}; }

  bool by_columns;
  int64_t copies;
  int64_t rows;
  int64_t cols;
  Workspace<float> memory;
};

// A bias as a dense f32 row; null for none.
template <typename T>
class WideBias {
 public:
  explicit WideBias(const GemmProblem<T>& problem) : row_(problem.out.first.cols) {
    if (problem.bias == nullptr) return;
    for (int64_t j = 0; j < problem.out.first.cols; ++j)
      row_[j] = static_cast<float>(problem.bias[j * problem.bias_stride]);
    data_ = row_.data();
  }
  [[nodiscard]] const float* data() const noexcept { return data_; }

 private:
  Workspace<float> row_;
  const float* data_ = nullptr;
};

template <typename T>
void gemm_widened(const GemmProblem<T>& problem, const GemmOptions& options) {
  GemmProblem<float> wide;
  const Widened<T> a(problem.a, problem.batch, true);
  const Widened<T> b(problem.b, problem.batch, true);
  const Widened<T> out(read_only(problem.out), problem.batch, options.beta != 0.0);
  const WideBias<T> bias(problem);
  wide.bias = bias.data();
  wide.batch = problem.batch;
  wide.out = out.matrix();
  wide.a = read_only(a.matrix());
  wide.b = read_only(b.matrix());
  wide.alpha = static_cast<float>(options.alpha);
  wide.beta = static_cast<float>(options.beta);
  internal::gemm_f32(wide);
  if (out.by_columns) {
    convert(BatchedMatrix<T>{problem.out.first.transposed(), problem.out.batch_stride},
            BatchedMatrix<const float>{{out.memory.data(), out.rows, out.cols, out.cols, 1},
                                       out.rows * out.cols},
            problem.batch);
  } else {
    convert(problem.out, read_only(out.matrix()), problem.batch);
  }
}

// By the CPU's own bf16 instructions, without widened copies.
void gemm_native(const GemmProblem<BFloat16>& problem, const GemmOptions& options) {
  const WideBias<BFloat16> bias(problem);
  internal::gemm_bf16<BFloat16>({.batch = problem.batch,
                                 .a = problem.a,
                                 .b = problem.b,
                                 .alpha = static_cast<float>(options.alpha),
                                 .beta = static_cast<float>(options.beta),
                                 .bias = bias.data()},
                                problem.out);
}

void run(const TensorView& out, const TensorView& a, const TensorView& b,
         const GemmOptions& options) {
  if (out.numel() == 0) return;
  visit_dtype(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, bool>) {
      return;
    } else if constexpr (std::is_integral_v<T>) {
      gemm_integer(make_problem<T>(out, a, b, options));
    } else if constexpr (std::is_same_v<T, float>) {
      const GemmProblem<float> problem = make_problem<T>(out, a, b, options);
      if (uses_split_products() && internal::gemm_f32_split(problem)) return;
      internal::gemm_f32(problem);
    } else if constexpr (std::is_same_v<T, double>) {
      internal::gemm_f64(make_problem<T>(out, a, b, options));
    } else {
      const GemmProblem<T> problem = make_problem<T>(out, a, b, options);
      if constexpr (std::is_same_v<T, BFloat16>) {
        if (problem.a.first.cols > 0 && uses_native_bf16_products())
          return gemm_native(problem, options);
      }
      gemm_widened(problem, options);
    }
  });
}

}  // namespace

void gemm(const TensorView& out, const TensorView& a, const TensorView& b,
          const GemmOptions& options) {
  check("gemm", 2, out, a, b, options);
  run(out, a, b, options);
}

void batched_gemm(const TensorView& out, const TensorView& a, const TensorView& b,
                  const GemmOptions& options) {
  check("batched_gemm", 3, out, a, b, options);
  run(out, a, b, options);
}

}  // namespace muster::kernels::cpu
