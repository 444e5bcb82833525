// The attention kernels as operators, their eligibility and their derivatives.
#include <limits>

#include "core/kernels/cpu/sdpa.h"
#include "core/ops/attention/sdpa_problem.h"
#include "core/ops/linalg.h"
#include "core/ops/matrix_fold.h"
#include "core/ops/nn.h"
#include "core/ops/pointwise.h"
#include "core/ops/pointwise_def.h"
#include "core/ops/random.h"
#include "core/ops/reduction.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
using Context = const BackwardContext&;
namespace cpu = kernels::cpu;
constexpr const char* kArguments =
    "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, int causal, float scale) -> "
    "(Tensor out, Tensor lse)";
constexpr const char* kBackwardArguments =
    "(Tensor grad, Tensor? grad_lse, Tensor query, Tensor key, Tensor value, Tensor out, Tensor "
    "lse, Tensor? attn_mask, int causal, float scale, bool need_mask) -> (Tensor, Tensor, Tensor, "
    "Tensor)";

// attn_mask, causal and scale start at argument `first`.
cpu::SdpaOptions options_of(const OpArgs& args, size_t first) {
  cpu::SdpaOptions options;
  options.mask = optional_view(args[first]);
  options.causal = static_cast<cpu::Causal>(args[first + 1].integer());
  options.scale = args[first + 2].number();
  return options;
}

TensorSpec lse_spec(const Tensor& query) {
  return TensorSpec::contiguous(query.sizes().first(3), statistics_dtype(query.dtype()),
                                query.device());
}

// In memory as `like`, with other sizes.
TensorSpec spec_like(const Tensor& like, Dims sizes) {
  return {DimVector(sizes), preserved_strides(sizes, like.strides()), like.dtype(), like.device()};
}

DimVector out_sizes(const OpArgs& args) {
  DimVector sizes(args.tensor(0).sizes());
  sizes.back() = args.tensor(2).size(-1);
  return sizes;
}

std::vector<TensorSpec> math_infer(const OpArgs& args) {
  const Tensor& query = args.tensor(0);
  return {TensorSpec::contiguous(out_sizes(args), query.dtype(), query.device()), lse_spec(query)};
}

// Queries that lie as [B, L, H, E] give a result that does so too: no copy before the projection.
std::vector<TensorSpec> flash_infer(const OpArgs& args) {
  const Tensor& query = args.tensor(0);
  return {spec_like(query, out_sizes(args)), lse_spec(query)};
}

void math_kernel(const OpArgs& args, std::span<Tensor> outs) {
  cpu::sdpa_math(outs[0], TensorView(outs[1]), args.tensor(0), args.tensor(1), args.tensor(2),
                 options_of(args, 3));
}
void flash_kernel(const OpArgs& args, std::span<Tensor> outs) {
  cpu::sdpa_flash(outs[0], outs[1], args.tensor(0), args.tensor(1), args.tensor(2),
                  options_of(args, 3));
}

// (grad, grad_lse, query, key, value, out, lse, attn_mask, causal, scale, need_mask)
std::vector<TensorSpec> backward_infer(const OpArgs& args) {
  std::vector<TensorSpec> specs;
  for (size_t i = 2; i < 5; ++i) {
    specs.push_back(spec_like(args.tensor(i), args.tensor(i).sizes()));
  }
  const Tensor& query = args.tensor(2);
  specs.push_back(args[10].boolean() ? TensorSpec::contiguous(args.tensor(7).sizes(), query.dtype(),
                                                              query.device())
                                     : no_gradient(query.dtype(), query.device()));
  return specs;
}

template <void (*kKernel)(const cpu::SdpaGradients&, const cpu::SdpaBackwardInputs&,
                          const cpu::SdpaOptions&)>
void backward_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor dlse = args[1].is_none() ? Tensor() : dense(args.tensor(1));
  cpu::SdpaBackwardInputs inputs{args.tensor(0), args.tensor(2), args.tensor(3), args.tensor(4),
                                 args.tensor(5), args.tensor(6), std::nullopt};
  if (dlse.defined()) inputs.dlse = TensorView(dlse);
  cpu::SdpaGradients gradients{outs[0], outs[1], outs[2], std::nullopt};
  if (args[10].boolean()) gradients.dmask = TensorView(outs[3]);
  kKernel(gradients, inputs, options_of(args, 7));
}

// What every form made of operators shares. Heads that share a key head are one more dim: queries
// are [B, Hkv, G, L, E], keys [B, Hkv, 1, S, E].
struct Composed {
  Tensor q, k, v;
  Tensor hidden;  // [.., L, S] bool, or undefined
  Tensor scores;  // [B, Hkv, G, L, S]
  Tensor p;       // their softmax
  DimVector grouped_scores;
  double scale;

  Tensor grouped(const Tensor& x) const {
    return reshape(x, {k.size(0), k.size(1), q.size(2), x.size(2), x.size(3)});
  }
};

Tensor causal_hidden(int64_t queries, int64_t keys, int64_t alignment, Device device) {
  const Tensor seen = ones({queries, keys}, DType::kBool, device);
  const bool lower = alignment == static_cast<int64_t>(CausalAlignment::kLowerRight);
  return triu(seen, (lower ? keys - queries : 0) + 1);
}

Composed compose(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask,
                 int64_t causal, double scale) {
  const DType wide = statistics_dtype(query.dtype());
  const int64_t kv_heads = key.size(1);
  const int64_t group = kv_heads == 0 ? 1 : query.size(1) / kv_heads;
  Composed c;
  c.scale = scale;
  c.q = reshape(to(query, wide), {query.size(0), kv_heads, group, query.size(2), query.size(3)});
  c.k = unsqueeze(to(key, wide), 2);
  c.v = unsqueeze(to(value, wide), 2);
  Tensor scores = mul(matmul(c.q, transpose(c.k, -1, -2)), scale);
  c.grouped_scores = DimVector(scores.sizes());
  if (causal != 0) {
    c.hidden = causal_hidden(query.size(2), key.size(2), causal, query.device());
  } else if (mask.defined() && mask.dtype() == DType::kBool) {
    c.hidden = logical_not(reshape(mask, c.grouped_scores));
  } else if (mask.defined()) {
    scores = add(scores, reshape(to(mask, wide), c.grouped_scores));
  }
  if (c.hidden.defined()) {
    scores = masked_fill(scores, c.hidden, -std::numeric_limits<double>::infinity());
  }
  c.scores = scores;
  c.p = safe_softmax(scores, -1);
  return c;
}

// dS = P (dP - sum(dO O) + dlse); dQ = scale dS K, dK = scale dS^T Q, dV = P^T dO.
GradList composed_gradients(Context c) {
  const Tensor mask = c.saved("attn_mask");
  const Composed f = compose(c.saved("query"), c.saved("key"), c.saved("value"), mask,
                             c.arg("causal").integer(), c.arg("scale").number());
  const Tensor grad = c.grad(0).defined() ? f.grouped(to(c.grad(0), f.p.dtype())) : Tensor();
  Tensor slope, dv;
  if (grad.defined()) {
    const Tensor out = matmul(f.p, f.v);
    slope = sub(matmul(grad, transpose(f.v, -1, -2)), sum(mul(grad, out), -1, true));
    dv = sum(matmul(transpose(f.p, -1, -2), grad), 2);
  }
  if (c.grad(1).defined()) {
    const Tensor rows = reshape(to(c.grad(1), f.p.dtype()),
                                {f.q.size(0), f.q.size(1), f.q.size(2), f.q.size(3), 1});
    slope = slope.defined() ? add(slope, rows) : expand(rows, f.grouped_scores);
  }
  Tensor ds = mul(f.p, slope);
  if (f.hidden.defined()) ds = masked_fill(ds, f.hidden, 0);
  GradList grads(4);
  grads[0] = reshape(mul(matmul(ds, f.k), f.scale), c.spec("query").sizes);
  grads[1] = mul(sum(matmul(transpose(ds, -1, -2), f.q), 2), f.scale);
  grads[2] = dv;
  if (c.needs("attn_mask")) grads[3] = reshape(ds, c.spec("attn_mask").sizes);
  return grads;
}

GradList fused_gradients(Context c, const Op& op) {
  const bool need_mask = c.needs("attn_mask");
  const Tensor out = c.saved("out");
  const Tensor grad = c.grad(0).defined() ? c.grad(0) : zeros_like(out);
  const auto made = call_many<4>(op, grad, c.grad(1), c.saved("query"), c.saved("key"),
                                 c.saved("value"), out, c.saved("lse"), c.saved("attn_mask"),
                                 c.arg("causal"), c.arg("scale"), need_mask);
  return {made[0], made[1], made[2], need_mask ? made[3] : Tensor()};
}

GradList math_derivative(Context c) {
  static const Op& op = find_op("sdpa_math_backward");
  return c.create_graph() ? composed_gradients(c) : fused_gradients(c, op);
}
GradList flash_derivative(Context c) {
  static const Op& op = find_op("sdpa_flash_backward");
  return c.create_graph() ? composed_gradients(c) : fused_gradients(c, op);
}

SdpaResult run_op(const Op& op, const SdpaProblem& p) {
  const auto outs =
      call_many<2>(op, p.query, p.key, p.value, p.mask, static_cast<int64_t>(p.causal), p.scale);
  return {outs[0], outs[1]};
}

SdpaResult run_flash(const SdpaProblem& problem) {
  static const Op& op = find_op("sdpa_flash");
  return run_op(op, problem);
}
SdpaResult run_math(const SdpaProblem& problem) {
  static const Op& op = find_op("sdpa_math");
  return problem.dropout_p > 0 ? composed_sdpa(problem) : run_op(op, problem);
}

std::string reject_flash(const SdpaProblem& p) {
  if (p.query.dtype() == DType::kF64) return "f64 is not supported";
  if (p.dropout_p > 0) return "dropout is not supported";
  if (p.mask_requires_grad) return "a mask that requires a gradient is not supported";
  if (p.query.size(2) == 0 || p.key.size(2) == 0) return "a length of 0 is not supported";
  if (p.query.size(3) == 0 || p.value.size(3) == 0) return "a head dim of 0 is not supported";
  return {};
}
std::string reject_math(const SdpaProblem&) { return {}; }

constexpr SdpaCandidate kCandidates[] = {
    {SdpaKernel::kFlash, reject_flash, run_flash},
    {SdpaKernel::kMath, reject_math, run_math},
};
}  // namespace

std::span<const SdpaCandidate> sdpa_candidates() { return kCandidates; }

SdpaResult composed_sdpa(const SdpaProblem& problem) {
  const Composed c = compose(problem.query, problem.key, problem.value, problem.mask,
                             static_cast<int64_t>(problem.causal), problem.scale);
  // [B, kv heads, queries per key head, L, S]
  PhiloxStream stream = PhiloxStream::next();
  if (problem.head_shares > 1) {
    stream.global_sizes = DimVector(c.p.sizes());
    stream.global_sizes[1] *= problem.head_shares;
    stream.box_start = DimVector(c.p.sizes().size());
    stream.box_start[1] = problem.head_share * c.p.size(1);
  }
  const Tensor weights = dropout(c.p, problem.dropout_p, stream);
  DimVector sizes(problem.query.sizes());
  sizes.back() = problem.value.size(-1);
  return {to(reshape(matmul(weights, c.v), sizes), problem.query.dtype()),
          reshape(logsumexp(c.scores, {-1}), problem.query.sizes().first(3))};
}

static constexpr const char* kBackwardSample =
    "f(1,2,3,4), None, f(1,2,3,4), f(1,2,3,4), f(1,2,3,4), f(1,2,3,4), p(1,2,3), None, 1, 0.5, "
    "false";

MUSTER_DEFINE_OPS(sdpa) {
  const auto forward = [](const std::string& name) { return name + kArguments; };
  const auto backward = [](const std::string& name) { return name + kBackwardArguments; };
  const std::vector<std::string> rules = {"S(0), S(0), S(0), S(0) -> S(0), S(0)",
                                          "S(1), S(1), S(1), S(1) -> S(1), S(1)"};
  const std::vector<std::string> backward_rules = {
      "S(0), S(0), S(0), S(0), S(0), S(0), S(0), S(0) -> S(0), S(0), S(0), S(0)",
      "S(1), S(1), S(1), S(1), S(1), S(1), S(1), S(1) -> S(1), S(1), S(1), S(1)",
      // Without a gradient of the mask, whose place is then of one dim.
      "S(1), S(1), S(1), S(1), S(1), S(1), S(1), S(1) -> S(1), S(1), S(1), R"};
  const Saves saves = {"query", "key", "value", "attn_mask", "out", "lse"};
  table.add(OpDef(forward("sdpa_flash"))
                .infer(flash_infer)
                .kernel(DeviceType::kCpu, flash_kernel)
                .derivative(flash_derivative, saves)
                .shard(rules)
                .autocast(AutocastClass::kLowPrecision)
                .samples({"f(1,2,3,4), f(1,2,3,4), f(1,2,3,4), None, 1, 0.5"}));
  table.add(OpDef(forward("sdpa_math"))
                .infer(math_infer)
                .kernel(DeviceType::kCpu, math_kernel)
                .derivative(math_derivative, saves)
                .shard(rules)
                .autocast(AutocastClass::kLowPrecision)
                .samples({"f(1,2,3,4), f(1,2,3,4), f(1,2,3,4), None, 1, 0.5",
                          "f(1,2,3,4), f(1,1,5,4), f(1,1,5,4), b(1,2,3,5), 0, 0.5"}));
  table.add(OpDef(backward("sdpa_flash_backward"))
                .infer(backward_infer)
                .kernel(DeviceType::kCpu, backward_kernel<cpu::sdpa_flash_backward>)
                .not_differentiable(kComposedWhenRecorded)
                .shard(backward_rules)
                .samples({kBackwardSample}));
  table.add(OpDef(backward("sdpa_math_backward"))
                .infer(backward_infer)
                .kernel(DeviceType::kCpu, backward_kernel<cpu::sdpa_math_backward>)
                .not_differentiable(kComposedWhenRecorded)
                .shard(backward_rules)
                .samples({kBackwardSample}));
}
}  // namespace muster::ops
