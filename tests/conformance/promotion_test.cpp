// Result dtypes of operators for all pairs of operand dtypes and kinds, against PyTorch's tables.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/ops/op_registry.h"
#include "tests/conformance/golden_call.h"
#include "tests/conformance/known_gaps.h"

namespace muster::testing {
namespace {
using Json = nlohmann::json;

Tensor filled(Dims sizes, DType dtype, int value) {
  Tensor tensor = empty_from_spec(TensorSpec::contiguous(sizes, dtype));
  visit_dtype(dtype, [&](auto type) {
    using Element = decltype(type);
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      if constexpr (std::is_constructible_v<Element, float> && sizeof(Element) == 2 &&
                    !std::is_integral_v<Element>) {
        tensor.data<Element>()[i] = Element(static_cast<float>(value));
      } else {
        tensor.data<Element>()[i] = static_cast<Element>(value);
      }
    }
  });
  return tensor;
}

// A call whose operands are given one by one, as the tables name them.
class TableCall {
 public:
  explicit TableCall(const std::string& op) { call_.op = op; }

  void add(const std::string& kind, const std::string& type) {
    if (kind == "scalar") {
      call_.args.push_back(type == "bool" ? Json(true) : type == "int" ? Json(2) : Json(2.0));
      return;
    }
    const DType dtype = parse_dtype(type).value();
    const int value = dtype == DType::kBool ? 1 : 2;
    add_tensor(kind == "dim" ? filled({2}, dtype, value) : filled({}, dtype, value));
  }
  void add_tensor(const Tensor& tensor) {
    const std::string path = std::to_string(call_.args.size());
    call_.tensors[path] = tensor;
    call_.args.push_back({{"path", path}});
  }
  void set(const std::string& keyword, const Json& value) { call_.kwargs[keyword] = value; }
  void move_to_front(size_t from) {
    const Json moved = call_.args[from];
    call_.args.erase(call_.args.begin() + static_cast<int64_t>(from));
    call_.args.insert(call_.args.begin(), moved);
  }
  void repeat_last() { call_.args.push_back(call_.args.back()); }
  void wrap_all_in_a_list() { call_.args = Json::array({call_.args}); }

  /// The dtype of the first result, "error" for a refusal, nothing without such an operator.
  std::optional<std::string> result() {
    to_muster(call_);
    const Op* const op = ops::all_ops().find_or_null(call_.op);
    if (op == nullptr) return std::nullopt;
    const BoundArguments bound(op->schema(), call_);
    try {
      return std::string(to_string(call_op(*op, bound.values()).at(0).dtype()));
    } catch (const Error& error) {
      return error_class(error.code()) == ErrorClass::kUser ? "error" : error.what();
    }
  }

 private:
  GoldenCall call_;
};

// The call that a row of a table stands for; operands in PyTorch's order.
TableCall call_of(const Json& table, const Json& row) {
  const auto name = table["op"].get<std::string>();
  const auto id = table["id"].get<std::string>();
  const std::string kind0 = table.contains("kinds") ? table["kinds"][0] : Json("dim");
  const std::string kind1 = table.contains("kinds") ? table["kinds"][1] : Json("dim");
  const bool is_unary = !table.contains("kinds");
  std::string op = name;
  if (name == "div_floor" || name == "div_trunc" || name == "rdiv") op = "div";
  if (name == "rsub") op = "sub";
  if (name == "radd") op = "add";
  if (name == "sum_dim") op = "sum";
  TableCall call("torch." + op);
  call.add(kind0, row[0].get<std::string>());
  if (!is_unary) call.add(kind1, row[1].get<std::string>());
  if (name == "div_floor") call.set("rounding_mode", "floor");
  if (name == "div_trunc") call.set("rounding_mode", "trunc");
  if (name == "lerp") call.set("weight", 0.5);
  if (name == "addcmul" || name == "addcdiv") call.repeat_last();
  if (name == "cat" || name == "stack") call.wrap_all_in_a_list();
  if (name == "where" || name == "masked_fill" || name == "masked_fill_") {
    call.add_tensor(name == "where" ? filled({2}, DType::kBool, 1) : filled({}, DType::kBool, 1));
    if (name == "where") call.move_to_front(2);
  }
  const std::string along[] = {"sum_dim", "cumsum",       "cumprod", "logsumexp",
                               "softmax", "logcumsumexp", "cummax"};
  if (std::find(std::begin(along), std::end(along), name) != std::end(along)) call.set("dim", 0);
  return call;
}

// Tables of things that are no single operator call, or that need another default dtype.
bool is_other(const Json& table) {
  const auto id = table["id"].get<std::string>();
  const auto op = table["op"].get<std::string>();
  return id.starts_with("out.") || id.starts_with("default_") || id == "factory" ||
         op == "result_type" || op == "can_cast" || op == "promote_types" || op == "mm" ||
         op == "index_put" || op == "setitem" || op == "trace" || op == "masked_fill" ||
         op == "masked_fill_";
}

class PromotionTest : public ::testing::Test {
 public:
  explicit PromotionTest(const Json& table) : table_(table) {}
  void TestBody() override {
    std::string wrong;
    for (const Json& row : table_["rows"]) {
      TableCall call = call_of(table_, row);
      const std::optional<std::string> got = call.result();
      if (!got) GTEST_SKIP() << "muster has no operator " << table_["op"];
      if (*got != row.back().get<std::string>())
        wrong += fmt::format("\n  {}: got {}", row.dump(), *got);
    }
    const bool is_known = known_gaps().count("promotion/" + table_["id"].get<std::string>()) > 0;
    EXPECT_EQ(wrong.empty(), !is_known)
        << table_["id"]
        << (is_known ? ": agrees now: take it out of known_gaps.txt" : wrong.substr(0, 400));
  }

 private:
  const Json& table_;
};

bool register_tables() {
  for (const Json& table : GoldenFile::load("ops/promotion").cases()) {
    if (is_other(table)) continue;
    std::string name = table["id"];
    std::replace(name.begin(), name.end(), '.', '_');
    ::testing::RegisterTest("Promotion", name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                            [&table]() -> PromotionTest* { return new PromotionTest(table); });
  }
  return true;
}
const bool kRegistered = register_tables();
}  // namespace
}  // namespace muster::testing
