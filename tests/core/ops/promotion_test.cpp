// The result dtype of every recorded pair of operands, by operator.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "core/ops/op_registry.h"
#include "core/ops/ops.h"
#include "tests/support/golden_case.h"

namespace muster::testing {
namespace {
using nlohmann::json;

// One operand of a table: a tensor of twos (or true) with one dim or none, or a number.
struct TableOperand {
  TableOperand(const std::string& kind, const std::string& name) {
    if (kind == "scalar") {
      number = name == "int" ? Value(2) : name == "float" ? Value(2.0) : Value(true);
      return;
    }
    const DType dtype = parse_dtype(name).value();
    const DimVector sizes = kind == "dim" ? DimVector{2} : DimVector{};
    tensor = dtype == DType::kBool ? full(sizes, true) : full(sizes, 2, dtype);
  }
  [[nodiscard]] Value value() const { return tensor.defined() ? Value(tensor) : number; }
  Tensor tensor;
  Value number;
};

using Run = Tensor (*)(const Op& op, const Value& a, const Value& b);

struct Entry {
  std::string op;
  Run run;
};

Tensor plain(const Op& op, const Value& a, const Value& b) { return call_one(op, a, b); }
Tensor with_alpha(const Op& op, const Value& a, const Value& b) { return call_one(op, a, b, 1); }
Tensor rounded(const Op& op, const Value& a, const Value& b) { return call_one(op, a, b, "floor"); }
Tensor truncated(const Op& op, const Value& a, const Value& b) {
  return call_one(op, a, b, "trunc");
}
Tensor with_none(const Op& op, const Value& a, const Value& b) {
  return call_one(op, a, b, std::nullopt);
}
Tensor half_way(const Op& op, const Value& a, const Value& b) { return call_one(op, a, b, 0.5); }
Tensor chosen(const Op& op, const Value& a, const Value& b) {
  const Tensor condition = tensor({true, false});
  return call_one(op, condition, a, b);
}
Tensor masked(const Op& op, const Value& a, const Value& b) {
  const Tensor mask = full({}, true);
  return call_one(op, a, mask, b);
}
Tensor listed(const Op& op, const Value& a, const Value& b) {
  const Tensor both[] = {a.tensor(), b.tensor()};
  return call_one(op, std::span<const Tensor>(both), 0);
}
Tensor twice(const Op& op, const Value& a, const Value& b) { return call_one(op, a, b, b, 1); }
Tensor product(const Op& op, const Value& a, const Value& b) {
  return call_one(op, reshape(a.tensor(), {1, 2}), reshape(b.tensor(), {2, 1}));
}
Tensor placed(const Op& op, const Value& a, const Value& b) {
  const Tensor index[] = {tensor({0, 1})};
  return call_one(op, a, std::span<const Tensor>(index), b, false);
}
Tensor copied(const Op& op, const Value& a, const Value& b) { return call_one(op, a, b, false); }

// How the tables' names are called here; other names are called with both operands.
const std::map<std::string, Entry> kBinary = {
    {"add", {"add", with_alpha}},
    {"radd", {"add", with_alpha}},
    {"sub", {"sub", with_alpha}},
    {"rsub", {"sub", with_alpha}},
    {"div", {"div", with_none}},
    {"rdiv", {"div", with_none}},
    {"div_floor", {"div", rounded}},
    {"div_trunc", {"div", truncated}},
    {"lerp", {"lerp", half_way}},
    {"clamp", {"clamp", with_none}},
    {"where", {"where", chosen}},
    {"masked_fill", {"masked_fill", masked}},
    {"masked_fill_", {"masked_fill_", masked}},
    {"cat", {"cat", listed}},
    {"stack", {"stack", listed}},
    {"addcmul", {"addcmul", twice}},
    {"addcdiv", {"addcdiv", twice}},
    {"mm", {"mm", product}},
    {"index_put", {"index_put", placed}},
    {"add_", {"add_", with_alpha}},
    {"sub_", {"sub_", with_alpha}},
    {"div_", {"div_", with_none}},
    {"copy_", {"copy_", copied}},
    {"full_like", {"full_like", with_none}},
};

std::string outcome(const Entry& entry, const json& row, const std::string& kind_a,
                    const std::string& kind_b) {
  const TableOperand a(kind_a, row[0]), b(kind_b, row[1]);
  try {
    const Tensor out = entry.run(ops::find_op(entry.op), a.value(), b.value());
    return std::string(to_string(out.dtype()));
  } catch (const Error&) {
    return "error";
  }
}

TEST(Promotion, TablesOfTwoOperandsEqualPyTorch) {
  const GoldenFile& file = GoldenFile::load("ops/promotion");
  int rows = 0;
  std::string skipped;
  for (const json& c : file.cases()) {
    const std::string op = c["op"], id = c["id"];
    if (!c.contains("kinds") || c.contains("default") || op == "result_type") continue;
    const auto known = kBinary.find(op);
    const Entry entry = known != kBinary.end() ? known->second : Entry{op, plain};
    if (ops::all_ops().find_or_null(entry.op) == nullptr) {
      skipped += " " + id;
      continue;
    }
    for (const json& row : c["rows"]) {
      ++rows;
      EXPECT_EQ(outcome(entry, row, c["kinds"][0], c["kinds"][1]), row[2].get<std::string>())
          << id << " " << row.dump();
    }
  }
  fmt::print("promotion of two operands: {} rows; skipped:{}\n", rows, skipped);
  EXPECT_GT(rows, 5000);
}

// Runs a table's operator on one tensor, with defaults for the rest.
Tensor run_unary(const std::string& op, const Tensor& x) {
  if (op == "sum_dim") return sum(x, 0);
  if (op == "logsumexp") return logsumexp(x, {0});
  if (op == "cummax") return cummax(x, 0)[0];
  const Op& found = ops::find_op(op);
  std::vector<Value> values = {Value(x)};
  for (size_t i = 1; i < found.schema().arguments.size(); ++i) {
    const Argument& argument = found.schema().arguments[i];
    const std::string text = argument.default_text.value_or("0");
    if (text == "None") {
      values.emplace_back();
    } else if (text == "False") {
      values.emplace_back(false);
    } else if (text.front() == '\'') {
      values.emplace_back("none");
    } else if (text.find('.') != std::string::npos) {
      values.emplace_back(std::stod(text));
    } else {
      values.emplace_back(static_cast<int64_t>(std::stoll(text)));
    }
  }
  std::vector<Tensor> outs(found.num_outputs(values));
  found.call(values, outs);
  return outs[0];
}

TEST(Promotion, TablesOfOneOperandEqualPyTorch) {
  const GoldenFile& file = GoldenFile::load("ops/promotion");
  int rows = 0;
  std::string skipped;
  for (const json& c : file.cases()) {
    const std::string op = c["op"], id = c["id"];
    const bool one_operand = id.rfind("unary.", 0) == 0 || id.rfind("act.", 0) == 0 ||
                             id.rfind("reduce.", 0) == 0 || id.rfind("inplace.", 0) == 0;
    if (!one_operand || c.contains("kinds")) continue;
    const bool known = op == "sum_dim" || ops::all_ops().find_or_null(op) != nullptr;
    if (!known) {
      skipped += " " + id;
      continue;
    }
    for (const json& row : c["rows"]) {
      ++rows;
      std::string got = "error";
      try {
        got = std::string(to_string(run_unary(op, TableOperand("dim", row[0]).tensor).dtype()));
      } catch (const Error&) {
      }
      EXPECT_EQ(got, row[1].get<std::string>()) << id << " " << row.dump();
    }
  }
  fmt::print("promotion of one operand: {} rows; skipped:{}\n", rows, skipped);
  EXPECT_GT(rows, 500);
}
}  // namespace
}  // namespace muster::testing
