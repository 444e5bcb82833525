#include "core/ops/reduction_def.h"

#include <fmt/format.h>

#include "core/ops/views.h"

namespace muster::ops {

TensorSpec reduced_spec(const Tensor& self, const Value& dims, bool keepdim, DType dtype,
                        const char* operation) {
  const DimVector reduced = normalized_dims(dims, self.ndim(), operation);
  return TensorSpec::contiguous(reduced_sizes(self.sizes(), reduced, keepdim), dtype,
                                self.device());
}

std::vector<std::string> reduction_rules(const char* partial) {
  std::vector<std::string> rules = {"S(b) -> S(b/dim) where b not in dim"};
  if (partial != nullptr) rules.push_back(fmt::format("S(b) -> {} where b in dim", partial));
  return rules;
}

Tensor with_dims(const Tensor& reduced, Dims dims, bool keepdim) {
  if (keepdim || dims.empty()) return reduced;
  Tensor out = reduced;
  for (const int64_t dim : dims) out = unsqueeze(out, dim);
  return out;
}

Tensor unreduced(const Tensor& grad, Dims sizes, Dims dims, bool keepdim) {
  return expand(with_dims(grad, dims, keepdim), sizes);
}

void check_not_empty(const Tensor& self, Dims dims, const char* operation) {
  if (self.numel() > 0) return;
  for (const int64_t dim : dims) {
    MUSTER_CHECK(self.size(dim) != 0, ErrorCode::kInvalidArgument,
                 "{}: expected reduction dim {} to have non-zero size; got {}", operation, dim,
                 self);
  }
}
}  // namespace muster::ops
