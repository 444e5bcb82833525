// Runs every operator of the table in every layout of its samples and compares with one process.

#include <fmt/format.h>

#include <set>

#include "core/ops/op_registry.h"
#include "core/ops/op_samples.h"
#include "core/ops/ops.h"
#include "dist/tensor/redistribute.h"
#include "dist/tensor/shard_rules.h"
#include "tests/dist/tensor/audit_layouts.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using testing::AuditChoices;
using testing::AuditLayouts;
using Placements = std::vector<Placement>;

struct Audit {
  int64_t agreed = 0;
  std::set<std::string> wrong;
  std::map<std::string, int64_t> refused;
};

// The tensors of a call by axis: layouts[axis][tensor]. `written` is what dense ones are after it.
void check_call(const Op& op, Args args, const std::vector<Tensor>& dense,
                const std::vector<AuditLayouts>& layouts, const std::vector<Tensor>& expected,
                const std::vector<Tensor>& written, const MeshRef& mesh, const std::string& what,
                Audit& audit) {
  std::vector<Tensor> placed;
  std::string call = fmt::format("{} {} as", op.name(), what);
  for (size_t i = 0; i < dense.size(); ++i) {
    Placements placements;
    for (const AuditLayouts& on_axis : layouts) placements.push_back(on_axis[i]);
    placed.push_back(testing::audit_placed(dense[i], mesh, placements));
    call += " " + to_string(placements);
  }
  ReplacedArgs replaced(args, placed);
  std::vector<Tensor> outs(expected.size());
  std::string refusal;
  try {
    op.call(replaced.args(), outs);
  } catch (const Error& error) {
    refusal = error.what();
  }
  // Whatever the outcome, all ranks must have come to the same.
  const Tensor refusals = full({1}, refusal.empty() ? 0 : 1, DType::kI64);
  for (int axis = 0; axis < mesh->num_axes(); ++axis) {
    mesh->group(axis)->run(mesh->group(axis)->all_reduce(refusals));
  }
  if (refusals.item_int() != 0) {
    if (refusals.item_int() != mesh->size()) audit.wrong.insert("ranks differ: " + call + refusal);
    ++audit.refused[op.name() + ": " + refusal.substr(0, refusal.find('\n'))];
    return;
  }
  for (size_t r = 0; r < outs.size(); ++r) {
    const Tensor got = is_dtensor(outs[r]) ? full_tensor(outs[r]) : outs[r];
    if (!testing::same_values(got, expected[r])) {
      audit.wrong.insert(
          fmt::format("{} result {} as {}", call, r,
                      is_dtensor(outs[r]) ? to_string(dtensor_spec(outs[r]).placements) : "plain"));
      return;
    }
  }
  for (size_t i = 0; op.schema().returns.empty() && i < placed.size(); ++i) {
    if (!testing::same_values(full_tensor(placed[i]), written[i])) {
      audit.wrong.insert(fmt::format("{} writes tensor {}", call, i));
      return;
    }
  }
  ++audit.agreed;
}

void audit_op(const Op& op, const MeshRef& mesh, const AuditChoices& choices, Audit& audit) {
  for (const std::string& text : op.facts().samples) {
    const ops::Sample sample = ops::Sample::parse(text, op.schema(), DType::kF64);
    const std::vector<Tensor> dense = sample.tensors();
    if (dense.empty()) return;
    std::vector<Tensor> copies;
    for (const Tensor& tensor : dense) copies.push_back(clone(tensor));
    const ReplacedArgs dense_args(sample.args(), copies);
    std::vector<Tensor> expected;
    try {
      expected.resize(op.num_outputs(dense_args.args()));
      op.call(dense_args.args(), expected);
    } catch (const Error&) {
      continue;  // in place, where the result does not fit self
    }
    for (const std::vector<AuditLayouts>& layouts : choices(dense, *mesh)) {
      check_call(op, sample.args(), dense, layouts, expected, copies, mesh, text, audit);
    }
  }
}

bool is_comparable(const Op& op) {
  const std::string& name = op.name();
  // Uninitialised memory, streams of numbers, and strides that only memory at hand can have.
  return !op.facts().is_random && name.find("empty") == std::string::npos &&
         name.find("philox") == std::string::npos && name != "dropout" && name != "as_strided";
}

// A written DTensor never moves; one_hot must read the largest index.
bool is_expected_refusal(const std::string& line) {
  return line.find("no sharding rule lets it write") != std::string::npos ||
         line.find("is written, so it must") != std::string::npos ||
         line.starts_with("one_hot: item");
}

void audit_all(const std::vector<DeviceMesh::Axis>& axes, const AuditChoices& choices,
               int64_t at_least) {
  const auto audit =
      testing::audit_every_op<Audit>(axes, [&](const Op& op, const MeshRef& mesh, Audit& own) {
        if (is_comparable(op)) audit_op(op, mesh, choices, own);
      });
  EXPECT_GT(audit.agreed, at_least);
  for (const std::string& line : audit.wrong) ADD_FAILURE() << line;
  for (const auto& [line, count] : audit.refused) {
    EXPECT_TRUE(is_expected_refusal(line)) << count << " x " << line;
  }
}

TEST(ShardRules, EveryOperatorAgreesWithOneProcessOnTwoRanks) {
  audit_all({{"tp", 2}}, testing::shards_and_sums, 3000);
}
TEST(ShardRules, EveryOperatorAgreesWithOneProcessOnThreeRanks) {
  audit_all({{"tp", 3}}, testing::shards_and_sums, 3000);
}
TEST(ShardRules, EveryOperatorAgreesWithOneProcessOnTwoAxes) {
  audit_all({{"dp", 2}, {"tp", 2}}, testing::shards_and_sums, 3000);
}
// Of five ranks most hold nothing, along one axis of degree 1 a rank holds all.
TEST(ShardRules, EveryOperatorAgreesWithOneProcessWhereRanksHoldNothingOrAll) {
  audit_all({{"tp", 5}}, testing::shards_and_sums, 3000);
  audit_all({{"dp", 1}, {"tp", 2}}, testing::shards_and_sums, 3000);
}
// Averages, products and extremes pass few operators: pytorch#165962, #170632.
TEST(ShardRules, EveryOperatorReducesWhatItCannotTakeOpen) {
  audit_all({{"tp", 2}}, testing::other_reductions, 1000);
  audit_all({{"dp", 2}, {"tp", 2}}, testing::other_reductions, 1000);
}
TEST(ShardRules, EveryOperatorTakesStridedShards) {
  audit_all({{"dp", 2}, {"tp", 2}}, testing::strided_shards, 1000);
}
}  // namespace
}  // namespace muster
