// layer_norm and rms_norm. The kernels' operators take one normalized dim, the last; several are
// flattened into it first.
#include <limits>

#include "core/kernels/cpu/norm.h"
#include "core/ops/matrix_fold.h"
#include "core/ops/nn.h"
#include "core/ops/pointwise.h"
#include "core/ops/pointwise_def.h"
#include "core/ops/reduction.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
using Context = const BackwardContext&;
namespace cpu = kernels::cpu;

void check_affine(const Value& value, const Tensor& input, const char* name, const char* op) {
  if (value.is_none()) return;
  const Tensor& affine = value.tensor();
  MUSTER_CHECK(affine.ndim() == 1 && affine.size(0) == input.size(-1), ErrorCode::kInvalidArgument,
               "{}: {} must be [{}], as the last dim of input {}; got {}", op, name, input.size(-1),
               input, affine);
  const bool fits =
      affine.dtype() == input.dtype() || affine.dtype() == statistics_dtype(input.dtype());
  MUSTER_CHECK(fits, ErrorCode::kInvalidArgument,
               "{}: {} must have input's dtype or {}; got {} for input {}", op, name,
               statistics_dtype(input.dtype()), affine, input);
}

TensorSpec checked_output(const OpArgs& args) {
  const Tensor& input = args.tensor(0);
  MUSTER_CHECK(input.ndim() >= 1 && is_floating(input.dtype()), ErrorCode::kInvalidArgument,
               "{}: input must be floating and have a dim; got {}", args.op_name(), input);
  return TensorSpec::contiguous(input.sizes(), input.dtype(), input.device());
}

// One number per row, with the last dim kept as 1.
TensorSpec statistics_spec(const Tensor& input) {
  DimVector sizes(input.sizes());
  sizes.back() = 1;
  return TensorSpec::contiguous(sizes, statistics_dtype(input.dtype()), input.device());
}

// (input, weight, bias, eps) -> result, mean, rstd
std::vector<TensorSpec> layer_norm_infer(const OpArgs& args) {
  const TensorSpec out = checked_output(args);
  check_affine(args[1], args.tensor(0), "weight", "layer_norm");
  check_affine(args[2], args.tensor(0), "bias", "layer_norm");
  const TensorSpec row = statistics_spec(args.tensor(0));
  return {out, row, row};
}

void layer_norm_kernel(const OpArgs& args, std::span<Tensor> outs) {
  cpu::layer_norm(Rows(outs[0]), Flat(outs[1]), Flat(outs[2]), Rows(args.tensor(0)),
                  optional_view(args[1]), optional_view(args[2]), args[3].number());
}

// (input, weight, eps) -> result, rstd
std::vector<TensorSpec> rms_norm_infer(const OpArgs& args) {
  const TensorSpec out = checked_output(args);
  check_affine(args[1], args.tensor(0), "weight", "rms_norm");
  return {out, statistics_spec(args.tensor(0))};
}

void rms_norm_kernel(const OpArgs& args, std::span<Tensor> outs) {
  cpu::rms_norm(Rows(outs[0]), Flat(outs[1]), Rows(args.tensor(0)), optional_view(args[1]),
                args[2].number());
}

// Specs of dinput, dweight, dbias; `first` is the position of the three flags.
std::vector<TensorSpec> gradient_specs(const OpArgs& args, const Value& weight, size_t first) {
  const Tensor& input = args.tensor(1);
  const DType affine = weight.is_none() ? input.dtype() : weight.tensor().dtype();
  std::vector<TensorSpec> specs;
  for (size_t i = 0; first + i < args.size(); ++i) {
    const DType dtype = i == 0 ? input.dtype() : affine;
    if (!args[first + i].boolean()) {
      specs.push_back(no_gradient(dtype, input.device()));
    } else if (i == 0) {
      specs.push_back(TensorSpec::contiguous(input.sizes(), dtype, input.device()));
    } else {
      specs.push_back(TensorSpec::contiguous({input.size(-1)}, dtype, input.device()));
    }
  }
  return specs;
}

// (grad, input, mean, rstd, weight, need_input, need_weight, need_bias); what was not asked for is
// an empty tensor.
std::vector<TensorSpec> layer_norm_backward_infer(const OpArgs& args) {
  return gradient_specs(args, args[4], 5);
}

void layer_norm_backward_kernel(const OpArgs& args, std::span<Tensor> outs) {
  std::optional<Rows> dx;
  cpu::NormGradients gradients;
  if (args[5].boolean()) gradients.dx = dx.emplace(outs[0]).view();
  if (args[6].boolean()) gradients.dweight = TensorView(outs[1]);
  if (args[7].boolean()) gradients.dbias = TensorView(outs[2]);
  cpu::layer_norm_backward(gradients, Rows(args.tensor(0)), Rows(args.tensor(1)),
                           Flat(args.tensor(2)), Flat(args.tensor(3)), optional_view(args[4]));
}

// (grad, input, rstd, weight, need_input, need_weight)
std::vector<TensorSpec> rms_norm_backward_infer(const OpArgs& args) {
  return gradient_specs(args, args[3], 4);
}

void rms_norm_backward_kernel(const OpArgs& args, std::span<Tensor> outs) {
  std::optional<Rows> dx;
  cpu::NormGradients gradients;
  if (args[4].boolean()) gradients.dx = dx.emplace(outs[0]).view();
  if (args[5].boolean()) gradients.dweight = TensorView(outs[1]);
  cpu::rms_norm_backward(gradients, Rows(args.tensor(0)), Rows(args.tensor(1)),
                         Flat(args.tensor(2)), optional_view(args[3]));
}

Tensor sum_rows(const Tensor& tensor) {
  DimVector dims;
  for (int64_t d = 0; d + 1 < tensor.ndim(); ++d) dims.push_back(d);
  return dims.empty() ? tensor : sum(tensor, Dims(dims));
}

// What a recorded backward pass computes. The statistics are made again from the input: as outputs
// of the forward node they would need derivatives of their own.
GradList composed_gradients(Context c, bool centered) {
  const DType wide = statistics_dtype(c.spec("input").dtype);
  const double eps = c.arg("eps").number();
  const Tensor x = to(c.saved("input"), wide), grad = to(c.grad(), wide);
  const Tensor deviation = centered ? sub(x, mean(x, -1, true)) : x;
  const Tensor rstd = rsqrt(add(mean(square(deviation), -1, true), eps));
  const Tensor normal = mul(deviation, rstd);
  GradList grads(centered ? 3 : 2);
  if (c.needs("input")) {
    const Tensor weight = c.saved("weight");
    const Tensor g = weight.defined() ? mul(grad, to(weight, wide)) : grad;
    const Tensor slope = sub(g, mul(normal, mean(mul(g, normal), -1, true)));
    grads[0] = mul(rstd, centered ? sub(slope, mean(g, -1, true)) : slope);
  }
  if (c.needs("weight")) grads[1] = sum_rows(mul(grad, normal));
  if (centered && c.needs("bias")) grads[2] = sum_rows(grad);
  return grads;
}

void check_only_result(Context c, size_t outputs, const char* operation) {
  for (size_t i = 1; i < outputs; ++i) {
    MUSTER_CHECK(!c.grad(i).defined(), ErrorCode::kUnimplemented,
                 "backward of {}: row statistics have no derivative; got a gradient of output {}",
                 operation, i);
  }
}

GradList layer_norm_derivative(Context c) {
  check_only_result(c, 3, "layer_norm");
  if (c.create_graph()) return composed_gradients(c, true);
  static const Op& fused = find_op("layer_norm_backward");
  const bool needs[] = {c.needs("input"), c.needs("weight"), c.needs("bias")};
  const auto made = call_many<3>(fused, c.grad(), c.saved("input"), c.saved("mean"),
                                 c.saved("rstd"), c.saved("weight"), needs[0], needs[1], needs[2]);
  GradList grads(3);
  for (size_t i = 0; i < 3; ++i) {
    if (needs[i]) grads[i] = made[i];
  }
  return grads;
}

GradList rms_norm_derivative(Context c) {
  check_only_result(c, 2, "rms_norm");
  if (c.create_graph()) return composed_gradients(c, false);
  static const Op& fused = find_op("rms_norm_backward");
  const bool needs[] = {c.needs("input"), c.needs("weight")};
  const auto made = call_many<2>(fused, c.grad(), c.saved("input"), c.saved("rstd"),
                                 c.saved("weight"), needs[0], needs[1]);
  GradList grads(2);
  for (size_t i = 0; i < 2; ++i) {
    if (needs[i]) grads[i] = made[i];
  }
  return grads;
}

Tensor affine_row(const Value& value, Dims shape, const char* name, const char* operation) {
  if (value.is_none()) return {};
  MUSTER_CHECK(same_sizes(value.tensor().sizes(), shape), ErrorCode::kInvalidArgument,
               "{}: expected {} to be of same shape as normalized_shape {}; got {}", operation,
               name, to_string(shape), value.tensor());
  return shape.size() == 1 ? value.tensor() : reshape(value.tensor(), {-1});
}

// The input with its normalized dims as one.
Tensor normalized_rows(const Tensor& input, Dims shape, const char* operation) {
  const auto n = static_cast<int64_t>(shape.size());
  const bool fits =
      n >= 1 && n <= input.ndim() && same_sizes(input.sizes().last(shape.size()), shape);
  MUSTER_CHECK(fits, ErrorCode::kInvalidArgument,
               "{}: normalized_shape {} must be the last sizes of input; got {}", operation,
               to_string(shape), input);
  return n == 1 ? input : flatten(input, input.ndim() - n, -1);
}

// (input, normalized_shape, weight, bias, eps)
void layer_norm_composite(const OpArgs& args, std::span<Tensor> outs) {
  static const Op& op = find_op("native_layer_norm");
  const Tensor& input = args.tensor(0);
  const Dims shape = args[1].ints();
  const Tensor rows = normalized_rows(input, shape, "layer_norm");
  const Tensor out = call_many<3>(op, rows, affine_row(args[2], shape, "weight", "layer_norm"),
                                  affine_row(args[3], shape, "bias", "layer_norm"), args[4])[0];
  outs[0] = shape.size() == 1 ? out : view(out, input.sizes());
}

double machine_epsilon(DType dtype) {
  if (dtype == DType::kF64) return std::numeric_limits<double>::epsilon();
  if (dtype == DType::kF32) return std::numeric_limits<float>::epsilon();
  return dtype == DType::kBF16 ? 0x1p-7 : 0x1p-10;
}

// (input, normalized_shape, weight, eps)
void rms_norm_composite(const OpArgs& args, std::span<Tensor> outs) {
  static const Op& op = find_op("native_rms_norm");
  const Tensor& input = args.tensor(0);
  const Dims shape = args[1].ints();
  const Tensor rows = normalized_rows(input, shape, "rms_norm");
  const double eps = args[3].is_none() ? machine_epsilon(input.dtype()) : args[3].number();
  const Tensor out =
      call_many<2>(op, rows, affine_row(args[2], shape, "weight", "rms_norm"), eps)[0];
  outs[0] = shape.size() == 1 ? out : view(out, input.sizes());
}

}  // namespace

MUSTER_DEFINE_OPS(norms) {
  table.add(OpDef("native_layer_norm(Tensor input, Tensor? weight, Tensor? bias, float eps) -> "
                  "(Tensor result, Tensor mean, Tensor rstd)")
                .infer(layer_norm_infer)
                .kernel(DeviceType::kCpu, layer_norm_kernel)
                .derivative(layer_norm_derivative, {"input", "weight", "mean", "rstd"})
                .shard({"S(b), R, R -> S(b), S(b), S(b) where b < ndim(input) - 1"})
                .autocast(AutocastClass::kNone, AutocastClass::kFloat32)
                .fusion(FusionClass::kRowReduction)
                .samples({"f(2,3), f(3), f(3), 1e-5", "f(2,3), None, None, 1e-5",
                          "f(0,3), f(3), f(3), 1e-5"}));
  table.add(OpDef("native_rms_norm(Tensor input, Tensor? weight, float eps) -> (Tensor result, "
                  "Tensor rstd)")
                .infer(rms_norm_infer)
                .kernel(DeviceType::kCpu, rms_norm_kernel)
                .derivative(rms_norm_derivative, {"input", "weight", "rstd"})
                .shard({"S(b), R -> S(b), S(b) where b < ndim(input) - 1"})
                .autocast(AutocastClass::kNone, AutocastClass::kFloat32)
                .fusion(FusionClass::kRowReduction)
                .samples({"f(2,3), f(3), 1e-5", "f(2,3), None, 1e-5", "f(0,3), f(3), 1e-5"}));
  table.add(OpDef("layer_norm_backward(Tensor grad, Tensor input, Tensor mean, Tensor rstd, "
                  "Tensor? weight, bool need_input, bool need_weight, bool need_bias) -> (Tensor, "
                  "Tensor, Tensor)")
                .infer(layer_norm_backward_infer)
                .kernel(DeviceType::kCpu, layer_norm_backward_kernel)
                .not_differentiable(kComposedWhenRecorded)
                .shard({"S(b), S(b), S(b), S(b), R -> S(b), P, P where b < ndim(input) - 1"})
                .samples({"f(2,3), f(2,3), f(2,1), p(2,1), f(3), true, true, true"}));
  table.add(OpDef("rms_norm_backward(Tensor grad, Tensor input, Tensor rstd, Tensor? weight, bool "
                  "need_input, bool need_weight) -> (Tensor, Tensor)")
                .infer(rms_norm_backward_infer)
                .kernel(DeviceType::kCpu, rms_norm_backward_kernel)
                .not_differentiable(kComposedWhenRecorded)
                .shard({"S(b), S(b), S(b), R -> S(b), P where b < ndim(input) - 1"})
                .samples({"f(2,3), f(2,3), p(2,1), f(3), true, true"}));
  table.add(
      composed("layer_norm(Tensor input, int[] normalized_shape, Tensor? weight=None, "
               "Tensor? bias=None, float eps=1e-05) -> Tensor",
               layer_norm_composite,
               {"f(2,3), [3], f(3), f(3), 1e-5", "f(2,3,4), [3,4], None, None, 1e-5"}));
  table.add(
      composed("rms_norm(Tensor input, int[] normalized_shape, Tensor? weight=None, float? "
               "eps=None) -> Tensor",
               rms_norm_composite,
               {"f(2,3), [3], f(3), None",
                "f(2,3,4), [3,4], None, "
                "1e-6"}));
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;

Tensor layer_norm(const Tensor& input, Dims normalized_shape, const Tensor& weight,
                  const Tensor& bias, double eps) {
  static const Op& op = find_op("layer_norm");
  return call_one(op, input, normalized_shape, weight, bias, eps);
}
Tensor rms_norm(const Tensor& input, Dims normalized_shape, const Tensor& weight,
                std::optional<double> eps) {
  static const Op& op = find_op("rms_norm");
  return call_one(op, input, normalized_shape, weight, eps);
}
}  // namespace muster
