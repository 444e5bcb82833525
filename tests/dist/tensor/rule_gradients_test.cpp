// The gradients of every operator of the table, in every layout of its samples, are those of one
// process.
#include <fmt/format.h>

#include <set>

#include "core/autograd/autograd.h"
#include "core/ops/op_registry.h"
#include "core/ops/op_samples.h"
#include "core/ops/ops.h"
#include "dist/tensor/redistribute.h"
#include "dist/tensor/shard_rules.h"
#include "tests/dist/tensor/audit_layouts.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using Tensors = std::vector<Tensor>;
using testing::AuditChoices;
using testing::AuditLayouts;

// Weights that tell elements and results apart.
Tensor weight_of(const Tensor& out, size_t r) {
  const Tensor count =
      add(arange(numel_of(out.sizes()), DType::kF64), 1.0 + static_cast<double>(r));
  return to(view(sin(count), out.sizes()), out.dtype());
}

// The gradients of a weighted sum of all floating results; empty where there is none, undefined for
// what does not take part.
Tensors gradients(const Op& op, Args args, const Tensors& inputs) {
  for (const Tensor& input : inputs) {
    if (is_floating(input.dtype())) requires_grad_(input);
  }
  const ReplacedArgs placed(args, inputs);
  Tensors outs(op.num_outputs(placed.args()));
  op.call(placed.args(), outs);
  Tensor total;
  for (size_t r = 0; r < outs.size(); ++r) {
    const Tensor& out = outs[r];
    if (!out.requires_grad()) continue;
    const Tensor whole = is_dtensor(out) ? full_tensor(out) : out;
    const Tensor part = sum(mul(whole, weight_of(whole, r)));
    total = total.defined() ? add(total, part) : part;
  }
  if (!total.defined()) return {};
  backward(total);
  Tensors grads;
  for (const Tensor& input : inputs) {
    const Tensor grad = grad_of(input);
    grads.push_back(grad.defined() && is_dtensor(grad) ? full_tensor(grad) : grad);
  }
  return grads;
}

struct Audit {
  int64_t agreed = 0;
  std::set<std::string> wrong;
};

void check_call(const Op& op, Args args, const Tensors& dense, const Tensors& expected,
                const std::vector<AuditLayouts>& layouts, const MeshRef& mesh,
                const std::string& what, Audit& audit) {
  Tensors placed;
  std::string call = fmt::format("{} {} as", op.name(), what);
  for (size_t i = 0; i < dense.size(); ++i) {
    std::vector<Placement> placements;
    for (const AuditLayouts& on_axis : layouts) placements.push_back(on_axis[i]);
    placed.push_back(testing::audit_placed(dense[i], mesh, placements));
    call += " " + to_string(placements);
  }
  Tensors grads;
  try {
    grads = gradients(op, args, placed);
  } catch (const Error& error) {
    audit.wrong.insert(call + ": " + error.what());
    return;
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    const bool is_there = expected[i].defined() == grads[i].defined();
    if (!is_there || (expected[i].defined() && !testing::same_values(grads[i], expected[i]))) {
      audit.wrong.insert(fmt::format("{} gradient {}", call, i));
      return;
    }
  }
  ++audit.agreed;
}

bool is_comparable(const Op& op) {
  const std::string& name = op.name();
  return op.facts().derivative != nullptr && !op.writes_self() && !op.facts().is_random &&
         name.find("philox") == std::string::npos && name != "as_strided";
}

void audit_op(const Op& op, const MeshRef& mesh, const AuditChoices& choices, Audit& audit) {
  for (const std::string& text : op.facts().samples) {
    const ops::Sample sample = ops::Sample::parse(text, op.schema(), DType::kF64);
    const Tensors dense = sample.tensors();
    Tensors copies;
    for (const Tensor& tensor : dense) copies.push_back(clone(tensor));
    Tensors expected;
    try {
      expected = gradients(op, sample.args(), copies);
    } catch (const Error& error) {
      // Some have no further derivative, and the flash kernel takes no f64.
      ASSERT_TRUE(error.code() == ErrorCode::kUnimplemented || op.name() == "sdpa_flash")
          << op.name() << ": " << error.what();
    }
    if (expected.empty()) continue;
    for (const std::vector<AuditLayouts>& layouts : choices(dense, *mesh)) {
      check_call(op, sample.args(), dense, expected, layouts, mesh, text, audit);
    }
  }
}

void audit_all(const std::vector<DeviceMesh::Axis>& axes, const AuditChoices& choices,
               int64_t at_least) {
  const auto audit =
      testing::audit_every_op<Audit>(axes, [&](const Op& op, const MeshRef& mesh, Audit& own) {
        if (is_comparable(op)) audit_op(op, mesh, choices, own);
      });
  EXPECT_GT(audit.agreed, at_least);
  for (const std::string& line : audit.wrong) ADD_FAILURE() << line;
}

TEST(ShardRuleGradients, AgreeWithOneProcessOnThreeRanks) {
  audit_all({{"tp", 3}}, testing::shards_and_sums, 1000);
}
TEST(ShardRuleGradients, AgreeWithOneProcessOnTwoAxes) {
  audit_all({{"dp", 2}, {"tp", 2}}, testing::shards_and_sums, 1000);
}
TEST(ShardRuleGradients, AgreeWithOneProcessForOtherReductionsAndStridedShards) {
  audit_all({{"tp", 2}}, testing::other_reductions, 500);
  audit_all({{"dp", 2}, {"tp", 2}}, testing::strided_shards, 500);
}
}  // namespace
}  // namespace muster
