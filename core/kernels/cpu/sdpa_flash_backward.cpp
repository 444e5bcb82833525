#include <cmath>

#include "core/base/error.h"
#include "core/kernels/cpu/gemm_internal.h"
#include "core/kernels/cpu/rows.h"
#include "core/kernels/cpu/sdpa_internal.h"
#include "core/kernels/cpu/sdpa_tiles.h"
#include "core/kernels/cpu/workspace.h"
#include "core/kernels/parallel.h"

namespace muster::kernels::cpu {
namespace {
using internal::HeadMask;
using internal::Matrix;
using internal::plane;
using internal::SdpaShape;

constexpr int64_t kKeyBlock = 64;
constexpr int64_t kQueryBlock = 256;
constexpr int64_t kPad = 16;         // keeps leading dims off multiples of 4 KiB, which alias in L1
constexpr int64_t kWantedTasks = 8;  // with fewer heads, keys are cut into chunks
constexpr int64_t kMinChunkKeys = 256;
constexpr float kPreciseLse = 65536.0f;  // beyond, exp(score - lse) has lost its digits

int64_t padded(int64_t n) { return (n + kPad - 1) / kPad * kPad + kPad; }

Matrix<const float> read_only(const float* data, int64_t rows, int64_t cols, int64_t ld) {
  return {data, rows, cols, ld, 1};
}

// How the work is cut: a function of the shape alone.
struct Cut {
  int64_t chunks;      // of keys, per head
  int64_t chunk_keys;  // keys of each but the last

  explicit Cut(const SdpaShape& shape) {
    const int64_t heads = std::max<int64_t>(1, shape.batch * shape.heads);
    const int64_t wanted = num_tiles(kWantedTasks, heads);
    const int64_t possible = std::max<int64_t>(1, shape.keys / kMinChunkKeys);
    chunk_keys = num_tiles(num_tiles(std::max<int64_t>(shape.keys, 1), std::min(wanted, possible)),
                           kKeyBlock) *
                 kKeyBlock;
    chunks = std::max<int64_t>(1, num_tiles(shape.keys, chunk_keys));
  }
};

// Planes and rows of one head.
struct Head {
  TensorView q, k, v, out, dout, dq;
  const float* lse;
  const float* dlse;  // null: zero
  HeadMask mask;
};

bool rows_are_finite(const TensorView& matrix) {
  const RowMatrix rows(matrix);
  if (rows.rows() == 0) return true;
  if (is_plain<float>(rows.row(0)))
    return internal::all_finite(matrix.as<float>(), matrix.strides[0], rows.rows(), rows.cols());
  const Workspace<float> scratch(rows.cols());
  for (int64_t i = 0; i < rows.rows(); ++i) {
    if (!internal::all_finite(read_row(rows.row(i), scratch.data()), 0, 1, rows.cols()))
      return false;
  }
  return true;
}

// True when products of blocks cannot be trusted: a hidden nan would spread, as 0 * nan is nan, or
// the probabilities cannot be rebuilt from lse.
bool needs_care(const Head& head, bool hides, int64_t queries) {
  for (int64_t i = 0; i < queries; ++i)
    if (std::isfinite(head.lse[i]) && std::abs(head.lse[i]) > kPreciseLse) return true;
  return hides &&
         !(rows_are_finite(head.q) && rows_are_finite(head.k) && rows_are_finite(head.dout));
}

// One head's queries against one chunk of its keys. dk, dv [chunk, E] and dq^T [E, ld] are dense.
class HeadChunk {
 public:
  HeadChunk(const SdpaShape& shape, const Cut& cut, float scale)
      : shape_(shape),
        scale_(scale),
        q_ld_(padded(shape.queries)),
        k_ld_(padded(cut.chunk_keys)),
        tile_ld_(std::min(kQueryBlock, shape.queries) + kPad),
        q_(shape.queries * shape.key_dim),
        qt_(shape.key_dim * q_ld_),
        dout_(shape.queries * shape.value_dim),
        doutt_(shape.value_dim * q_ld_),
        k_(cut.chunk_keys * shape.key_dim),
        kt_(shape.key_dim * k_ld_),
        v_(cut.chunk_keys * shape.value_dim),
        lse_(shape.queries),
        delta_(shape.queries),
        p_(kKeyBlock * tile_ld_),
        ds_(kKeyBlock * tile_ld_),
        bias_(kKeyBlock * tile_ld_) {}

  void load(const Head& head, int64_t j_begin, int64_t j_end) {
    const int64_t queries = shape_.queries, key_dim = shape_.key_dim, value_dim = shape_.value_dim;
    internal::pack_rows(head.q, q_.data(), key_dim);
    internal::pack_columns(head.q, qt_.data(), q_ld_);
    internal::pack_rows(head.dout, dout_.data(), value_dim);
    // The room of dout^T holds `out` until delta is known.
    internal::pack_rows(head.out, doutt_.data(), value_dim);
    internal::row_dots(dout_.data(), doutt_.data(), value_dim, queries, value_dim, delta_.data());
    internal::pack_columns(head.dout, doutt_.data(), q_ld_);
    load_keys(head, j_begin, j_end);
    constexpr float kInf = std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < queries; ++i) {
      if (head.dlse != nullptr) delta_[i] -= head.dlse[i];
      lse_[i] = head.lse[i] == -kInf ? kInf : head.lse[i];
    }
  }

  void run(const HeadMask& mask, int64_t j_begin, int64_t j_end, float* dk, float* dv, float* dqt) {
    for (int64_t j0 = j_begin; j0 < j_end; j0 += kKeyBlock) {
      const int64_t keys = std::min(kKeyBlock, j_end - j0);
      const int64_t i_begin = std::max<int64_t>(0, j0 - shape_.causal_offset);
      for (int64_t i0 = i_begin; i0 < shape_.queries; i0 += kQueryBlock)
        add_block(mask, j0, j0 - j_begin, keys, i0, std::min(kQueryBlock, shape_.queries - i0), dk,
                  dv, dqt);
    }
  }

  [[nodiscard]] int64_t q_ld() const { return q_ld_; }

 private:
  void load_keys(const Head& head, int64_t j_begin, int64_t j_end) {
    const auto rows = [&](const TensorView& view, DimVector& sizes) {
      sizes = {j_end - j_begin, view.sizes[1]};
      const int64_t offset = j_begin * view.strides[0] * item_nbytes(view.dtype);
      return TensorView(view.as<char>() + offset, view.dtype, sizes.span(), view.strides);
    };
    DimVector k_sizes, v_sizes;
    const TensorView k = rows(head.k, k_sizes);
    internal::pack_rows(k, k_.data(), shape_.key_dim);
    internal::pack_columns(k, kt_.data(), k_ld_);
    internal::pack_rows(rows(head.v, v_sizes), v_.data(), shape_.value_dim);
  }

  // Keys [j0, j0 + rows), which are rows `at` on of the chunk, against queries [i0, i0 + cols).
  void add_block(const HeadMask& mask, int64_t j0, int64_t at, int64_t rows, int64_t i0,
                 int64_t cols, float* dk, float* dv, float* dqt) {
    const int64_t key_dim = shape_.key_dim, value_dim = shape_.value_dim;
    const Matrix<float> p{p_.data(), rows, cols, tile_ld_, 1};
    const Matrix<float> ds{ds_.data(), rows, cols, tile_ld_, 1};
    const Matrix<const float> p_in = read_only(p_.data(), rows, cols, tile_ld_);
    const Matrix<const float> ds_in = read_only(ds_.data(), rows, cols, tile_ld_);
    internal::sgemm_serial(p, read_only(k_.data() + at * key_dim, rows, key_dim, key_dim),
                           read_only(qt_.data() + i0, key_dim, cols, q_ld_), scale_, 0.0f);
    internal::sgemm_serial(ds, read_only(v_.data() + at * value_dim, rows, value_dim, value_dim),
                           read_only(doutt_.data() + i0, value_dim, cols, q_ld_), 1.0f, 0.0f);
    for (int64_t i = 0; mask.present() && i < cols; ++i)
      mask.read(i0 + i, j0, j0 + rows, bias_.data() + i, tile_ld_);
    internal::gradient_tile({.scores = p_.data(),
                             .dp = ds_.data(),
                             .bias = mask.present() ? bias_.data() : nullptr,
                             .ld = tile_ld_,
                             .rows = rows,
                             .cols = cols,
                             .first_visible = j0 - shape_.causal_offset - i0,
                             .lse = lse_.data() + i0,
                             .delta = delta_.data() + i0});
    internal::sgemm_serial({dv + at * value_dim, rows, value_dim, value_dim, 1}, p_in,
                           read_only(dout_.data() + i0 * value_dim, cols, value_dim, value_dim),
                           1.0f, 1.0f);
    internal::sgemm_serial({dk + at * key_dim, rows, key_dim, key_dim, 1}, ds_in,
                           read_only(q_.data() + i0 * key_dim, cols, key_dim, key_dim), scale_,
                           1.0f);
    internal::sgemm_serial({dqt + i0, key_dim, cols, q_ld_, 1},
                           read_only(kt_.data() + at, key_dim, rows, k_ld_), ds_in, scale_, 1.0f);
  }

  const SdpaShape& shape_;
  float scale_;
  int64_t q_ld_, k_ld_, tile_ld_;
  Workspace<float> q_, qt_, dout_, doutt_, k_, kt_, v_, lse_, delta_, p_, ds_, bias_;
};

// The whole backward pass: a task for each chunk of each head, then what several tasks share.
class Backward {
 public:
  Backward(const SdpaGradients& gradients, const SdpaBackwardInputs& inputs,
           const SdpaOptions& options, const SdpaShape& shape)
      : gradients_(gradients),
        inputs_(inputs),
        options_(options),
        shape_(shape),
        cut_(shape),
        heads_(shape.batch * shape.heads),
        shares_keys_(shape.kv_heads != shape.heads),
        dqt_numel_(shape.key_dim * padded(shape.queries)),
        dk_(shares_keys_ ? heads_ * shape.keys * shape.key_dim : 0),
        dv_(shares_keys_ ? heads_ * shape.keys * shape.value_dim : 0),
        dqt_(cut_.chunks > 1 ? heads_ * cut_.chunks * dqt_numel_ : 0),
        needs_care_(heads_) {}

  void run() {
    const bool hides = options_.mask.has_value() || options_.causal != Causal::kNone;
    const int64_t rows_grain =
        internal::task_grain((shape_.queries + shape_.keys) * (shape_.key_dim + shape_.value_dim));
    parallel_tiles(heads_, rows_grain, [&](int64_t begin, int64_t end) {
      for (int64_t h = begin; h < end; ++h)
        needs_care_[h] = needs_care(head(h), hides, shape_.queries);
    });
    const int64_t grain = internal::task_grain(3 * shape_.head_flops() / cut_.chunks);
    parallel_tiles(heads_ * cut_.chunks, grain, [&](int64_t begin, int64_t end) {
      const internal::OneDnnSerialScope serial;
      for (int64_t task = begin; task < end; ++task)
        run_task(task / cut_.chunks, task % cut_.chunks);
    });
    if (shares_keys_)
      parallel_tiles(shape_.batch * shape_.kv_heads, rows_grain, [&](int64_t b, int64_t e) {
        for (int64_t kv = b; kv < e; ++kv) add_heads_of(kv);
      });
    if (cut_.chunks > 1)
      parallel_tiles(heads_, rows_grain, [&](int64_t b, int64_t e) {
        for (int64_t h = b; h < e; ++h) add_chunks_of(h);
      });
  }

 private:
  [[nodiscard]] Head head(int64_t index) const {
    const int64_t b = index / shape_.heads, h = index % shape_.heads, kv = h / shape_.group();
    const int64_t row = index * shape_.queries;
    return {plane(inputs_.q, b, h),        plane(inputs_.k, b, kv),
            plane(inputs_.v, b, kv),       plane(inputs_.out, b, h),
            plane(inputs_.dout, b, h),     plane(gradients_.dq, b, h),
            inputs_.lse.as<float>() + row, inputs_.dlse ? inputs_.dlse->as<float>() + row : nullptr,
            HeadMask(options_.mask, b, h)};
  }

  void run_task(int64_t index, int64_t chunk) {
    const bool care = needs_care_[index];
    if (care && chunk > 0) return;
    const int64_t j_begin = care ? 0 : chunk * cut_.chunk_keys;
    const int64_t j_end = care ? shape_.keys : std::min(shape_.keys, j_begin + cut_.chunk_keys);
    const int64_t keys = j_end - j_begin;
    const int64_t dk_numel = keys * shape_.key_dim, dv_numel = keys * shape_.value_dim;
    const Workspace<float> dk_own(shares_keys_ ? 0 : dk_numel);
    const Workspace<float> dv_own(shares_keys_ ? 0 : dv_numel);
    float* dk = dk_own.data();
    float* dv = dv_own.data();
    if (shares_keys_) {
      dk = dk_.data() + (index * shape_.keys + j_begin) * shape_.key_dim;
      dv = dv_.data() + (index * shape_.keys + j_begin) * shape_.value_dim;
    }
    std::fill(dk, dk + dk_numel, 0.0f);
    std::fill(dv, dv + dv_numel, 0.0f);
    const Head from = head(index);
    if (care) {
      internal::careful_head_backward<float>(
          {from.q, from.k, from.v, from.dout, from.dlse, from.dq, dk, dv, {}}, from.mask, shape_,
          options_.scale);
    } else {
      run_chunk(from, index, chunk, j_begin, j_end, dk, dv);
    }
    if (shares_keys_) return;
    const int64_t b = index / shape_.heads, h = index % shape_.heads;
    store_rows(dk, plane(gradients_.dk, b, h), j_begin, keys);
    store_rows(dv, plane(gradients_.dv, b, h), j_begin, keys);
  }

  void run_chunk(const Head& from, int64_t index, int64_t chunk, int64_t j_begin, int64_t j_end,
                 float* dk, float* dv) {
    const Workspace<float> dqt_own(cut_.chunks > 1 ? 0 : dqt_numel_);
    float* dqt =
        cut_.chunks > 1 ? dqt_.data() + (index * cut_.chunks + chunk) * dqt_numel_ : dqt_own.data();
    std::fill(dqt, dqt + dqt_numel_, 0.0f);
    HeadChunk work(shape_, cut_, static_cast<float>(options_.scale));
    work.load(from, j_begin, j_end);
    work.run(from.mask, j_begin, j_end, dk, dv, dqt);
    if (cut_.chunks == 1) internal::unpack_columns(dqt, padded(shape_.queries), from.dq);
  }

  static void store_rows(const float* from, const TensorView& to, int64_t begin, int64_t count) {
    const RowMatrix rows(to);
    for (int64_t j = 0; j < count; ++j)
      internal::narrow_row(from + j * rows.cols(), rows.row(begin + j));
  }

  // Adds the partial dk and dv of the query heads of one key head, in order.
  void add_heads_of(int64_t kv) {
    const int64_t b = kv / shape_.kv_heads, h = kv % shape_.kv_heads;
    const int64_t first = b * shape_.heads + h * shape_.group();
    const auto add = [&](float* sums, int64_t numel) {
      for (int64_t g = 1; g < shape_.group(); ++g)
        for (int64_t j = 0; j < numel; ++j) sums[j] += sums[g * numel + j];
    };
    const int64_t dk_numel = shape_.keys * shape_.key_dim;
    const int64_t dv_numel = shape_.keys * shape_.value_dim;
    add(dk_.data() + first * dk_numel, dk_numel);
    add(dv_.data() + first * dv_numel, dv_numel);
    store_rows(dk_.data() + first * dk_numel, plane(gradients_.dk, b, h), 0, shape_.keys);
    store_rows(dv_.data() + first * dv_numel, plane(gradients_.dv, b, h), 0, shape_.keys);
  }

  // Adds the partial dq of the chunks of one head, in order.
  void add_chunks_of(int64_t index) {
    if (needs_care_[index]) return;
    float* sums = dqt_.data() + index * cut_.chunks * dqt_numel_;
    for (int64_t c = 1; c < cut_.chunks; ++c)
      for (int64_t j = 0; j < dqt_numel_; ++j) sums[j] += sums[c * dqt_numel_ + j];
    internal::unpack_columns(sums, padded(shape_.queries), head(index).dq);
  }

  const SdpaGradients& gradients_;
  const SdpaBackwardInputs& inputs_;
  const SdpaOptions& options_;
  const SdpaShape& shape_;
  const Cut cut_;
  const int64_t heads_;
  const bool shares_keys_;  // several query heads read one key head
  const int64_t dqt_numel_;
  Workspace<float> dk_, dv_, dqt_;
  Workspace<bool> needs_care_;
};

}  // namespace

void sdpa_flash_backward(const SdpaGradients& gradients, const SdpaBackwardInputs& inputs,
                         const SdpaOptions& options) {
  const SdpaShape shape =
      internal::check_backward("sdpa_flash_backward", gradients, inputs, options);
  MUSTER_CHECK(inputs.q.dtype != DType::kF64 && !gradients.dmask, ErrorCode::kInvalidArgument,
               "sdpa_flash_backward: arithmetic is f32 and there is no dmask; got {} and {} dmask; "
               "use sdpa_math_backward",
               inputs.q.dtype, gradients.dmask ? "a" : "no");
  Backward(gradients, inputs, options, shape).run();
}

}  // namespace muster::kernels::cpu
