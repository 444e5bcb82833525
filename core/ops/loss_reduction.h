#pragma once
/// The `reduction` argument of losses. For core/ops only.

#include "core/ops/losses.h"
#include "core/ops/op_support.h"
#include "core/ops/pointwise.h"
#include "core/ops/reduction.h"

namespace muster::ops {

/// @error kInvalidArgument for another word
inline Reduction parse_reduction(const Value& value, const char* operation) {
  const std::string_view text = value.text();
  if (text == "none") return Reduction::kNone;
  if (text == "mean") return Reduction::kMean;
  if (text == "sum") return Reduction::kSum;
  MUSTER_CHECK(
      text == "batchmean" && std::string_view(operation) == "kl_div", ErrorCode::kInvalidArgument,
      "{}: \"{}\" is not a valid value for reduction; use none, mean or sum", operation, text);
  return Reduction::kBatchMean;
}

inline const char* reduction_text(Reduction reduction) {
  switch (reduction) {
    case Reduction::kNone:
      return "none";
    case Reduction::kMean:
      return "mean";
    case Reduction::kSum:
      return "sum";
    case Reduction::kBatchMean:
      break;
  }
  return "batchmean";
}

/// Elementwise losses to the result; `denominator` replaces the number of elements in a mean.
inline Tensor reduce_loss(const Tensor& loss, Reduction reduction, const Tensor& denominator = {}) {
  switch (reduction) {
    case Reduction::kNone:
      return loss;
    case Reduction::kSum:
      return sum(loss);
    case Reduction::kMean:
      return denominator.defined() ? div(sum(loss), denominator) : mean(loss);
    case Reduction::kBatchMean:
      break;
  }
  return div(sum(loss), loss.ndim() == 0 ? 1 : loss.size(0));
}

}  // namespace muster::ops
