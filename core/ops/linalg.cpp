// Matrix products: mm, bmm, addmm as kernels, the rest made of them.
#include "core/ops/linalg.h"

#include "core/kernels/cpu/copy.h"
#include "core/kernels/cpu/gemm.h"
#include "core/ops/creation.h"
#include "core/ops/op_support.h"
#include "core/ops/pointwise.h"
#include "core/ops/reduction.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
using Context = const BackwardContext&;
namespace cpu = kernels::cpu;

void check_dtypes(const Tensor& a, const Tensor& b, const char* operation) {
  MUSTER_CHECK(a.dtype() == b.dtype(), ErrorCode::kInvalidArgument,
               "{}: expected operands to have the same dtype; got {} and {}", operation, a, b);
  MUSTER_CHECK(a.dtype() != DType::kBool, ErrorCode::kInvalidArgument, "{}: not implemented for {}",
               operation, a.dtype());
}

// [M, N] of the product of two matrices.
TensorSpec product_spec(const Tensor& a, const Tensor& b, const char* operation) {
  MUSTER_CHECK(a.ndim() == 2 && b.ndim() == 2, ErrorCode::kInvalidArgument,
               "{}: operands must be matrices; got {} and {}", operation, a, b);
  MUSTER_CHECK(a.size(1) == b.size(0), ErrorCode::kInvalidArgument,
               "{}: shapes cannot be multiplied ({}x{} and {}x{})", operation, a.size(0), a.size(1),
               b.size(0), b.size(1));
  check_dtypes(a, b, operation);
  return TensorSpec::contiguous({a.size(0), b.size(1)}, a.dtype(), a.device());
}

TensorSpec mm_infer(const OpArgs& args) {
  return product_spec(args.tensor(0), args.tensor(1), "mm");
}

// [B, M, N] of the products of two lists of matrices.
TensorSpec batched_spec(const Tensor& a, const Tensor& b, const char* operation) {
  MUSTER_CHECK(a.ndim() == 3 && b.ndim() == 3, ErrorCode::kInvalidArgument,
               "{}: operands must be 3-D; got {} and {}", operation, a, b);
  MUSTER_CHECK(a.size(0) == b.size(0) && a.size(2) == b.size(1), ErrorCode::kInvalidArgument,
               "{}: expected batch2 of sizes [{}, {}, N] for batch1 {}; got {}", operation,
               a.size(0), a.size(2), a, b);
  check_dtypes(a, b, operation);
  return TensorSpec::contiguous({a.size(0), a.size(1), b.size(2)}, a.dtype(), a.device());
}

TensorSpec bmm_infer(const OpArgs& args) {
  return batched_spec(args.tensor(0), args.tensor(1), "bmm");
}

// (self, factor, factor, beta, alpha): self is added to a product of sizes `product`.
TensorSpec added_spec(const OpArgs& args, TensorSpec product) {
  const Tensor& self = args.tensor(0);
  check_dtypes(self, args.tensor(1), args.op_name());
  MUSTER_CHECK(is_expandable_to(self.sizes(), product.sizes), ErrorCode::kInvalidArgument,
               "{}: self must broadcast to the product's sizes {}; got {}", args.op_name(),
               to_string(Dims(product.sizes)), self);
  return product;
}

TensorSpec addmm_infer(const OpArgs& args) {
  return added_spec(args, product_spec(args.tensor(1), args.tensor(2), "addmm"));
}
TensorSpec baddbmm_infer(const OpArgs& args) {
  return added_spec(args, batched_spec(args.tensor(1), args.tensor(2), "baddbmm"));
}

void mm_kernel(const OpArgs& args, std::span<Tensor> outs) {
  cpu::gemm(outs[0], args.tensor(0), args.tensor(1));
}
void bmm_kernel(const OpArgs& args, std::span<Tensor> outs) {
  cpu::batched_gemm(outs[0], args.tensor(0), args.tensor(1));
}

template <auto kProduct>
void added_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& out = outs[0];
  cpu::GemmOptions options;
  options.beta = args[3].number();
  options.alpha = args[4].number();
  if (options.beta != 0) cpu::copy(out, KernelOperand(args[0], out.dtype(), out.sizes()));
  kProduct(out, args.tensor(1), args.tensor(2), options);
}

GradList mm_derivative(Context c) {
  return {c.needs("self") ? mm(c.grad(), t(c.saved("mat2"))) : Tensor(),
          c.needs("mat2") ? mm(t(c.saved("self")), c.grad()) : Tensor()};
}

GradList bmm_derivative(Context c) {
  return {c.needs("self") ? bmm(c.grad(), transpose(c.saved("mat2"), 1, 2)) : Tensor(),
          c.needs("mat2") ? bmm(transpose(c.saved("self"), 1, 2), c.grad()) : Tensor()};
}

Tensor scaled(const Tensor& tensor, Scalar factor) {
  return factor.to_double() == 1.0 ? tensor : mul(tensor, factor);
}

GradList addmm_derivative(Context c) {
  const Scalar beta = c.arg("beta").scalar(), alpha = c.arg("alpha").scalar();
  GradList grads(3);
  if (c.needs("self")) grads[0] = scaled(c.grad(), beta);
  if (c.needs("mat1")) grads[1] = scaled(mm(c.grad(), t(c.saved("mat2"))), alpha);
  if (c.needs("mat2")) grads[2] = scaled(mm(t(c.saved("mat1")), c.grad()), alpha);
  return grads;
}

GradList baddbmm_derivative(Context c) {
  const Scalar beta = c.arg("beta").scalar(), alpha = c.arg("alpha").scalar();
  GradList grads(3);
  if (c.needs("self")) grads[0] = scaled(c.grad(), beta);
  if (c.needs("batch1")) {
    grads[1] = scaled(bmm(c.grad(), transpose(c.saved("batch2"), 1, 2)), alpha);
  }
  if (c.needs("batch2")) {
    grads[2] = scaled(bmm(transpose(c.saved("batch1"), 1, 2), c.grad()), alpha);
  }
  return grads;
}

void mv_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor &self = args.tensor(0), &vec = args.tensor(1);
  MUSTER_CHECK(self.ndim() == 2 && vec.ndim() == 1 && self.size(1) == vec.size(0),
               ErrorCode::kInvalidArgument,
               "mv: a matrix [N, M] and a vector [M] are expected; got {} and {}", self, vec);
  outs[0] = squeeze(mm(self, unsqueeze(vec, 1)), 1);
}

void dot_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor &a = args.tensor(0), &b = args.tensor(1);
  MUSTER_CHECK(a.ndim() == 1 && b.ndim() == 1, ErrorCode::kInvalidArgument,
               "dot: 1D tensors expected; got {} and {}", a, b);
  MUSTER_CHECK(a.size(0) == b.size(0), ErrorCode::kInvalidArgument,
               "dot: inconsistent tensor size, expected tensor [{}] and src [{}] to have the same "
               "number of elements",
               a.size(0), b.size(0));
  outs[0] = view(mm(unsqueeze(a, 0), unsqueeze(b, 1)), {});
}

void outer_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor &a = args.tensor(0), &b = args.tensor(1);
  MUSTER_CHECK(a.ndim() == 1 && b.ndim() == 1, ErrorCode::kInvalidArgument,
               "outer: 1D tensors expected; got {} and {}", a, b);
  outs[0] = mul(unsqueeze(a, 1), b);
}

Dims batch_dims(const Tensor& tensor) {
  return Dims(tensor.sizes().first(static_cast<size_t>(tensor.ndim() - 2)));
}

// Operands of two dims or more, one of them of three or more.
Tensor batched_matmul(const Tensor& a, const Tensor& b) {
  const DimVector batch = broadcast_sizes(batch_dims(a), batch_dims(b), "matmul");
  const auto as_batches = [&](const Tensor& tensor) {
    DimVector sizes = batch;
    sizes.push_back(tensor.size(-2));
    sizes.push_back(tensor.size(-1));
    return reshape(expand(tensor, sizes), {numel_of(batch), tensor.size(-2), tensor.size(-1)});
  };
  DimVector out = batch;
  out.push_back(a.size(-2));
  out.push_back(b.size(-1));
  return view(bmm(as_batches(a), as_batches(b)), out);
}

void matmul_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor &a = args.tensor(0), &b = args.tensor(1);
  MUSTER_CHECK(a.ndim() >= 1 && b.ndim() >= 1, ErrorCode::kInvalidArgument,
               "matmul: both arguments need to be at least 1D; got {} and {}", a, b);
  const int64_t inner = b.ndim() == 1 ? b.size(0) : b.size(-2);
  MUSTER_CHECK(a.size(-1) == inner, ErrorCode::kInvalidArgument,
               "matmul: the last dim of the first operand and the last but one of the second must "
               "be equal; got {} and {}",
               a, b);
  if (a.ndim() == 1 && b.ndim() == 1) {
    outs[0] = dot(a, b);
  } else if (b.ndim() == 1) {
    DimVector sizes(a.sizes());
    sizes.pop_back();
    outs[0] = view(mm(reshape(a, {numel_of(sizes), inner}), unsqueeze(b, 1)), sizes);
  } else if (a.ndim() == 1) {
    outs[0] = squeeze(matmul(unsqueeze(a, 0), b), -2);
  } else if (a.ndim() == 2 && b.ndim() == 2) {
    outs[0] = mm(a, b);
  } else if (b.ndim() == 2) {
    DimVector sizes(a.sizes());
    sizes.pop_back();
    const Tensor rows = reshape(a, {numel_of(sizes), inner});
    sizes.push_back(b.size(1));
    outs[0] = view(mm(rows, b), sizes);
  } else {
    outs[0] = batched_matmul(a, b);
  }
}
}  // namespace

MUSTER_DEFINE_OPS(linalg) {
  table.add(OpDef("mm(Tensor self, Tensor mat2) -> Tensor")
                .infer(mm_infer)
                .kernel(DeviceType::kCpu, mm_kernel)
                .derivative(mm_derivative, {"self for mat2", "mat2 for self"})
                .shard({"S(0), R -> S(0)", "R, S(1) -> S(1)", "S(1), S(0) -> P", "P, R -> P",
                        "R, P -> P"})
                .autocast(AutocastClass::kLowPrecision)
                .samples({"f(2,3), f(3,4)", "f(2,3).t, f(2,4)", "f(2,0), f(0,4)"}));
  table.add(OpDef("bmm(Tensor self, Tensor mat2) -> Tensor")
                .infer(bmm_infer)
                .kernel(DeviceType::kCpu, bmm_kernel)
                .derivative(bmm_derivative, {"self for mat2", "mat2 for self"})
                .shard({"S(0), S(0) -> S(0)", "S(1), R -> S(1)", "R, S(2) -> S(2)",
                        "S(2), S(1) -> P", "P, R -> P", "R, P -> P"})
                .autocast(AutocastClass::kLowPrecision)
                .samples({"f(2,2,3), f(2,3,4)", "f(0,2,3), f(0,3,4)"}));
  table.add(OpDef("addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar "
                  "alpha=1) -> Tensor")
                .infer(addmm_infer)
                .kernel(DeviceType::kCpu, added_kernel<cpu::gemm>)
                .derivative(addmm_derivative, {"mat1 for mat2", "mat2 for mat1"})
                // self may have both dims, or one row or column that every rank needs.
                .shard({"S(-2), S(0), R -> S(0)", "R, S(0), R -> S(0)", "S(-1), R, S(1) -> S(1)",
                        "R, R, S(1) -> S(1)", "P, S(1), S(0) -> P", "P, P, R -> P", "P, R, P -> P"})
                .autocast(AutocastClass::kLowPrecision)
                .samples({"f(4), f(2,3), f(3,4), 1, 1", "f(2,4), f(2,3), f(3,4), 0.5, 2.0"}));
  table.add(OpDef("baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar "
                  "alpha=1) -> Tensor")
                .infer(baddbmm_infer)
                .kernel(DeviceType::kCpu, added_kernel<cpu::batched_gemm>)
                .derivative(baddbmm_derivative, {"batch1 for batch2", "batch2 for batch1"})
                .replicate_only("self broadcasts: dist/tensor takes bmm and add instead")
                .autocast(AutocastClass::kLowPrecision)
                .samples({"f(2,2,4), f(2,2,3), f(2,3,4), 0.5, 2.0"}));
  table.add(composed("mv(Tensor self, Tensor vec) -> Tensor", mv_composite, {"f(2,3), f(3)"})
                .autocast(AutocastClass::kOutside));
  table.add(composed("dot(Tensor self, Tensor tensor) -> Tensor", dot_composite, {"f(3), f(3)"})
                .autocast(AutocastClass::kOutside));
  table.add(composed("outer(Tensor self, Tensor vec2) -> Tensor", outer_composite, {"f(3), f(2)"}));
  table.add(composed("matmul(Tensor self, Tensor other) -> Tensor", matmul_composite,
                     {"f(3), f(3)", "f(2,3), f(3)", "f(2,2,3), f(3,4)", "f(2,1,2,3), f(2,3,4)"})
                .autocast(AutocastClass::kLowPrecision));
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;

Tensor mm(const Tensor& self, const Tensor& mat2) {
  static const Op& op = find_op("mm");
  return call_one(op, self, mat2);
}
Tensor bmm(const Tensor& self, const Tensor& mat2) {
  static const Op& op = find_op("bmm");
  return call_one(op, self, mat2);
}
Tensor addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, Scalar beta,
             Scalar alpha) {
  static const Op& op = find_op("addmm");
  return call_one(op, self, mat1, mat2, beta, alpha);
}
Tensor baddbmm(const Tensor& self, const Tensor& batch1, const Tensor& batch2, Scalar beta,
               Scalar alpha) {
  static const Op& op = find_op("baddbmm");
  return call_one(op, self, batch1, batch2, beta, alpha);
}
Tensor matmul(const Tensor& self, const Tensor& other) {
  static const Op& op = find_op("matmul");
  return call_one(op, self, other);
}
Tensor mv(const Tensor& self, const Tensor& vec) {
  static const Op& op = find_op("mv");
  return call_one(op, self, vec);
}
Tensor dot(const Tensor& self, const Tensor& tensor) {
  static const Op& op = find_op("dot");
  return call_one(op, self, tensor);
}
Tensor outer(const Tensor& self, const Tensor& vec2) {
  static const Op& op = find_op("outer");
  return call_one(op, self, vec2);
}
}  // namespace muster
