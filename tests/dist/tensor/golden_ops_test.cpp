// PyTorch's table of operators on DTensors: every combination of placements must give the dense
// values and gradients, also where PyTorch's own are wrong or refused.
#include <nlohmann/json.hpp>
#include <set>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "dist/tensor/redistribute.h"
#include "tests/dist/tensor/golden_op_calls.h"
#include "tests/support/golden_case.h"
#include "tests/support/golden_close.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using Json = nlohmann::json;
using Placements = std::vector<Placement>;
using Tensors = std::vector<Tensor>;
using Call = testing::DTensorCall;
constexpr Placement kR = Placement::replicate();

// The kind of values that make_ops.py weighs results with.
Tensor weight_of(const Tensor& out, size_t i) {
  if (out.ndim() == 0) return to(tensor(4.0), out.dtype());
  std::vector<double> values;
  for (int64_t n = 0; n < out.numel(); ++n) {
    const int64_t k = (n + 2 * static_cast<int64_t>(i) + 1) * 7 % 13 - 6;
    values.push_back(static_cast<double>(k) + 1);
  }
  return to(from_vector(values, out.sizes()), out.dtype());
}

Tensor whole(const Tensor& x) { return is_dtensor(x) ? full_tensor(x) : x; }

struct Tally {
  int rows = 0;
  std::set<std::string> refused, wrong, absent;
};

testing::GoldenTolerance tolerance_of(const Tensor& expected) {
  if (!is_floating(expected.dtype())) return {};
  const double near = expected.dtype() == DType::kF64 ? 1e-11 : 1e-6;
  return {.rel = near, .floor = near};
}

void check_row(const Json& golden, const Json& row, const Call& call, const MeshRef& mesh,
               Tally& tally) {
  const auto& file = testing::GoldenFile::load("parallel/dtensor_ops");
  const bool differentiates = !golden["dense_grads"].is_null();
  const std::string what = golden["id"].get<std::string>() + " " + row["in"].dump();
  Tensors inputs;
  for (size_t i = 0; i < golden["inputs"].size(); ++i) {
    const Tensor full = file.tensor(golden["inputs"][i]);
    const Placement placement = parse_placement(row["in"][i].get<std::string>()).value();
    inputs.push_back(testing::golden_placed(full, mesh, placement));
    if (differentiates && is_floating(full.dtype())) requires_grad_(inputs.back());
  }
  ++tally.rows;
  try {
    const Tensors outs = call(inputs);
    for (size_t i = 0; i < outs.size(); ++i) {
      const Tensor expected = file.tensor(golden["dense"][i]);
      const auto close =
          testing::is_close(whole(detach(outs[i])), expected, tolerance_of(expected));
      if (!close) tally.wrong.insert(what + " result " + close.message());
    }
    if (!differentiates) return;
    Tensor total;
    for (size_t i = 0; i < outs.size(); ++i) {
      const Tensor weight =
          from_local(weight_of(whole(detach(outs[i])), i), mesh, {kR}, DimVector(outs[i].sizes()));
      const Tensor part = full_tensor(sum(mul(outs[i], weight)));
      total = total.defined() ? add(total, part) : part;
    }
    backward(total);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (golden["dense_grads"][i].is_null()) continue;
      const Tensor expected = file.tensor(golden["dense_grads"][i]);
      const auto close =
          testing::is_close(whole(grad_of(inputs[i])), expected, tolerance_of(expected));
      if (!close) tally.wrong.insert(what + " gradient " + close.message());
    }
  } catch (const Error& error) {
    // What PyTorch makes of an open sum that is written in place is no longer that tensor.
    const std::string text = error.what();
    if (text.find("as [P], and a written DTensor is never redistributed") == std::string::npos) {
      tally.refused.insert(what + ": " + text);
    }
  }
}

TEST(DTensorGolden, OperatorsGiveDenseValuesAndGradientsInEveryLayout) {
  std::vector<Tally> tallies(2);
  testing::run_ranks(
      2,
      [&](testing::RankContext& ctx) {
        const MeshRef mesh = testing::mesh_of(ctx, {{"x", 2}});
        Tally& tally = tallies[static_cast<size_t>(ctx.group_rank())];
        for (const Json& golden : testing::GoldenFile::load("parallel/dtensor_ops").cases()) {
          if (!golden.contains("table")) continue;
          const auto at = testing::golden_calls().find(testing::golden_call_name(golden));
          if (at == testing::golden_calls().end()) {
            tally.absent.insert(testing::golden_call_name(golden));
            continue;
          }
          for (const Json& row : golden["table"]) check_row(golden, row, at->second, mesh, tally);
        }
      },
      240s);
  const Tally& tally = tallies[0];
  EXPECT_EQ(tally.refused, tallies[1].refused);
  EXPECT_GT(tally.rows, 1100);
  for (const std::string& line : tally.wrong) ADD_FAILURE() << line;
  for (const std::string& line : tally.refused) ADD_FAILURE() << "refused: " << line;
  // Host reads are below; muster has no such operators.
  EXPECT_EQ(tally.absent, (std::set<std::string>{"bool of a compare", "equal", "item of sum",
                                                 "pad last", "sort 0 values", "topk 1 values"}));
}

// D4, D7: a number beside an open sum counts once; what is written in place is what is said.
TEST(DTensorGolden, NumbersBesideAnOpenSumCountOnce) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = testing::mesh_of(ctx, {{"x", 2}});
    const Tensor ten = distribute_tensor(to(arange(10), DType::kF64), mesh, {Placement::shard(0)});
    const Tensor total = sum(ten);
    EXPECT_TRUE(dtensor_spec(total).placements[0].is_partial());
    EXPECT_EQ(full_tensor(add(total, 10)).item(), 55);
    EXPECT_EQ(full_tensor(add(total, to(tensor(10.0), DType::kF64))).item(), 55);
    EXPECT_EQ(full_tensor(sub(total, 5)).item(), 40);
    EXPECT_EQ(full_tensor(mul(total, to(tensor(2.0), DType::kF64))).item(), 90);
    const Tensor open =
        from_local(full({2}, 72.0, DType::kF64), mesh, {Placement::partial()}, DimVector{2});
    // Either the right value or a refusal, never ranks that each clamp their share.
    const Result<void> outcome = testing::thrown_by([&] { clamp_(open, std::nullopt, 2); });
    if (outcome.ok()) {
      EXPECT_EQ(to_vector<double>(full_tensor(open)), (std::vector<double>{2, 2}));
    } else {
      EXPECT_THAT(outcome, testing::FailsWith(ErrorCode::kInvalidArgument,
                                              ::testing::HasSubstr("no sharding rule")));
      EXPECT_EQ(to_vector<double>(full_tensor(open)), (std::vector<double>{144, 144}));
    }
  });
}

// D12: the message says what lies beside what, and what to do.
TEST(DTensorGolden, PlainTensorsBesideDTensorsAreRefusedByName) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = testing::mesh_of(ctx, {{"x", 2}});
    const Tensor d = distribute_tensor(ones({6, 4}), mesh, {Placement::shard(0)});
    const auto is_told = ::testing::AllOf(::testing::HasSubstr("argument"),
                                          ::testing::HasSubstr("plain tensor f32[6, 4]"),
                                          ::testing::HasSubstr("distribute_tensor"));
    EXPECT_ERROR(add(d, ones({6, 4})), ErrorCode::kInvalidArgument, is_told);
    EXPECT_ERROR(add(ones({6, 4}), d), ErrorCode::kInvalidArgument, is_told);
    EXPECT_ERROR(linear(ones({6, 4}), d), ErrorCode::kInvalidArgument, is_told);
    EXPECT_EQ(to_string(dtensor_spec(add(d, ones({1}))).placements), "[S(0)]");
    EXPECT_EQ(to_string(dtensor_spec(add(d, ones({1, 1}))).placements), "[S(0)]");
    EXPECT_ERROR(redistribute(d, {Placement::partial()}), ErrorCode::kInvalidArgument,
                 ::testing::HasSubstr("ask for R or a shard"));
  });
}
}  // namespace
}  // namespace muster
