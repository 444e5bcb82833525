// The choice between attention kernels, and what users call.
#include <fmt/format.h>

#include <algorithm>

#include "core/autograd/autocast.h"
#include "core/base/text.h"
#include "core/ops/attention/sdpa_problem.h"
#include "core/ops/op_support.h"
#include "core/ops/views.h"

namespace muster {
namespace {
std::vector<SdpaKernel>& allowed_kernels() {
  thread_local std::vector<SdpaKernel> allowed = {SdpaKernel::kFlash, SdpaKernel::kMath};
  return allowed;
}

const ops::SdpaCandidate& candidate(SdpaKernel kernel) {
  const auto all = ops::sdpa_candidates();
  return *std::find_if(all.begin(), all.end(),
                       [kernel](const ops::SdpaCandidate& c) { return c.kernel == kernel; });
}

bool is_allowed(SdpaKernel kernel) {
  const auto& allowed = allowed_kernels();
  return std::find(allowed.begin(), allowed.end(), kernel) != allowed.end();
}

SdpaResult run_sdpa(const Tensor& query, const Tensor& key, const Tensor& value,
                    const SdpaOptions& options) {
  const ops::SdpaProblem problem = ops::make_sdpa_problem(query, key, value, options);
  // The first allowed and eligible kernel; reasons are put into words only for an error.
  for (const SdpaKernel kernel : allowed_kernels()) {
    const ops::SdpaCandidate& chosen = candidate(kernel);
    if (!chosen.rejection(problem).empty()) continue;
    SdpaResult result = chosen.run(problem);
    if (result.out.ndim() == static_cast<int64_t>(problem.out_sizes.size())) return result;
    DimVector rows = problem.out_sizes;
    rows.pop_back();
    return {reshape(result.out, problem.out_sizes), reshape(result.lse, rows)};
  }
  throw_error(ErrorCode::kUnimplemented, "{}", ops::choose_sdpa(problem).describe());
}

// Kernels are chosen by dtype, so autocast comes before the choice.
SdpaResult run_sdpa_cast(const Tensor& query, const Tensor& key, const Tensor& value,
                         const SdpaOptions& options) {
  if (!autocast_is_active()) return run_sdpa(query, key, value, options);
  SdpaOptions low = options;
  low.attn_mask = autocast_low_precision(options.attn_mask);
  const Tensor low_query = autocast_low_precision(query);
  const Tensor low_key = autocast_low_precision(key);
  const Tensor low_value = autocast_low_precision(value);
  const ExcludeKeysGuard outside(DispatchKey::kAutocast);
  return run_sdpa(low_query, low_key, low_value, low);
}
}  // namespace

std::string_view to_string(SdpaKernel kernel) noexcept {
  return kernel == SdpaKernel::kFlash ? "flash" : "math";
}

SdpaKernelGuard::SdpaKernelGuard(std::initializer_list<SdpaKernel> kernels)
    : saved_(allowed_kernels()) {
  allowed_kernels().assign(kernels.begin(), kernels.end());
}
SdpaKernelGuard::~SdpaKernelGuard() { allowed_kernels() = std::move(saved_); }

std::string SdpaChoice::describe() const {
  std::vector<std::string> asked;
  for (const SdpaKernel allowed : allowed_kernels()) asked.emplace_back(to_string(allowed));
  std::string text =
      kernel ? fmt::format("sdpa: {} for {}", to_string(*kernel), problem)
             : fmt::format("sdpa: no kernel for {}; asked for {{{}}}", problem, join(asked));
  for (const SdpaVerdict& verdict : verdicts) {
    if (verdict.rejection.empty()) continue;
    text += fmt::format("\n  {}: {}", to_string(verdict.kernel), verdict.rejection);
  }
  return text;
}

SdpaChoice sdpa_explain(const Tensor& query, const Tensor& key, const Tensor& value,
                        const SdpaOptions& options) {
  return ops::choose_sdpa(ops::make_sdpa_problem(query, key, value, options));
}

Tensor scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const SdpaOptions& options) {
  return run_sdpa_cast(query, key, value, options).out;
}

SdpaResult scaled_dot_product_attention_lse(const Tensor& query, const Tensor& key,
                                            const Tensor& value, const SdpaOptions& options) {
  return run_sdpa_cast(query, key, value, options);
}
}  // namespace muster

namespace muster::ops {
SdpaChoice choose_sdpa(const SdpaProblem& problem) {
  SdpaChoice choice;
  choice.problem = problem.describe();
  // Allowed kernels in the order asked for, then the others.
  std::vector<SdpaKernel> order = allowed_kernels();
  for (const SdpaCandidate& c : sdpa_candidates()) {
    if (!is_allowed(c.kernel)) order.push_back(c.kernel);
  }
  for (const SdpaKernel kernel : order) {
    std::string rejection = is_allowed(kernel) ? candidate(kernel).rejection(problem)
                                               : std::string("not in the allowed set");
    if (rejection.empty() && !choice.kernel) choice.kernel = kernel;
    choice.verdicts.push_back({kernel, std::move(rejection)});
  }
  return choice;
}
}  // namespace muster::ops

namespace muster::ops {
namespace {
// (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
void sdpa_composite(const OpArgs& args, std::span<Tensor> outs) {
  SdpaOptions options;
  if (!args[3].is_none()) options.attn_mask = args.tensor(3);
  options.dropout_p = args[4].number();
  options.causal = args[5].boolean() ? CausalAlignment::kUpperLeft : CausalAlignment::kNone;
  if (!args[6].is_none()) options.scale = args[6].number();
  options.enable_gqa = args[7].boolean();
  outs[0] = scaled_dot_product_attention(args.tensor(0), args.tensor(1), args.tensor(2), options);
}
}  // namespace

MUSTER_DEFINE_OP(scaled_dot_product_attention) {
  return composed(
      "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? "
      "attn_mask=None, float dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool "
      "enable_gqa=False) -> Tensor",
      sdpa_composite,
      {"f(1,2,3,4), f(1,2,3,4), f(1,2,3,4), None, 0.0, true, None, false",
       "f(1,2,3,4), f(1,1,5,4), f(1,1,5,4), b(3,5), 0.0, false, 0.5, true"});
}
}  // namespace muster::ops
