// Runs every operator of the table in every layout of its samples and compares with one process.

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "core/ops/op_registry.h"
#include "core/ops/op_samples.h"
#include "core/ops/ops.h"
#include "dist/tensor/redistribute.h"
#include "dist/tensor/shard_rules.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using Layouts = std::vector<Placement>;  // one per tensor, on one mesh axis
using Placements = std::vector<Placement>;

std::vector<double> values_of(const Tensor& x) {
  return to_vector<double>(to(contiguous(detach(x)), DType::kF64));
}

bool same_values(const Tensor& a, const Tensor& b) {
  if (to_string(a.sizes()) != to_string(b.sizes()) || a.dtype() != b.dtype()) return false;
  const auto x = values_of(a), y = values_of(b);
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i]) && std::isnan(y[i])) continue;
    if (!(x[i] == y[i] || std::abs(x[i] - y[i]) <= 1e-9 * (1 + std::abs(y[i])))) return false;
  }
  return true;
}

std::vector<Placement> choices_for(const Tensor& x) {
  std::vector<Placement> choices = {Placement::replicate()};
  for (int32_t dim = 0; dim < x.ndim(); ++dim) choices.push_back(Placement::shard(dim));
  if (x.dtype() != DType::kBool) choices.push_back(Placement::partial());
  return choices;
}

// All combinations for one or two tensors; for more, one moved at a time and all cut alike.
std::vector<Layouts> layouts_of(const std::vector<Tensor>& tensors) {
  std::vector<Layouts> all;
  if (tensors.size() <= 2) {
    all.emplace_back();
    for (const Tensor& tensor : tensors) {
      std::vector<Layouts> longer;
      for (const Layouts& begun : all) {
        for (const Placement placement : choices_for(tensor)) {
          longer.push_back(begun);
          longer.back().push_back(placement);
        }
      }
      all = std::move(longer);
    }
    return all;
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (const Placement placement : choices_for(tensors[i])) {
      Layouts one(tensors.size());
      one[i] = placement;
      all.push_back(one);
    }
  }
  for (int32_t dim = 0; dim < 3; ++dim) {
    Layouts alike(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (dim < tensors[i].ndim()) alike[i] = Placement::shard(dim);
    }
    all.push_back(alike);
  }
  return all;
}

// Ranks hold different shares of a Partial, whose sum is x.
Tensor place(const Tensor& x, const MeshRef& mesh, const Placements& placements) {
  Tensor share = x;
  Placements whole(placements.size());
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_partial()) continue;
    whole[axis] = placements[axis];
    const int rank = mesh->coordinate()[axis];
    const int world = mesh->axes()[axis].size;
    share = rank == 0 ? sub(share, world * (world - 1) / 2) : full_like(share, rank);
  }
  return redistribute(from_local(clone(share), mesh, whole, DimVector(x.sizes())), placements);
}

struct Audit {
  int64_t agreed = 0;
  std::set<std::string> wrong;
  std::map<std::string, int64_t> refused;
};

// The tensors of a call by axis: layouts[axis][tensor].
void check_call(const Op& op, Args args, const std::vector<Tensor>& dense,
                const std::vector<Layouts>& layouts, const std::vector<Tensor>& expected,
                const MeshRef& mesh, const std::string& what, Audit& audit) {
  std::vector<Tensor> placed;
  std::string call = fmt::format("{} {} as", op.name(), what);
  for (size_t i = 0; i < dense.size(); ++i) {
    Placements placements;
    for (const Layouts& on_axis : layouts) placements.push_back(on_axis[i]);
    placed.push_back(place(dense[i], mesh, placements));
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
    if (!same_values(got, expected[r])) {
      audit.wrong.insert(
          fmt::format("{} result {} as {}", call, r,
                      is_dtensor(outs[r]) ? to_string(dtensor_spec(outs[r]).placements) : "plain"));
      return;
    }
  }
  ++audit.agreed;
}

void audit_op(const Op& op, const MeshRef& mesh, Audit& audit) {
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
    const std::vector<Layouts> choices = layouts_of(dense);
    for (size_t i = 0; i < choices.size(); ++i) {
      std::vector<Layouts> layouts = {choices[i]};
      // A second axis gets another choice, far from the first and different for each.
      if (mesh->num_axes() == 2) layouts.push_back(choices[(i * 5 + 3) % choices.size()]);
      check_call(op, sample.args(), dense, layouts, expected, mesh, text, audit);
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
         line.starts_with("one_hot: item");
}

void audit_all(const std::vector<DeviceMesh::Axis>& axes) {
  int world = 1;
  for (const DeviceMesh::Axis& axis : axes) world *= axis.size;
  std::vector<Audit> audits(static_cast<size_t>(world));
  testing::run_ranks(
      world,
      [&](testing::RankContext& ctx) {
        const auto group = std::shared_ptr<ProcessGroup>(&ctx.group(), [](ProcessGroup*) {});
        const MeshRef mesh = DeviceMesh::open(group, axes, ctx.deadline()).value();
        for (const auto& op : ops::all_ops().all()) {
          if (is_comparable(*op)) {
            audit_op(*op, mesh, audits[static_cast<size_t>(ctx.group_rank())]);
          }
        }
      },
      240s);
  const Audit& audit = audits[0];
  EXPECT_GT(audit.agreed, 3000);
  for (const std::string& line : audit.wrong) ADD_FAILURE() << line;
  for (const auto& [line, count] : audit.refused) {
    EXPECT_TRUE(is_expected_refusal(line)) << count << " x " << line;
  }
}

TEST(ShardRules, EveryOperatorAgreesWithOneProcessOnTwoRanks) { audit_all({{"tp", 2}}); }
TEST(ShardRules, EveryOperatorAgreesWithOneProcessOnThreeRanks) { audit_all({{"tp", 3}}); }
TEST(ShardRules, EveryOperatorAgreesWithOneProcessOnTwoAxes) { audit_all({{"dp", 2}, {"tp", 2}}); }
}  // namespace
}  // namespace muster
