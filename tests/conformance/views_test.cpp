// Chains of view operators and the layouts of elementwise results, against PyTorch.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/ops/op_registry.h"
#include "tests/conformance/golden_call.h"
#include "tests/support/golden_close.h"
#include "tests/support/matchers.h"

namespace muster::testing {
namespace {
using Json = nlohmann::json;

std::string layout_text(Dims sizes, Dims strides, int64_t offset) {
  return fmt::format("sizes {} strides {} offset {}", to_string(sizes), to_string(strides), offset);
}
std::string layout_text(const Tensor& x) {
  return layout_text(x.sizes(), x.strides(), x.storage_offset());
}
std::string layout_text(const Json& layout) {
  return layout_text(golden_ints(layout["sizes"]), golden_ints(layout["strides"]),
                     layout["offset"]);
}

// A tensor whose storage holds 0, 1, 2, ..
Tensor base_of(const Json& base) {
  const DType dtype = parse_dtype(base["dtype"].get<std::string>()).value();
  const int64_t numel = base["numel"];
  Tensor storage = empty_from_spec(TensorSpec::contiguous(Dims(std::span(&numel, 1)), dtype));
  visit_dtype(dtype, [&](auto type) {
    using Element = decltype(type);
    for (int64_t i = 0; i < numel; ++i) {
      if constexpr (std::is_arithmetic_v<Element>) {
        storage.data<Element>()[i] = static_cast<Element>(i);
      } else {
        storage.data<Element>()[i] = Element(static_cast<float>(i));
      }
    }
  });
  return shallow_detach(alias_with_layout(
      storage, Layout{DimVector(golden_ints(base["sizes"])),
                      DimVector(golden_ints(base["strides"])), base["offset"].get<int64_t>()}));
}

// The operator and its arguments for a step; steps that muster spells otherwise are translated.
GoldenCall call_of(const Json& step) {
  GoldenCall call;
  call.op = "Tensor." + step[0].get<std::string>();
  call.args.push_back({{"path", "0"}});
  for (size_t i = 1; i < step.size(); ++i) call.args.push_back(step[i]);
  const std::string name = step[0];
  if (name == "chunk" || name == "split" || name == "tensor_split" || name == "unbind") {
    call.args.erase(call.args.size() - 1);  // the piece that is taken
  }
  if (name == "add_self") {
    call.op = "Tensor.add";
    call.args.push_back({{"path", "0"}});
  }
  if (name == "empty_like") call.op = "Tensor.zeros_like";  // so that the values are known
  if (name == "to_f32") {
    call.op = "Tensor.to";
    call.args.push_back("f32");
  }
  return call;
}

// Nothing when muster has no such operator.
std::optional<Tensor> run_step(const Tensor& x, const Json& step) {
  if (step[0] == "softmax") return std::nullopt;  // in f64 there
  GoldenCall call = call_of(step);
  call.tensors["0"] = x;
  to_muster(call);
  const Op* const op = ops::all_ops().find_or_null(call.op);
  if (op == nullptr) return std::nullopt;
  const BoundArguments bound(op->schema(), call);
  const std::vector<Tensor> outs = call_op(*op, bound.values());
  const auto piece = outs.size() == 1 ? 0 : step.back().get<size_t>();
  MUSTER_CHECK(piece < outs.size(), ErrorCode::kOutOfRange, "piece: one of {}; got {}", outs.size(),
               piece);
  return outs[piece];
}

// True when the chain ran to its end (or to its refusal).
bool run_chain(const Json& entry) {
  const Tensor base = base_of(entry["base"]);
  Tensor x = base;
  const int64_t refused = entry.contains("error") ? entry["error"]["at"].get<int64_t>() : -1;
  for (size_t i = 0; i < entry["steps"].size(); ++i) {
    std::optional<Tensor> next;
    const Result<void> result = catch_error([&] { next = run_step(x, entry["steps"][i]); });
    if (static_cast<int64_t>(i) == refused) {
      if (result.ok() && !next) return false;
      EXPECT_FALSE(result.ok()) << entry["id"] << ": " << entry["error"]["fact"];
      if (!result.ok()) {
        EXPECT_EQ(error_class(result.error().code()), ErrorClass::kUser) << result.error().what();
      }
      return true;
    }
    EXPECT_OK(result) << entry["id"] << " step " << i;
    if (!result.ok() || !next) return false;
    x = *next;
    EXPECT_EQ(layout_text(x), layout_text(entry["trace"][i]))
        << entry["id"] << " step " << i << " " << entry["steps"][i];
    if (layout_text(x) != layout_text(entry["trace"][i])) return false;
  }
  const Json& out = entry["out"];
  EXPECT_EQ(x.dtype(), parse_dtype(out["dtype"].get<std::string>()).value()) << entry["id"];
  EXPECT_EQ(x.is_contiguous(), out["contiguous"].get<bool>()) << entry["id"];
  EXPECT_EQ(x.storage() == base.storage(), out["alias"].get<bool>()) << entry["id"];
  if (out.contains("values") && x.dtype() == DType::kF32) {
    Tensor wanted = empty_from_spec(TensorSpec::contiguous(x.sizes(), DType::kF32));
    const auto values = out["values"].get<std::vector<float>>();
    std::copy(values.begin(), values.end(), wanted.data<float>());
    expect_close(x, wanted, default_tolerance(DType::kF32), entry["id"]);
  }
  return true;
}

TEST(GoldenViews, ChainsOfOperatorsMatch) {
  int num_run = 0;
  for (const Json& entry : GoldenFile::load("ops/views").cases()) {
    if (entry.contains("steps") && run_chain(entry)) ++num_run;
  }
  EXPECT_GE(num_run, 560);
}

TEST(GoldenViews, ElementwiseResultsOfTwoOperandsHaveTheSameLayout) {
  int num_run = 0;
  for (const Json& entry : GoldenFile::load("ops/views").cases()) {
    if (!entry.contains("op")) continue;
    const Op& add = ops::find_op("add");
    const Tensor sum = call_one(add, base_of(entry["a"]), base_of(entry["b"]), 1);
    EXPECT_EQ(layout_text(sum), layout_text(entry["out"]))
        << entry["id"] << entry["a"] << entry["b"];
    ++num_run;
  }
  EXPECT_EQ(num_run, 323);
}
}  // namespace
}  // namespace muster::testing
