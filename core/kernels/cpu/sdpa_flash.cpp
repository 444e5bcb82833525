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

constexpr int64_t kQueryBlock = 64;  // small, so that a causal diagonal wastes little
constexpr int64_t kKeyBlock = 512;   // 64 x 512 scores take 128 KiB of L2
constexpr int64_t kPad = 16;         // keeps leading dims off multiples of 4 KiB, which alias in L1

Matrix<const float> read_only(const float* data, int64_t rows, int64_t cols, int64_t ld) {
  return {data, rows, cols, ld, 1};
}

// Keys transposed and values of all heads, widened and dense.
class PackedKeysValues {
 public:
  PackedKeysValues(const TensorView& k, const TensorView& v, const SdpaShape& shape, bool hides)
      : ld_((shape.keys + kPad - 1) / kPad * kPad + kPad),
        k_numel_(shape.key_dim * ld_),
        v_numel_(shape.keys * shape.value_dim),
        value_dim_(shape.value_dim),
        k_(shape.batch * shape.kv_heads * k_numel_),
        v_(shape.batch * shape.kv_heads * v_numel_),
        is_safe_(shape.batch * shape.kv_heads) {
    const int64_t grain = internal::task_grain(2 * (k_numel_ + v_numel_));
    parallel_tiles(shape.batch * shape.kv_heads, grain, [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head) {
        const int64_t b = head / shape.kv_heads, h = head % shape.kv_heads;
        internal::pack_columns(plane(k, b, h), k_.data() + head * k_numel_, ld_);
        float* values = v_.data() + head * v_numel_;
        internal::pack_rows(plane(v, b, h), values, value_dim_);
        // A product would spread a hidden nan: 0 * nan is nan.
        is_safe_[head] = !hides || internal::all_finite(values, value_dim_, shape.keys, value_dim_);
      }
    });
  }

  /// k^T [E, cols] from key `j0` on.
  [[nodiscard]] Matrix<const float> keys(int64_t head, int64_t key_dim, int64_t j0,
                                         int64_t cols) const {
    return read_only(k_.data() + head * k_numel_ + j0, key_dim, cols, ld_);
  }
  [[nodiscard]] Matrix<const float> values(int64_t head, int64_t j0, int64_t rows) const {
    return read_only(v_.data() + head * v_numel_ + j0 * value_dim_, rows, value_dim_, value_dim_);
  }
  [[nodiscard]] bool is_safe(int64_t head) const { return is_safe_[head]; }

 private:
  int64_t ld_, k_numel_, v_numel_, value_dim_;
  Workspace<float> k_, v_;
  Workspace<bool> is_safe_;
};

// One block of queries of one head.
class QueryBlock {
 public:
  QueryBlock(const SdpaShape& shape, float scale)
      : shape_(shape),
        scale_(scale),
        key_block_(std::min(kKeyBlock, shape.keys)),
        ld_(key_block_ + kPad),
        q_(kQueryBlock * shape.key_dim),
        scores_(kQueryBlock * ld_),
        bias_(kQueryBlock * ld_),
        out_(kQueryBlock * shape.value_dim) {}

  void run(const TensorView& q, const PackedKeysValues& packed, int64_t kv, const HeadMask& mask,
           const TensorView& out, float* lse, int64_t i0) {
    const int64_t rows = std::min(kQueryBlock, shape_.queries - i0);
    const RowMatrix q_rows(q);
    for (int64_t i = 0; i < rows; ++i)
      internal::widen_row(q_rows.row(i0 + i), q_.data() + i * shape_.key_dim);
    std::fill(max_, max_ + rows, -std::numeric_limits<float>::infinity());
    std::fill(sum_, sum_ + rows, 0.0f);
    const int64_t end = shape_.visible_keys(i0 + rows - 1);
    for (int64_t j0 = 0; j0 < end; j0 += key_block_)
      add_keys(packed, kv, mask, i0, rows, j0, std::min(key_block_, end - j0));
    const RowMatrix out_rows(out);
    for (int64_t i = 0; i < rows; ++i) {
      float* row = out_.data() + i * shape_.value_dim;
      const bool any = sum_[i] != 0.0f;
      const float factor = any ? 1.0f / sum_[i] : 0.0f;
      for (int64_t e = 0; e < shape_.value_dim; ++e) row[e] = any ? row[e] * factor : 0.0f;
      internal::narrow_row(row, out_rows.row(i0 + i));
      lse[i0 + i] = any ? max_[i] + std::log(sum_[i]) : -std::numeric_limits<float>::infinity();
    }
  }

 private:
  void add_keys(const PackedKeysValues& packed, int64_t kv, const HeadMask& mask, int64_t i0,
                int64_t rows, int64_t j0, int64_t cols) {
    const Matrix<float> scores{scores_.data(), rows, cols, ld_, 1};
    const Matrix<float> out{out_.data(), rows, shape_.value_dim, shape_.value_dim, 1};
    internal::sgemm_serial(scores, read_only(q_.data(), rows, shape_.key_dim, shape_.key_dim),
                           packed.keys(kv, shape_.key_dim, j0, cols), scale_, 0.0f);
    for (int64_t i = 0; mask.present() && i < rows; ++i)
      mask.read(i0 + i, j0, j0 + cols, bias_.data() + i * ld_);
    internal::softmax_tile({.scores = scores_.data(),
                            .bias = mask.present() ? bias_.data() : nullptr,
                            .ld = ld_,
                            .rows = rows,
                            .cols = cols,
                            .first_visible = i0 + shape_.causal_offset + 1 - j0,
                            .max = max_,
                            .sum = sum_,
                            .out = out_.data(),
                            .out_ld = shape_.value_dim,
                            .out_cols = shape_.value_dim,
                            .is_first = j0 == 0});
    internal::sgemm_serial(out, read_only(scores_.data(), rows, cols, ld_),
                           packed.values(kv, j0, cols), 1.0f, j0 == 0 ? 0.0f : 1.0f);
  }

  const SdpaShape& shape_;
  float scale_;
  int64_t key_block_;
  int64_t ld_;
  Workspace<float> q_, scores_, bias_, out_;
  float max_[kQueryBlock];
  float sum_[kQueryBlock];
};

}  // namespace

void sdpa_flash(const TensorView& out, const TensorView& lse, const TensorView& q,
                const TensorView& k, const TensorView& v, const SdpaOptions& options) {
  const SdpaShape shape = internal::check_forward("sdpa_flash", out, lse, q, k, v, options);
  MUSTER_CHECK(q.dtype != DType::kF64, ErrorCode::kInvalidArgument,
               "sdpa_flash: arithmetic is f32; got {}; use sdpa_math", q.dtype);
  const bool hides = options.mask.has_value() || options.causal != Causal::kNone;
  const PackedKeysValues packed(k, v, shape, hides);
  const int64_t blocks = num_tiles(shape.queries, kQueryBlock);
  const int64_t grain = internal::task_grain(shape.head_flops() / std::max<int64_t>(1, blocks));
  parallel_tiles(shape.batch * shape.heads * blocks, grain, [&](int64_t begin, int64_t end) {
    const internal::OneDnnSerialScope serial;
    QueryBlock block(shape, static_cast<float>(options.scale));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = task / blocks;
      const int64_t b = head / shape.heads, h = head % shape.heads;
      const int64_t kv = b * shape.kv_heads + h / shape.group();
      const HeadMask mask(options.mask, b, h);
      float* head_lse = lse.as<float>() + head * shape.queries;
      if (packed.is_safe(kv)) {
        block.run(plane(q, b, h), packed, kv, mask, plane(out, b, h), head_lse,
                  task % blocks * kQueryBlock);
      } else if (task % blocks == 0) {
        internal::careful_head<float>({plane(q, b, h), plane(k, b, h / shape.group()),
                                       plane(v, b, h / shape.group()), plane(out, b, h), head_lse},
                                      mask, shape, options.scale);
      }
    }
  });
}

}  // namespace muster::kernels::cpu
