#include <cmath>

#include "core/kernels/cpu/rows.h"
#include "core/kernels/cpu/sdpa_internal.h"
#include "core/kernels/cpu/workspace.h"
#include "core/kernels/parallel.h"

namespace muster::kernels::cpu {
namespace internal {
namespace {

// y[0..n) += a * x: vectorised by the compiler, since no sum is reordered.
template <typename A>
void add_scaled(A* __restrict y, const A* __restrict x, A a, int64_t n) {
  for (int64_t j = 0; j < n; ++j) y[j] += a * x[j];
}

// Scores and probabilities of one query; hidden keys have score -inf.
template <typename A>
class QueryRow {
 public:
  QueryRow(const HeadMask& mask, const SdpaShape& shape, double scale)
      : mask_(mask),
        shape_(shape),  // Without a key dim 1 / sqrt(E) is infinite and scores are 0 all the same.
        scale_(shape.key_dim == 0 ? A(0) : static_cast<A>(scale)),
        scores_(2 * shape.keys) {}

  /// False when no key is visible. `q` is the query, `kt` [E, S] the keys' transpose.
  bool compute(int64_t i, const A* q, const A* kt) {
    constexpr A kHidden = -std::numeric_limits<A>::infinity();
    A* scores = scores_.data();
    end_ = shape_.visible_keys(i);
    std::fill(scores, scores + end_, A(0));
    for (int64_t e = 0; e < shape_.key_dim; ++e)
      add_scaled(scores, kt + e * shape_.keys, q[e], end_);
    for (int64_t j = 0; j < end_; ++j) scores[j] *= scale_;
    if (mask_.present()) {
      A* bias = scores + shape_.keys;
      mask_.read(i, 0, end_, bias);
      for (int64_t j = 0; j < end_; ++j)
        scores[j] = bias[j] == kHidden ? kHidden : scores[j] + bias[j];
    }
    max_ = kHidden;
    for (int64_t j = 0; j < end_; ++j)
      if (scores[j] > max_ || scores[j] != scores[j]) max_ = scores[j];
    if (max_ == kHidden) return false;
    sum_ = A(0);
    for (int64_t j = 0; j < end_; ++j) {
      if (scores[j] == kHidden) continue;
      scores[j] = std::exp(scores[j] - max_);
      sum_ += scores[j];
    }
    for (int64_t j = 0; j < end_; ++j)
      if (visible(j)) scores[j] /= sum_;
    return true;
  }

  /// Keys from here on are hidden.
  [[nodiscard]] int64_t end() const { return end_; }
  [[nodiscard]] bool visible(int64_t j) const {
    return scores_[j] != -std::numeric_limits<A>::infinity();
  }
  [[nodiscard]] A probability(int64_t j) const { return scores_[j]; }
  [[nodiscard]] A lse() const { return max_ + std::log(sum_); }

 private:
  const HeadMask& mask_;
  const SdpaShape& shape_;
  A scale_;
  Workspace<A> scores_;
  int64_t end_ = 0;
  A max_ = A(0);
  A sum_ = A(0);
};

}  // namespace

template <typename A>
void careful_head(const SdpaHead<A>& head, const HeadMask& mask, const SdpaShape& shape,
                  double scale) {
  const int64_t keys = shape.keys, key_dim = shape.key_dim, value_dim = shape.value_dim;
  const Workspace<A> kt(key_dim * keys), v(keys * value_dim), q_scratch(key_dim), sum(value_dim);
  pack_columns(head.k, kt.data(), keys);
  pack_rows(head.v, v.data(), value_dim);
  const RowMatrix q_rows(head.q), out_rows(head.out);
  QueryRow<A> row(mask, shape, scale);
  for (int64_t i = 0; i < shape.queries; ++i) {
    const bool any = row.compute(i, read_row(q_rows.row(i), q_scratch.data()), kt.data());
    std::fill(sum.data(), sum.data() + value_dim, A(0));
    for (int64_t j = 0; any && j < row.end(); ++j) {
      if (row.visible(j))
        add_scaled(sum.data(), v.data() + j * value_dim, row.probability(j), value_dim);
    }
    narrow_row(sum.data(), out_rows.row(i));
    if (head.lse != nullptr) head.lse[i] = any ? row.lse() : -std::numeric_limits<A>::infinity();
  }
}

template <typename A>
void careful_head_backward(const SdpaHeadBackward<A>& head, const HeadMask& mask,
                           const SdpaShape& shape, double scale) {
  const int64_t keys = shape.keys, key_dim = shape.key_dim, value_dim = shape.value_dim;
  const Workspace<A> kt(key_dim * keys), k(keys * key_dim), vt(value_dim * keys);
  const Workspace<A> q_scratch(key_dim), dout_scratch(value_dim), dq(key_dim), dp(keys);
  pack_columns(head.k, kt.data(), keys);
  pack_rows(head.k, k.data(), key_dim);
  pack_columns(head.v, vt.data(), keys);
  const RowMatrix q_rows(head.q), dout_rows(head.dout), dq_rows(head.dq);
  const A factor = static_cast<A>(scale);
  QueryRow<A> row(mask, shape, scale);
  for (int64_t i = 0; i < shape.queries; ++i) {
    const A* q = read_row(q_rows.row(i), q_scratch.data());
    const A* dout = read_row(dout_rows.row(i), dout_scratch.data());
    const bool any = row.compute(i, q, kt.data());
    const int64_t end = any ? row.end() : 0;
    std::fill(dq.data(), dq.data() + key_dim, A(0));
    std::fill(dp.data(), dp.data() + keys, A(0));
    for (int64_t e = 0; e < value_dim; ++e)
      add_scaled(dp.data(), vt.data() + e * keys, dout[e], end);
    A shared = head.dlse == nullptr ? A(0) : -head.dlse[i];
    for (int64_t j = 0; j < end; ++j)
      if (row.visible(j)) shared += row.probability(j) * dp[j];
    for (int64_t j = 0; j < end; ++j) {
      if (!row.visible(j)) {
        dp[j] = A(0);
        continue;
      }
      const A ds = dp[j] = row.probability(j) * (dp[j] - shared);
      add_scaled(dq.data(), k.data() + j * key_dim, ds * factor, key_dim);
      add_scaled(head.dk + j * key_dim, q, ds * factor, key_dim);
      add_scaled(head.dv + j * value_dim, dout, row.probability(j), value_dim);
    }
    narrow_row(dq.data(), dq_rows.row(i));
    if (head.dmask) narrow_row(dp.data(), RowMatrix(*head.dmask).row(i));
  }
}

template void careful_head(const SdpaHead<float>&, const HeadMask&, const SdpaShape&, double);
template void careful_head(const SdpaHead<double>&, const HeadMask&, const SdpaShape&, double);
template void careful_head_backward(const SdpaHeadBackward<float>&, const HeadMask&,
                                    const SdpaShape&, double);
template void careful_head_backward(const SdpaHeadBackward<double>&, const HeadMask&,
                                    const SdpaShape&, double);

}  // namespace internal

void sdpa_math(const TensorView& out, const std::optional<TensorView>& lse, const TensorView& q,
               const TensorView& k, const TensorView& v, const SdpaOptions& options) {
  const internal::SdpaShape shape =
      internal::check_forward("sdpa_math", out, lse, q, k, v, options);
  visit_arithmetic("sdpa_math", q.dtype, [&](auto zero) {
    using A = decltype(zero);
    const int64_t grain = internal::task_grain(shape.head_flops());
    parallel_tiles(shape.batch * shape.heads, grain, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t b = task / shape.heads, h = task % shape.heads;
        const int64_t kv = h / shape.group();
        internal::careful_head<A>(
            {internal::plane(q, b, h), internal::plane(k, b, kv), internal::plane(v, b, kv),
             internal::plane(out, b, h), lse ? lse->as<A>() + task * shape.queries : nullptr},
            internal::HeadMask(options.mask, b, h), shape, options.scale);
      }
    });
  });
}

void sdpa_math_backward(const SdpaGradients& gradients, const SdpaBackwardInputs& inputs,
                        const SdpaOptions& options) {
  const internal::SdpaShape shape =
      internal::check_backward("sdpa_math_backward", gradients, inputs, options);
  const int64_t dk_numel = shape.keys * shape.key_dim, dv_numel = shape.keys * shape.value_dim;
  if (shape.kv_heads == 0) return;
  visit_arithmetic("sdpa_math_backward", inputs.q.dtype, [&](auto zero) {
    using A = decltype(zero);
    const int64_t grain = internal::task_grain(2 * shape.group() * shape.head_flops());
    parallel_tiles(shape.batch * shape.kv_heads, grain, [&](int64_t begin, int64_t end) {
      const Workspace<A> dk(dk_numel), dv(dv_numel);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t b = task / shape.kv_heads, kv = task % shape.kv_heads;
        std::fill(dk.data(), dk.data() + dk_numel, A(0));
        std::fill(dv.data(), dv.data() + dv_numel, A(0));
        for (int64_t h = kv * shape.group(); h < (kv + 1) * shape.group(); ++h) {
          internal::SdpaHeadBackward<A> head{internal::plane(inputs.q, b, h),
                                             internal::plane(inputs.k, b, kv),
                                             internal::plane(inputs.v, b, kv),
                                             internal::plane(inputs.dout, b, h),
                                             nullptr,
                                             internal::plane(gradients.dq, b, h),
                                             dk.data(),
                                             dv.data(),
                                             {}};
          if (inputs.dlse) head.dlse = inputs.dlse->as<A>() + (b * shape.heads + h) * shape.queries;
          if (gradients.dmask) head.dmask.emplace(internal::plane(*gradients.dmask, b, h));
          internal::careful_head_backward(head, internal::HeadMask(options.mask, b, h), shape,
                                          options.scale);
        }
        internal::unpack_rows(dk.data(), shape.key_dim, internal::plane(gradients.dk, b, kv));
        internal::unpack_rows(dv.data(), shape.value_dim, internal::plane(gradients.dv, b, kv));
      }
    });
  });
}

}  // namespace muster::kernels::cpu
