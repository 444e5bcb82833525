#pragma once
/// Sample calls of operators: the texts that OpDef::samples holds, made into arguments.
///
/// A sample is the schema's arguments in order, separated by commas:
///   f(2,3)      a floating tensor of sizes [2, 3], values in (-2, 2); `f()` has 0 dims
///   p(..) u(..) q(..)  floating, values in (0.5, 2), (0, 1) and (1.1, 3)
///   i(..) b(..) i64 values in [-3, 4); bool
///   x5(..)      i64 values in [0, 5): indices
///   f(2,3).t    its transpose: sizes [3, 2], strides [1, 3]
///   [f(2), f(2)] [1, 2] []   lists; 3  0.5  true  None  "none"  f64   plain values
///   (f(2), f(2))  is a list as well; arguments with defaults may be left out at the end
/// Values are a pure function of the text's position and the seed.

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "core/dispatch/value.h"
#include "core/schema/schema.h"

namespace muster::ops {

class Sample {
 public:
  /// Reads a sample of `schema`; floating tensors get dtype `floating`.
  /// @error kInvalidArgument the text is malformed, or does not have one value per argument
  static Sample parse(std::string_view text, const Schema& schema, DType floating = DType::kF32,
                      uint64_t seed = 1);
  Sample(Sample&&) = default;

  /// Valid as long as the sample.
  [[nodiscard]] Args args() const { return values_; }
  /// The tensors of the sample, those in lists included, in order.
  [[nodiscard]] std::vector<Tensor> tensors() const;

 private:
  friend class SampleReader;
  Sample() = default;

  std::vector<Value> values_;
  std::deque<Tensor> tensors_;
  std::deque<std::vector<Tensor>> tensor_lists_;
  std::deque<DimVector> int_lists_;
  std::deque<std::string> texts_;
};

}  // namespace muster::ops
