#pragma once
/// Matrix products. Names and argument order are PyTorch's.
///
/// Operands of one product have one floating dtype (or i64): nothing is promoted. Transposed and
/// sliced operands are read in place.

#include <initializer_list>
#include <span>
#include <string_view>

#include "core/tensor/scalar.h"
#include "core/tensor/tensor.h"

namespace muster {

/// @shape [M, K] x [K, N] -> [M, N]; K = 0 gives zeros
Tensor mm(const Tensor& self, const Tensor& mat2);
/// @shape [B, M, K] x [B, K, N] -> [B, M, N]
Tensor bmm(const Tensor& self, const Tensor& mat2);
/// beta * self + alpha * mat1 @ mat2; `self` broadcasts. beta = 0 does not read self.
Tensor addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, Scalar beta = 1,
             Scalar alpha = 1);
Tensor baddbmm(const Tensor& self, const Tensor& batch1, const Tensor& batch2, Scalar beta = 1,
               Scalar alpha = 1);
/// Product of vectors, matrices and batches of matrices; leading dims broadcast.
Tensor matmul(const Tensor& self, const Tensor& other);
/// Matrix times vector.
Tensor mv(const Tensor& self, const Tensor& vec);
/// Sum of products of two vectors.
Tensor dot(const Tensor& self, const Tensor& tensor);
/// @shape [N], [M] -> [N, M]
Tensor outer(const Tensor& self, const Tensor& vec2);
/// input @ weight^T + bias. @shape input [.., in], weight [out, in], bias [out] or undefined
Tensor linear(const Tensor& input, const Tensor& weight, const Tensor& bias = {});
/// Sums of products by Einstein's notation, e.g. "bij,bjk->bik"; "..." stands for further dims.
/// Operands are taken from left to right.
Tensor einsum(std::string_view equation, std::span<const Tensor> operands);
inline Tensor einsum(std::string_view equation, std::initializer_list<Tensor> operands) {
  return einsum(equation, std::span<const Tensor>(operands.begin(), operands.size()));
}

}  // namespace muster
