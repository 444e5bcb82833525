#pragma once
/// Operators of neural networks: softmax, norms, embedding. Losses: losses.h; attention:
/// attention/sdpa.h; dropout: random.h.
///
/// Names are those of torch.nn.functional. Each is one fused kernel forward and one backward; a
/// backward pass that is itself recorded is composed of differentiable operators.

#include "core/ops/creation.h"

namespace muster {

/// exp(x) / sum(exp(x)) along `dim`; `dtype` converts the input first.
Tensor softmax(const Tensor& self, int64_t dim, OptionalDType dtype = {});
/// The same, but 0 on slices that are -inf throughout.
Tensor safe_softmax(const Tensor& self, int64_t dim);
Tensor log_softmax(const Tensor& self, int64_t dim, OptionalDType dtype = {});

/// (x - mean) / sqrt(var + eps) * weight + bias over the last dims, the sizes of which are
/// `normalized_shape`. weight and bias may be undefined.
Tensor layer_norm(const Tensor& input, Dims normalized_shape, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);
/// x / sqrt(mean(x^2) + eps) * weight. Without eps: the machine epsilon of the dtype.
Tensor rms_norm(const Tensor& input, Dims normalized_shape, const Tensor& weight = {},
                std::optional<double> eps = {});

/// Rows of `weight` [V, D]. `padding_idx` names a row that gets no gradient (-1: none); with
/// `scale_grad_by_freq` a row's gradient is divided by how often it was read.
/// @shape indices any, i64 or i32; result [.., D]
/// @error kOutOfRange an index outside [0, V)
Tensor embedding(const Tensor& weight, const Tensor& indices, int64_t padding_idx = -1,
                 bool scale_grad_by_freq = false);

/// Rotary position embedding: pairs of features turn by an angle whose cosine and sine are given.
/// A pair is (i, i + R/2), or with `interleaved` (2i, 2i + 1); features from R on stay as they are.
/// `inverse` turns back.
/// @shape input [.., D]; cos, sin broadcast to [.., R/2] with R <= D, of input's dtype or its
///        arithmetic dtype (f32 for bf16 and f16)
/// @source arXiv:2104.09864; the first form is that of transformers' Llama
Tensor rope(const Tensor& input, const Tensor& cos, const Tensor& sin, bool interleaved = false,
            bool inverse = false);

}  // namespace muster
