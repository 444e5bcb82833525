#include <atomic>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <unordered_map>

#include "core/base/error.h"
#include "core/kernels/cpu/copy_vec.h"
#include "core/kernels/cpu/gemm_tiles.h"
#include "core/tensor/dtype.h"

namespace muster::kernels::cpu::internal {
namespace {
using DnnlType = dnnl::memory::data_type;

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

DnnlType type_of(float) { return DnnlType::f32; }
DnnlType type_of(BFloat16) { return DnnlType::bf16; }

dnnl::memory::desc operand_desc(const Matrix<const BFloat16>& m) {
  const BlasForm form = blas_form(m);
  const bool by_rows = form.kind == BlasForm::Kind::kRowMajor;
  const dnnl::memory::dims strides = by_rows ? dnnl::memory::dims{form.leading_stride, 1}
                                             : dnnl::memory::dims{1, form.leading_stride};
  return {{m.rows, m.cols}, DnnlType::bf16, strides};
}

// Products of one shape after the other, on the calling thread: oneDNN's kernel is looked up once.
class SerialProduct {
 public:
  SerialProduct() : stream_(cpu_engine()) {}

  /// out = a @ b + bias, rounded once. `out` is row-major; a and b row- or column-major.
  template <typename T>
  void run(const Matrix<T>& out, const Matrix<const BFloat16>& a, const Matrix<const BFloat16>& b,
           const float* bias) {
    try {
      const Descs wanted{operand_desc(a), operand_desc(b),
                         dnnl::memory::desc({out.rows, out.cols}, type_of(T{}),
                                            dnnl::memory::dims{blas_form(out).leading_stride, 1}),
                         bias != nullptr};
      if (!product_ || !(wanted == descs_)) prepare(wanted);
      run_prepared(out.data, a.data, b.data, bias);
    } catch (const dnnl::error& error) {
      throw_error(ErrorCode::kInternal, "gemm: oneDNN refused bf16 {} x {} x {}: {}", out.rows,
                  out.cols, a.cols, error.what());
    }
  }

 private:
  struct Descs {
    dnnl::memory::desc a, b, out;
    bool has_bias = false;
    bool operator==(const Descs& other) const {
      return a == other.a && b == other.b && out == other.out && has_bias == other.has_bias;
    }
  };

  void prepare(const Descs& descs) {
    descs_ = descs;
    // Scratch memory of our own: primitives are shared between threads by oneDNN's cache.
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const int64_t cols = descs.out.dims()[1];
    bias_desc_ = dnnl::memory::desc({1, cols}, DnnlType::f32, dnnl::memory::dims{cols, 1});
    const dnnl::matmul::desc operation =
        descs.has_bias ? dnnl::matmul::desc(descs.a, descs.b, bias_desc_, descs.out)
                       : dnnl::matmul::desc(descs.a, descs.b, descs.out);
    const dnnl::matmul::primitive_desc chosen(operation, attributes, cpu_engine());
    product_.emplace(chosen);
    scratch_desc_ = chosen.scratchpad_desc();
    scratch_.emplace(static_cast<int64_t>(scratch_desc_.get_size()));
  }

  void run_prepared(void* out, const void* a, const void* b, const float* bias) {
    const auto memory = [](const dnnl::memory::desc& desc, const void* data) {
      return dnnl::memory(desc, cpu_engine(), const_cast<void*>(data));
    };
    std::unordered_map<int, dnnl::memory> arguments = {
        {DNNL_ARG_SRC, memory(descs_.a, a)},
        {DNNL_ARG_WEIGHTS, memory(descs_.b, b)},
        {DNNL_ARG_DST, memory(descs_.out, out)},
        {DNNL_ARG_SCRATCHPAD, memory(scratch_desc_, scratch_->data())}};
    if (bias != nullptr) arguments.emplace(DNNL_ARG_BIAS, memory(bias_desc_, bias));
    product_->execute(stream_, arguments);
    stream_.wait();
  }

  dnnl::stream stream_;
  Descs descs_;
  dnnl::memory::desc bias_desc_, scratch_desc_;
  std::optional<dnnl::matmul> product_;
  std::optional<Workspace<std::byte>> scratch_;
};

float as_float(float value) { return value; }
float as_float(BFloat16 value) { return static_cast<float>(value); }

// out = alpha * product + beta * out + bias, rounded once.
template <typename T>
void combine(const Matrix<T>& out, const float* product, float alpha, float beta,
             const float* bias) {
  for (int64_t i = 0; i < out.rows; ++i) {
    for (int64_t j = 0; j < out.cols; ++j) {
      T* value = out.at(i, j);
      float sum = alpha * product[i * out.cols + j];
      if (beta != 0.0f) sum += beta * as_float(*value);
      if (bias != nullptr) sum += bias[j];
      *value = T(sum);
    }
  }
}

// One run of tiles; a functor, so that scratch lives as long as the run.
template <typename T>
class TileRunner {
 public:
  TileRunner(const Bf16Product& product, const BatchedMatrix<const BFloat16>& a,
             const BatchedMatrix<const BFloat16>& b, const BatchedMatrix<T>& out)
      : product_(product), a_(a), b_(b), out_(out) {}

  void operator()(const GemmTilePlace& at) {
    const int64_t k = a_.first.cols;
    const Matrix<T> out = out_[at.batch].block(at.i, at.j, at.rows, at.cols);
    const float* bias = product_.bias == nullptr ? nullptr : product_.bias + at.j;
    const Matrix<const BFloat16> a = a_[at.batch].block(at.i, 0, at.rows, k);
    const Matrix<const BFloat16> b = b_[at.batch].block(0, at.j, k, at.cols);
    const bool direct = product_.alpha == 1.0f && product_.beta == 0.0f &&
                        blas_form(out).kind == BlasForm::Kind::kRowMajor;
    if (direct) return serial_.run(out, a, b, bias);
    if (!whole_ || whole_numel_ < at.rows * at.cols) {
      whole_numel_ = at.rows * at.cols;
      whole_.emplace(whole_numel_);
    }
    const Matrix<float> whole{whole_->data(), at.rows, at.cols, at.cols, 1};
    serial_.run(whole, a, b, nullptr);
    combine(out, whole.data, product_.alpha, product_.beta, bias);
  }

 private:
  const Bf16Product& product_;
  const BatchedMatrix<const BFloat16>& a_;
  const BatchedMatrix<const BFloat16>& b_;
  const BatchedMatrix<T>& out_;
  SerialProduct serial_;
  std::optional<Workspace<float>> whole_;
  int64_t whole_numel_ = 0;
};

// x = hi + lo + (2^-17 of x). False when some x is no finite number, whose parts would not be sums.
bool split(const float* x, int64_t count, BFloat16* hi, BFloat16* lo) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    hi[i] = BFloat16(x[i]);
    lo[i] = BFloat16(x[i] - static_cast<float>(hi[i]));
    largest = std::max(largest, static_cast<uint32_t>(hi[i].bits) & 0x7FFFu);
  }
  return largest < 0x7F80u;
}
}  // namespace

template <typename T>
void gemm_bf16(const Bf16Product& product, const BatchedMatrix<T>& out) {
  if (product.batch == 0 || out.first.rows == 0 || out.first.cols == 0) return;
  MUSTER_ASSERT(product.a.first.cols > 0, "gemm_bf16: a depth of 0 has no product");
  const ReadableOperand<BFloat16> a(product.a, product.batch);
  const ReadableOperand<BFloat16> b(product.b, product.batch);
  for_each_gemm_tile(product.batch, out.first.rows, out.first.cols, product.a.first.cols,
                     [&] { return TileRunner<T>(product, a.get(), b.get(), out); });
}
template void gemm_bf16(const Bf16Product& product, const BatchedMatrix<float>& out);
template void gemm_bf16(const Bf16Product& product, const BatchedMatrix<BFloat16>& out);

bool gemm_f32_split(const GemmProblem<float>& problem) {
  const int64_t m = problem.out.first.rows;
  const int64_t n = problem.out.first.cols;
  const int64_t k = problem.a.first.cols;
  if (problem.batch == 0 || m == 0 || n == 0 || k == 0) return false;
  const int64_t copies_a = problem.a.batch_stride == 0 ? 1 : problem.batch;
  const int64_t copies_b = problem.b.batch_stride == 0 ? 1 : problem.batch;
  // [hi hi lo] @ [hi lo hi]^T: one product of three times the depth.
  const Workspace<BFloat16> a(copies_a * m * 3 * k), b(copies_b * n * 3 * k);
  std::atomic<bool> finite{true};
  const auto split_rows = [&](const BatchedMatrix<const float>& from, int64_t copies, int64_t rows,
                              BFloat16* to, int64_t second_part) {
    const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 15) / k);
    parallel_tiles(copies * rows, grain, [&](int64_t begin, int64_t end) {
      const Workspace<float> dense(k);
      for (int64_t row = begin; row < end; ++row) {
        const Matrix<const float> matrix = from[row / rows];
        for (int64_t j = 0; j < k; ++j) dense[j] = *matrix.at(row % rows, j);
        BFloat16* hi = to + row * 3 * k;
        BFloat16* lo = hi + (second_part == 1 ? 2 * k : k);
        if (!split(dense.data(), k, hi, lo)) finite.store(false, std::memory_order_relaxed);
        std::copy(hi, hi + k, hi + second_part * k);
      }
    });
  };
  split_rows(problem.a, copies_a, m, a.data(), 1);
  split_rows({problem.b.first.transposed(), problem.b.batch_stride}, copies_b, n, b.data(), 2);
  if (!finite.load(std::memory_order_relaxed)) return false;
  const Workspace<float> bias(n);
  for (int64_t j = 0; problem.bias != nullptr && j < n; ++j)
    bias[j] = problem.bias[j * problem.bias_stride];
  const int64_t depth = 3 * k;
  gemm_bf16<float>({.batch = problem.batch,
                    .a = {{a.data(), m, depth, depth, 1}, copies_a == 1 ? 0 : m * depth},
                    .b = {{b.data(), depth, n, 1, depth}, copies_b == 1 ? 0 : n * depth},
                    .alpha = problem.alpha,
                    .beta = problem.beta,
                    .bias = problem.bias == nullptr ? nullptr : bias.data()},
                   problem.out);
  return true;
}

}  // namespace muster::kernels::cpu::internal
