#include "core/autograd/gradcheck.h"

#include <fmt/format.h>

#include <cmath>

#include "core/autograd/autograd.h"
#include "core/dispatch/op_table.h"
#include "core/tensor/generator.h"

namespace muster {
namespace {
// Address of logical element `index` (row-major) of a strided f64 tensor.
double* element(const Tensor& tensor, int64_t index) {
  double* at = tensor.data<double>();
  for (int64_t d = tensor.ndim() - 1; d >= 0; --d) {
    const int64_t size = tensor.size(d);
    at += index % size * tensor.stride(d);
    index /= size;
  }
  return at;
}

std::vector<double> values_of(const std::vector<Tensor>& tensors) {
  std::vector<double> values;
  for (const Tensor& tensor : tensors) {
    if (tensor.dtype() != DType::kF64) continue;
    for (int64_t i = 0; i < tensor.numel(); ++i) values.push_back(*element(tensor, i));
  }
  return values;
}

Tensor zeros_like(const Tensor& like) {
  static const Op& zero = op_table().find("zero_");
  const Tensor out = empty_from_spec(TensorSpec::contiguous(like.sizes(), like.dtype()));
  call_one(zero, out);
  return out;
}

void check_input(const Tensor& input) {
  MUSTER_CHECK(input.dtype() == DType::kF64, ErrorCode::kInvalidArgument,
               "gradcheck: inputs that require a gradient must be f64; got {}", input);
  MUSTER_CHECK(!certainly_overlaps_itself(input.sizes(), input.strides()),
               ErrorCode::kInvalidArgument,
               "gradcheck: an input must not overlap itself; got sizes {} strides {}",
               to_string(input.sizes()), to_string(input.strides()));
}

// Row r, column c: d output element r / d input element c.
using Jacobian = std::vector<std::vector<double>>;

Jacobian numerical(const GradcheckFunction& function, std::span<const Tensor> inputs,
                   const Tensor& input, double eps) {
  Jacobian columns;
  const NoGradGuard no_grad;
  for (int64_t i = 0; i < input.numel(); ++i) {
    double* at = element(input, i);
    const double kept = *at;
    *at = kept + eps;
    std::vector<double> high = values_of(function(inputs));
    *at = kept - eps;
    const std::vector<double> low = values_of(function(inputs));
    *at = kept;
    for (size_t r = 0; r < high.size(); ++r) high[r] = (high[r] - low[r]) / (2 * eps);
    columns.push_back(std::move(high));
  }
  return columns;
}

Jacobian analytical(const std::vector<Tensor>& outputs, const Tensor& input) {
  Jacobian columns(static_cast<size_t>(input.numel()));
  for (const Tensor& output : outputs) {
    if (output.dtype() != DType::kF64) continue;
    for (int64_t r = 0; r < output.numel(); ++r) {
      std::vector<Tensor> gradient(1);
      if (output.requires_grad()) {
        const Tensor one_hot = zeros_like(output);
        *element(one_hot, r) = 1;
        gradient = grad(std::span(&output, 1), std::span(&input, 1), std::span(&one_hot, 1),
                        {.retain_graph = true, .allow_unused = true});
      }
      for (int64_t c = 0; c < input.numel(); ++c) {
        columns[static_cast<size_t>(c)].push_back(gradient[0].defined() ? *element(gradient[0], c)
                                                                        : 0.0);
      }
    }
  }
  return columns;
}
}  // namespace

bool gradcheck(const GradcheckFunction& function, std::span<const Tensor> inputs, std::string* why,
               GradcheckOptions options) {
  bool any = false;
  const std::vector<Tensor> outputs = function(inputs);
  for (size_t n = 0; n < inputs.size(); ++n) {
    const Tensor& input = inputs[n];
    if (!input.defined() || !input.requires_grad()) continue;
    any = true;
    check_input(input);
    const Jacobian expected = numerical(function, inputs, input, options.eps);
    const Jacobian actual = analytical(outputs, input);
    for (size_t c = 0; c < expected.size(); ++c) {
      for (size_t r = 0; r < expected[c].size(); ++r) {
        const double want = expected[c][r], got = actual[c][r];
        if (std::abs(want - got) <= options.atol + options.rtol * std::abs(want)) continue;
        if (why != nullptr) {
          *why = fmt::format(
              "input {} ({}): d output[{}] / d input[{}] is {} by backward, {} by differences", n,
              input, r, c, got, want);
        }
        return false;
      }
    }
  }
  MUSTER_CHECK(any, ErrorCode::kInvalidArgument,
               "gradcheck: at least one input must require a gradient");
  return true;
}

bool gradgradcheck(const GradcheckFunction& function, std::span<const Tensor> inputs,
                   std::string* why, GradcheckOptions options) {
  std::vector<Tensor> all(inputs.begin(), inputs.end());
  const size_t num_inputs = inputs.size();
  // Incoming gradients are inputs too: the gradient must be right in them as well.
  uint64_t counter = 0;
  for (const Tensor& output : function(inputs)) {
    if (output.dtype() != DType::kF64 || !output.requires_grad()) continue;
    Tensor incoming = zeros_like(output);
    for (int64_t i = 0; i < incoming.numel(); ++i) {
      *element(incoming, i) = philox4x32(7, 0, counter++)[0] * 0x1p-31 - 1.0;
    }
    all.push_back(requires_grad_(incoming));
  }
  const GradcheckFunction gradient = [&](std::span<const Tensor> arguments) {
    const GradModeGuard recording(true);
    std::vector<Tensor> outputs, wanted;
    for (Tensor& output : function(arguments.first(num_inputs))) {
      if (output.dtype() == DType::kF64 && output.requires_grad())
        outputs.push_back(std::move(output));
    }
    for (const Tensor& input : arguments.first(num_inputs)) {
      if (input.defined() && input.requires_grad()) wanted.push_back(input);
    }
    std::vector<Tensor> results = grad(outputs, wanted, arguments.subspan(num_inputs),
                                       {.create_graph = true, .allow_unused = true});
    for (size_t i = 0; i < results.size(); ++i) {
      if (!results[i].defined()) results[i] = zeros_like(wanted[i]);
    }
    return results;
  };
  return gradcheck(gradient, all, why, options);
}
}  // namespace muster
