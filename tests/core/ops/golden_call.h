#pragma once
/// A recorded call of PyTorch as a call of one of our operators: names, arguments, leaves.
///
/// Arguments are matched to the schema: by position, by keyword, by default. Where PyTorch gives
/// one name to several operators (max over all, over a dim, of two tensors) the one that fits is
/// chosen. Nothing is computed here.

#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/dispatch/op_table.h"
#include "tests/support/golden_case.h"

namespace muster::testing {

class GoldenCall {
 public:
  /// Nothing when we have no such operator, or not with these arguments.
  static std::optional<GoldenCall> make(const GoldenFile& file, const nlohmann::json& golden_case);
  GoldenCall(GoldenCall&&) = default;

  [[nodiscard]] const Op& op() const { return *op_; }
  [[nodiscard]] Args args() const { return values_; }
  /// The tensor of the call at an argument path: "0", "1.2", "weight".
  [[nodiscard]] Tensor& tensor_at(const std::string& path) { return *by_path_.at(path); }
  [[nodiscard]] std::vector<std::string> paths() const;
  /// The number of outputs to compare: an operator of ours may return more.
  [[nodiscard]] size_t num_compared() const { return num_compared_; }

 private:
  GoldenCall() = default;
  bool bind(const GoldenFile& file, const Argument& argument, const nlohmann::json& value,
            const std::string& path);
  bool bind_default(const Argument& argument);

  const Op* op_ = nullptr;
  std::vector<Value> values_;
  std::map<std::string, Tensor*> by_path_;
  std::deque<Tensor> tensors_;
  std::deque<std::vector<Tensor>> lists_;
  std::deque<DimVector> ints_;
  std::deque<std::string> texts_;
  size_t num_compared_ = SIZE_MAX;
};

/// Why the operator of a case is not there: its name, for the listing of what was skipped.
std::string golden_op_name(const nlohmann::json& golden_case);

}  // namespace muster::testing
