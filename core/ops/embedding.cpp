// embedding: rows of a table, and its dense gradient.
#include "core/kernels/cpu/embedding.h"

#include "core/ops/indexing.h"
#include "core/ops/matrix_fold.h"
#include "core/ops/nn.h"
#include "core/ops/pointwise.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
using Context = const BackwardContext&;
namespace cpu = kernels::cpu;

void check_indices(const Tensor& indices) {
  MUSTER_CHECK(indices.dtype() == DType::kI64 || indices.dtype() == DType::kI32,
               ErrorCode::kInvalidArgument, "embedding: indices must be i64 or i32; got {}",
               indices);
}

// (weight, indices, padding_idx, scale_grad_by_freq)
TensorSpec infer(const OpArgs& args) {
  const Tensor &weight = args.tensor(0), &indices = args.tensor(1);
  MUSTER_CHECK(weight.ndim() == 2 && is_floating(weight.dtype()), ErrorCode::kInvalidArgument,
               "embedding: weight must be a floating matrix; got {}", weight);
  check_indices(indices);
  MUSTER_CHECK(args[2].integer() < weight.size(0), ErrorCode::kInvalidArgument,
               "embedding: padding_idx must be within the {} rows of weight; got {}",
               weight.size(0), args[2].integer());
  DimVector sizes(indices.sizes());
  sizes.push_back(weight.size(1));
  return TensorSpec::contiguous(sizes, weight.dtype(), weight.device());
}

void kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor indices = dense(args.tensor(1));
  const DimVector sizes = {indices.numel(), args.tensor(0).size(1)};
  const DimVector strides = contiguous_strides(sizes);
  cpu::embedding(TensorView(outs[0].data_ptr(), outs[0].dtype(), sizes, strides), args.tensor(0),
                 Flat(indices));
}

// (grad, indices, num_weights, padding_idx, scale_grad_by_freq)
TensorSpec embedding_backward_infer(const OpArgs& args) {
  const Tensor& grad = args.tensor(0);
  return TensorSpec::contiguous({args[2].integer(), grad.size(-1)}, grad.dtype(), grad.device());
}

void embedding_backward_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor indices = dense(args.tensor(1));
  const Tensor& grad = args.tensor(0);
  const DimVector sizes = {indices.numel(), grad.size(-1)};
  const std::optional<DimVector> strides = view_strides(grad.sizes(), grad.strides(), sizes);
  const Tensor held = strides ? grad : dense(grad);
  const DimVector row_strides = strides ? *strides : contiguous_strides(sizes);
  cpu::EmbeddingBackwardOptions options;
  options.padding_idx = args[3].integer();
  options.scale_grad_by_freq = args[4].boolean();
  cpu::embedding_backward(outs[0], TensorView(held.data_ptr(), held.dtype(), sizes, row_strides),
                          Flat(indices), options);
}

Tensor dense_gradient(const Tensor& grad, const Tensor& indices, const Value& num_weights,
                      const Value& padding_idx, const Value& scale) {
  static const Op& op = find_op("embedding_backward");
  return call_one(op, grad, indices, num_weights, padding_idx, scale);
}

GradList derivative(Context c) {
  return {dense_gradient(c.grad(), c.saved("indices"), c.spec("weight").sizes[0],
                         c.arg("padding_idx"), c.arg("scale_grad_by_freq")),
          {}};
}

// How often each index occurs, at the places where it does; at least 1.
Tensor frequency_of(const Tensor& indices, int64_t num_weights, DType dtype) {
  const Tensor flat = reshape(indices, {-1});
  const Tensor zero = new_zeros(flat, {num_weights}, dtype);
  const Tensor counts = index_add(zero, 0, flat, new_ones(flat, flat.sizes(), dtype));
  return reshape(index_select(counts, 0, flat), indices.sizes());
}

// The backward is linear in the gradient; its transpose reads the rows again.
GradList backward_derivative(Context c) {
  const Tensor indices = c.saved("indices");
  const int64_t padding = c.arg("padding_idx").integer();
  Tensor rows = embedding(c.grad(), indices);
  if (padding >= 0) rows = masked_fill(rows, unsqueeze(eq(indices, padding), -1), 0);
  if (c.arg("scale_grad_by_freq").boolean()) {
    const Tensor count = frequency_of(indices, c.arg("num_weights").integer(), rows.dtype());
    rows = div(rows, unsqueeze(count, -1));
  }
  return {rows, {}};
}
}  // namespace

MUSTER_DEFINE_OPS(embedding) {
  table.add(OpDef("embedding(Tensor weight, Tensor indices, int padding_idx=-1, bool "
                  "scale_grad_by_freq=False) -> Tensor")
                .infer(infer)
                .kernel(DeviceType::kCpu, kernel)
                .derivative(derivative, {"indices"})
                .shard({"R, S(0) -> S(0)", "R, S(1) -> S(1)", "S(1), R -> S(-1)"})
                .samples({"f(5,3), x5(2,2), -1, false", "f(5,3), x5(2), 1, false",
                          "f(5,3), x5(0), -1, false"}));
  table.add(OpDef("embedding_backward(Tensor grad, Tensor indices, int num_weights, int "
                  "padding_idx, bool scale_grad_by_freq) -> Tensor")
                .infer(embedding_backward_infer)
                .kernel(DeviceType::kCpu, embedding_backward_kernel)
                .derivative(backward_derivative, {"indices"})
                .shard({"S(0), S(0) -> P", "S(1), S(1) -> P", "S(-1), R -> S(1)"})
                .samples({"f(2,2,3), x5(2,2), 5, -1, false"}));
}
}  // namespace muster::ops

namespace muster {
Tensor embedding(const Tensor& weight, const Tensor& indices, int64_t padding_idx,
                 bool scale_grad_by_freq) {
  static const Op& op = ops::find_op("embedding");
  return call_one(op, weight, indices, padding_idx, scale_grad_by_freq);
}
}  // namespace muster
