#pragma once
/// A golden case as a call of a muster operator: arguments by name, tensors by path.
///
/// PyTorch's spelling (namespace, overload by argument kinds, functional wrappers) is turned into
/// muster's by golden_names.cpp; the rest of the runner sees muster operators only.

#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/dispatch/op_table.h"
#include "tests/support/golden_case.h"

namespace muster::testing {

/// The call of one case. Tensors stand in `args` and `kwargs` as {"path": P} and are held in
/// `tensors`: P is "0" for argument 0, "0.1" for tensor 1 of a list, the name for a keyword.
struct GoldenCall {
  std::string op;  ///< muster's name once to_muster() ran
  nlohmann::json args = nlohmann::json::array();
  nlohmann::json kwargs = nlohmann::json::object();
  std::map<std::string, Tensor> tensors;

  /// Reads a case; op is PyTorch's "ns.op". The tensors are fresh.
  static GoldenCall read(const GoldenFile& file, const nlohmann::json& entry);
  /// The argument given by position or by keyword; null when neither was given.
  [[nodiscard]] const nlohmann::json* find(size_t position, const std::string& name) const;
  /// Removes a keyword.
  void drop(const std::string& name) { kwargs.erase(name); }
};

/// Turns PyTorch's spelling of a call into muster's. Names without an entry lose their namespace.
void to_muster(GoldenCall& call);

/// Arguments in the order of a schema; owns what the Values point to.
class BoundArguments {
 public:
  /// @error kInvalidArgument (throws) an unknown keyword, a missing argument or one too many: the
  /// mapping is wrong
  BoundArguments(const Schema& schema, const GoldenCall& call);
  BoundArguments(const BoundArguments&) = delete;
  BoundArguments& operator=(const BoundArguments&) = delete;

  [[nodiscard]] Args values() const noexcept { return values_; }

 private:
  Value value_of(const nlohmann::json& given, const Argument& argument, const GoldenCall& call);
  Value list_of(const nlohmann::json& given, const Argument& argument, const GoldenCall& call);
  Value default_of(const Argument& argument, const GoldenCall& call);

  std::vector<Value> values_;
  std::deque<Tensor> tensors_;
  std::deque<std::vector<Tensor>> tensor_lists_;
  std::deque<DimVector> int_lists_;
  std::deque<std::string> texts_;
};

/// Calls an operator and returns all its outputs.
std::vector<Tensor> call_op(const Op& op, Args values);

}  // namespace muster::testing
