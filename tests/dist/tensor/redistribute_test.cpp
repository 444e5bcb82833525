#include "dist/tensor/redistribute.h"

#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "dist/tensor/redistribute_plan.h"
#include "tests/support/golden_case.h"
#include "tests/support/golden_close.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using Json = nlohmann::json;
using Placements = std::vector<Placement>;
constexpr Placement kR = Placement::replicate();
constexpr Placement kP = Placement::partial();
constexpr Placement s(int32_t dim) { return Placement::shard(dim); }

MeshRef line(testing::RankContext& ctx) { return mesh_of(ctx, {{"tp", ctx.world_size()}}); }

void expect_same(const Tensor& actual, const Tensor& expected, const std::string& what = "") {
  EXPECT_TRUE(testing::is_close(actual, expected)) << what;
}

TEST(RedistributePlan, MovesOneAxisInOneStep) {
  const Placements from = {s(0)}, to = {s(1)};
  const auto steps = plan_redistribute(2, from, to, PartialTargets::kRefuse);
  EXPECT_EQ(steps, (std::vector<RedistributeStep>{{0, s(0), s(1)}}));
}

TEST(RedistributePlan, UndoesInnerShardsThatAnOuterChangeWouldTear) {
  const Placements from = {s(0), s(0)}, to = {kR, s(0)};
  const auto steps = plan_redistribute(1, from, to, PartialTargets::kRefuse);
  EXPECT_EQ(steps, (std::vector<RedistributeStep>{{1, s(0), kR}, {0, s(0), kR}, {1, kR, s(0)}}));
}

TEST(RedistributePlan, LeavesUnrelatedAxesAlone) {
  const Placements from = {s(0), s(1)}, to = {kR, s(1)};
  const auto steps = plan_redistribute(2, from, to, PartialTargets::kRefuse);
  EXPECT_EQ(steps, (std::vector<RedistributeStep>{{0, s(0), kR}}));
}

TEST(RedistributePlan, RefusesToMakeAPartial) {
  for (const Placement from : {kR, s(0), Placement::partial(PartialOp::kMax)}) {
    const Placements source = {from}, target = {kP};
    EXPECT_ERROR(plan_redistribute(1, source, target, PartialTargets::kRefuse),
                 ErrorCode::kInvalidArgument, ::testing::HasSubstr("ask for R or a shard"));
  }
  const Placements same = {kP};
  EXPECT_TRUE(plan_redistribute(1, same, same, PartialTargets::kRefuse).empty());
}

// all_reduce, all_gather, reduce_scatter, all_to_all
using Counts = std::array<uint64_t, 4>;
Counts counts_of(const ProcessGroup& group) {
  return {group.num_launched(CollectiveKind::kAllReduce),
          group.num_launched(CollectiveKind::kAllGather),
          group.num_launched(CollectiveKind::kReduceScatter),
          group.num_launched(CollectiveKind::kAllToAll)};
}
Counts since(const Counts& before, const ProcessGroup& group) {
  Counts now = counts_of(group);
  for (size_t i = 0; i < now.size(); ++i) now[i] -= before[i];
  return now;
}

// What was recorded on CPU, where a shard becomes another one by gathering all; here by an
// exchange.
void expect_comm(const Counts& counts, const Json& recorded, Placement from, Placement to) {
  const auto count = [&](const char* name) { return recorded.value(name, uint64_t{0}); };
  Counts expected = {count("all_reduce"), count("all_gather_into_tensor"),
                     count("reduce_scatter_tensor"), 0};
  if (from.is_shard() && to.is_shard()) std::swap(expected[1], expected[3]);
  EXPECT_EQ(counts, expected);
}

// One case: forward on each rank, then the gradient of the input from a given one of the output.
void check_golden_pair(testing::RankContext& ctx, const MeshRef& mesh, const Json& golden) {
  const auto& file = testing::GoldenFile::load("parallel/dtensor_redistribute");
  const auto rank = static_cast<size_t>(ctx.group_rank());
  const DimVector sizes{Dims(golden["shape"].get<std::vector<int64_t>>())};
  const Placement source = parse_placement(golden["source"].get<std::string>()).value();
  const Placement target = parse_placement(golden["target"].get<std::string>()).value();
  if (golden.contains("error")) {
    const Tensor local = zeros(DTensorSpec{mesh, {source}, sizes, DType::kF32}.local_box().sizes);
    const Tensor x = from_local(local, mesh, {source}, sizes);
    EXPECT_ERROR(redistribute(x, {target}), ErrorCode::kInvalidArgument,
                 ::testing::HasSubstr("Partial"));
    return;
  }
  const Tensor x = from_local(file.tensor(golden["local_in"][rank]), mesh, {source}, sizes);
  requires_grad_(x);
  const Counts before = counts_of(ctx.group());
  const Tensor y = redistribute(x, {target});
  expect_comm(since(before, ctx.group()), golden["comm"], source, target);
  expect_same(local_tensor(y), file.tensor(golden["local_out"][rank]), "forward");
  const Tensor grad_in = file.tensor(golden["grad_in"][rank]);
  const Placement lies = target;
  const Tensor input[] = {x}, output[] = {y};
  const Tensor grads[] = {from_local(grad_in, mesh, {lies}, sizes)};
  const Counts forward = counts_of(ctx.group());
  const Tensor got = muster::grad(output, input, grads)[0];
  expect_comm(since(forward, ctx.group()), golden["comm_backward"], target, source);
  EXPECT_EQ(to_string(dtensor_spec(got).placements[0]),
            to_string(parse_placement(golden["grad_placements"][0].get<std::string>()).value()));
  expect_same(local_tensor(got), file.tensor(golden["grad"][rank]), "backward");
}

TEST(Redistribute, AgreesWithGoldenPairs) {
  const auto& cases = testing::GoldenFile::load("parallel/dtensor_redistribute").cases();
  int checked = 0;
  for (int world = 1; world <= 4; ++world) {
    testing::run_ranks(world, [&](testing::RankContext& ctx) {
      const MeshRef mesh = line(ctx);
      for (const Json& golden : cases) {
        if (golden.contains("mesh") || golden["ranks"].get<int>() != world) continue;
        SCOPED_TRACE(golden["id"].get<std::string>());
        check_golden_pair(ctx, mesh, golden);
        if (ctx.group_rank() == 0) ++checked;
      }
    });
  }
  EXPECT_EQ(checked, 288);
}

// A strided shard is "_S(0,3)" there.
Placements golden_placements(const Json& list) {
  Placements placements;
  for (const Json& entry : list) {
    auto text = entry.get<std::string>();
    if (text.starts_with('_')) {
      text.insert(text.find(',') + 1, " ");
      text.erase(0, 1);
    }
    placements.push_back(parse_placement(text).value());
  }
  return placements;
}

TEST(Redistribute, AgreesWithGoldenPairsOnTwoAxes) {
  const auto& file = testing::GoldenFile::load("parallel/dtensor_redistribute");
  int checked = 0;
  for (const Json& golden : file.cases()) {
    if (!golden.contains("mesh")) continue;
    SCOPED_TRACE(golden["id"].get<std::string>());
    const auto axes = golden["mesh"].get<std::vector<int>>();
    testing::run_ranks(axes[0] * axes[1], [&](testing::RankContext& ctx) {
      const MeshRef mesh = mesh_of(ctx, {{"dp", axes[0]}, {"tp", axes[1]}});
      const DimVector sizes{Dims(golden["shape"].get<std::vector<int64_t>>())};
      const auto local_of = [&](const Json& placements) {
        const std::string key =
            placements[0].get<std::string>() + " " + placements[1].get<std::string>();
        return file.tensor(golden["locals"][key][static_cast<size_t>(ctx.group_rank())]);
      };
      for (const Json& pair : golden["pairs"]) {
        const Tensor x =
            from_local(local_of(pair["source"]), mesh, golden_placements(pair["source"]), sizes);
        const Tensor y = redistribute(x, golden_placements(pair["target"]));
        expect_same(local_tensor(y), local_of(pair["target"]),
                    pair["source"].dump() + " -> " + pair["target"].dump());
        if (ctx.group_rank() == 0) ++checked;
      }
    });
  }
  EXPECT_EQ(checked, 340);
}

// D1 of the study: padding of uneven shards never shows.
TEST(Redistribute, RoundTripThroughUnevenShardsIsIdentity) {
  testing::run_ranks(4, [](testing::RankContext& ctx) {
    const Tensor x = view(arange(50, DType::kF32), {5, 10});
    const Tensor sharded = distribute_tensor(x, line(ctx), {s(0)});
    EXPECT_EQ(local_tensor(sharded).size(0),
              (std::vector<int64_t>{2, 2, 1, 0})[static_cast<size_t>(ctx.group_rank())]);
    expect_same(full_tensor(sharded), x);
  });
}

// D2: sizes are told, not guessed, and judged by every rank.
TEST(FromLocal, LearnsUnevenSizesAndRefusesPiecesThatAreNoChunks) {
  testing::run_ranks(4, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const auto rank = static_cast<size_t>(ctx.group_rank());
    const int64_t good[] = {3, 3, 3, 1}, bad[] = {4, 2, 2, 2};
    EXPECT_EQ(from_local(ones({good[rank], 2}), mesh, {s(0)}).size(0), 10);
    EXPECT_ERROR(from_local(ones({bad[rank], 2}), mesh, {s(0)}), ErrorCode::kInvalidArgument,
                 ::testing::HasSubstr("rank 0 then holds [3, 2]; got [[4, 2], [2, 2]"));
    EXPECT_ERROR(from_local(ones({bad[rank]}), mesh, {kR}), ErrorCode::kInvalidArgument,
                 ::testing::HasSubstr("pieces"));
    const DType dtype = rank == 2 ? DType::kF64 : DType::kF32;
    EXPECT_ERROR(from_local(ones({3, 2}, dtype), mesh, {s(0)}), ErrorCode::kInvalidArgument,
                 ::testing::HasSubstr("one dtype; got f32 on rank 0 and f64 on rank 2"));
    EXPECT_ERROR(from_local(ones({3, 2}), mesh, {s(0)}, DimVector{20, 2}),
                 ErrorCode::kInvalidArgument, ::testing::HasSubstr("local piece"));
  });
}

// D9: nested cuts of 2 elements on a 4 x 2 mesh, learnt from the pieces.
TEST(FromLocal, LearnsNestedUnevenSizes) {
  testing::run_ranks(8, [](testing::RankContext& ctx) {
    const MeshRef mesh = mesh_of(ctx, {{"dp", 4}, {"tp", 2}});
    const int64_t sizes[] = {1, 0, 1, 0, 0, 0, 0, 0};
    const auto rank = static_cast<size_t>(ctx.group_rank());
    const Tensor x = from_local(full({sizes[rank]}, 1.0 + ctx.group_rank()), mesh, {s(0), s(0)});
    expect_same(full_tensor(x), tensor({1.0, 3.0}));
  });
}

// D18: the placement survives the round trip, so do value and gradient.
TEST(ToLocal, RoundTripOfAPartialKeepsValueAndGradient) {
  for (const PartialOp op : {PartialOp::kSum, PartialOp::kAvg, PartialOp::kMax}) {
    testing::run_ranks(2, [&](testing::RankContext& ctx) {
      const MeshRef mesh = line(ctx);
      const Placement partial = Placement::partial(op);
      const Tensor local = tensor({1.0 + ctx.group_rank(), 4.0 - ctx.group_rank()});
      const Tensor x = requires_grad_(from_local(local, mesh, {partial}, DimVector{2}));
      const Tensor y = from_local(to_local(x), mesh, {partial}, DimVector{2});
      expect_same(full_tensor(y), full_tensor(detach(x)));
      backward(sum(mul(full_tensor(y), tensor({3.0, 5.0}))));
      expect_same(full_tensor(grad_of(x)), tensor({3.0, 5.0}));
    });
  }
}

TEST(FromLocal, GradientOfAnAverageAndAnExtremeIsTheirAdjoint) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const bool is_first = ctx.group_rank() == 0;
    const Tensor local = requires_grad_(is_first ? tensor({1.0, 7.0}) : tensor({3.0, 7.0}));
    const auto grad_with = [&](PartialOp op) {
      const Tensor y = full_tensor(from_local(local, mesh, {Placement::partial(op)}, DimVector{2}));
      const Tensor outputs[] = {sum(mul(y, tensor({2.0, 8.0})))}, inputs[] = {local};
      return muster::grad(outputs, inputs)[0];
    };
    expect_same(grad_with(PartialOp::kSum), tensor({2.0, 8.0}));
    expect_same(grad_with(PartialOp::kAvg), tensor({1.0, 4.0}));
    expect_same(grad_with(PartialOp::kMax), is_first ? tensor({0.0, 4.0}) : tensor({2.0, 4.0}));
  });
}

// D17: a replicated weight used on sharded tokens; its gradient must be told to be a sum.
TEST(ToLocal, GradPlacementsReduceWhatEachRankSaw) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const Tensor weight = requires_grad_(distribute_tensor(tensor({1.0}), mesh, {kR}));
    const Tensor tokens = ctx.group_rank() == 0 ? tensor({1.0, 2.0}) : tensor({3.0, 4.0});
    backward(sum(mul(to_local(weight, Placements{kP}), tokens)));
    expect_same(full_tensor(grad_of(weight)), tensor({10.0}));
  });
}

TEST(FullTensor, GradPlacementsSumWhatRanksDidDifferently) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    for (const Placement placement : {kR, s(0), kP}) {
      const Tensor x = requires_grad_(placement.is_partial()
                                          ? from_local(ones({3}), mesh, {placement}, DimVector{3})
                                          : distribute_tensor(ones({3}), mesh, {placement}));
      backward(sum(mul(full_tensor(x, Placements{kP}), 1.0 + ctx.group_rank())));
      expect_same(full_tensor(grad_of(x)), full({3}, 3.0));
    }
  });
}

// Reported as pytorch#150740, #179495, #182032. 1 + 2^-9 needs more bits than bf16 has: the shares
// of a gradient that come back in bf16 are summed in the input's dtype, or in the one that is told.
TEST(Redistribute, GradientsMoveInTheDTypeThatIsTold) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const double share = ctx.group_rank() == 0 ? 1.0 : 0x1p-9;
    const auto grad_with = [&](const MoveDTypes& dtypes) {
      const Tensor x = requires_grad_(distribute_tensor(ones({2, 2}), mesh, {s(0)}));
      const Tensor y = redistribute(x, {kR}, dtypes);
      EXPECT_EQ(y.dtype(), dtypes.forward.value_or(DType::kF32));
      backward(sum(mul(to_local(y, Placements{kP}), share)));
      EXPECT_EQ(grad_of(x).dtype(), DType::kF32);
      return select(view(local_tensor(redistribute(grad_of(x), {s(0)})), {2}), 0, 0).item();
    };
    EXPECT_EQ(grad_with({}), 1.0 + 0x1p-9);
    EXPECT_EQ(grad_with({.forward = DType::kBF16}), 1.0 + 0x1p-9);
    EXPECT_EQ(grad_with({.forward = DType::kBF16, .backward = DType::kF32}), 1.0 + 0x1p-9);
    EXPECT_EQ(grad_with({.backward = DType::kBF16}), 1.0);
    EXPECT_EQ(grad_with({.forward = DType::kBF16, .backward = DType::kBF16}), 1.0);
  });
}

// A pass that is recorded itself must not round more (the second fault of the three), and the
// derivative of the gradient is that of the whole.
TEST(Redistribute, RecordedGradientsKeepTheirBitsAndHaveADerivative) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const double share = ctx.group_rank() == 0 ? 1.0 : 0x1p-9;
    const MoveDTypes narrow = {.forward = DType::kBF16, .backward = DType::kF32};
    for (const bool is_recorded : {false, true}) {
      const Tensor x = requires_grad_(distribute_tensor(full({2, 2}, 3.0), mesh, {s(0)}));
      const Tensor y = to_local(redistribute(x, {kR}, narrow), Placements{kP});
      const Tensor outputs[] = {sum(mul(y, share))}, inputs[] = {x};
      const Tensor slope = muster::grad(outputs, inputs, {}, {.create_graph = is_recorded})[0];
      EXPECT_EQ(slope.dtype(), DType::kF32);
      expect_same(full_tensor(detach(slope)), full({2, 2}, 1.0 + 0x1p-9), "first");
    }
    const Tensor x = requires_grad_(distribute_tensor(full({3, 2}, 3.0), mesh, {s(0)}));
    const Tensor y = full_tensor(redistribute(x, {s(1)}));
    const Tensor outputs[] = {sum(mul(y, mul(y, y)))}, inputs[] = {x};
    const Tensor slope = muster::grad(outputs, inputs, {}, {.create_graph = true})[0];
    expect_same(full_tensor(detach(slope)), full({3, 2}, 27.0), "3 x^2");
    backward(sum(full_tensor(mul(slope, 2))));
    expect_same(full_tensor(grad_of(x)), full({3, 2}, 36.0), "2 * 6 x");
  });
}

// Casts alone: nothing moves, the value and the gradient change their dtype.
TEST(Redistribute, CastsWhereNothingMoves) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const Tensor x = requires_grad_(distribute_tensor(full({2}, 1.0 + 0x1p-9), mesh, {s(0)}));
    const Tensor y = redistribute(x, {s(0)}, {.forward = DType::kBF16});
    EXPECT_EQ(to(full_tensor(detach(y)), DType::kF32).dtype(), DType::kF32);
    EXPECT_EQ(select(to(full_tensor(detach(y)), DType::kF32), 0, 0).item(), 1.0);
    backward(sum(y));
    EXPECT_EQ(grad_of(x).dtype(), DType::kF32);
    expect_same(full_tensor(grad_of(x)), ones({2}));
  });
}

// The order of the axes of a mesh is that of the cuts.
TEST(Redistribute, MovesOverASliceWhoseAxesAreTurned) {
  testing::run_ranks(6, [](testing::RankContext& ctx) {
    const MeshRef root = mesh_of(ctx, {{"dp", 2}, {"tp", 3}});
    const MeshRef turned = root->slice({"tp", "dp"});
    const Tensor x = view(arange(14, DType::kF64), {7, 2});
    const std::vector<Placements> layouts = {{s(0), s(0)}, {s(0), s(1)}, {s(1), kR}, {kR, s(0)}};
    for (const Placements& from : layouts) {
      const Tensor d = distribute_tensor(x, turned, from);
      for (const Placements& to : layouts) {
        expect_same(full_tensor(redistribute(d, to)), x, to_string(from) + to_string(to));
        expect_same(local_tensor(redistribute(d, to)),
                    local_tensor(distribute_tensor(x, turned, to)),
                    to_string(from) + to_string(to));
      }
    }
    // tp cuts 7 rows to 3, 3, 1, then dp each of them in two.
    const std::vector<int64_t> rows = {2, 2, 1, 1, 1, 0};
    EXPECT_EQ(local_tensor(distribute_tensor(x, turned, {s(0), s(0)})).size(0),
              rows[static_cast<size_t>(ctx.group_rank())]);
  });
}

// D16: a host read never sees what one rank holds alone.
TEST(DTensor, ItemOfAPartialOrAShardIsRefused) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const Tensor x = distribute_tensor(view(arange(4, DType::kF32) + 1, {2, 2}), mesh, {s(0)});
    const Tensor total = sum(x);
    EXPECT_TRUE(dtensor_spec(total).placements[0].is_partial());
    EXPECT_ERROR(static_cast<void>(total.item()), ErrorCode::kFailedPrecondition,
                 ::testing::HasSubstr("full_tensor(x).item()"));
    EXPECT_EQ(redistribute(total, {kR}).item(), 10);
    EXPECT_EQ(full_tensor(total).item(), 10);
  });
}

// The memory of a piece ends before that of the whole: a read by global sizes would go beyond it.
TEST(DTensor, ReadsOfManyElementsSeeTheWholeOrAreRefused) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const Tensor whole = view(arange(4, DType::kF64), {2, 2});
    const Tensor x = distribute_tensor(whole, mesh, {s(0)});
    for (const Tensor& cut : {x, sum(x, 0)}) {
      EXPECT_ERROR(static_cast<void>(to_vector<double>(cut)), ErrorCode::kFailedPrecondition,
                   ::testing::HasSubstr("must be replicated"));
    }
    EXPECT_ERROR(static_cast<void>(x.data<double>()), ErrorCode::kFailedPrecondition,
                 ::testing::HasSubstr("full_tensor(x) or local_tensor(x)"));
    EXPECT_EQ(to_vector<double>(redistribute(x, {kR})), to_vector<double>(whole));
    EXPECT_EQ(to_vector<double>(local_tensor(x)).size(), 2u);
  });
}
}  // namespace
}  // namespace muster
