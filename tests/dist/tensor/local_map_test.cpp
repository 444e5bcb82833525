#include "dist/tensor/local_map.h"

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using Placements = std::vector<Placement>;
using Tensors = std::vector<Tensor>;
constexpr Placement kR = Placement::replicate();
constexpr Placement kP = Placement::partial();
constexpr Placement s(int32_t dim) { return Placement::shard(dim); }

MeshRef line(testing::RankContext& ctx) { return mesh_of(ctx, {{"tp", ctx.world_size()}}); }

std::vector<double> values_of(const Tensor& x) {
  return to_vector<double>(to(contiguous(detach(x)), DType::kF64));
}
Tensor count_up(Dims sizes) { return view(arange(numel_of(sizes), DType::kF64), sizes); }
Tensors same(const Tensors& locals) { return locals; }

// Reported as pytorch#172812: sizes of results were guessed as local size x ranks.
TEST(LocalMap, UnevenAndEmptyPiecesKeepRowsValuesAndGradients) {
  for (const int64_t rows : {5, 1}) {
    testing::run_ranks(2, [rows](testing::RankContext& ctx) {
      const Tensor x = count_up({rows, 3});
      const Tensor d = requires_grad_(distribute_tensor(x, line(ctx), {s(0)}));
      const Tensor y = local_map(same, {d}, {.out = {{s(0)}}})[0];
      EXPECT_EQ(values_of(full_tensor(y)), values_of(x));
      EXPECT_EQ(y.size(0), rows);
      backward(sum(mul(full_tensor(y), x)));
      EXPECT_EQ(values_of(full_tensor(grad_of(d))), values_of(x));
    });
  }
}

// Reported as autoparallel#515: a weight that is whole along dp was used on each rank's tokens, and
// nobody summed its gradients.
TEST(LocalMap, ReplicatedWeightsGetTheSumOverTheAxisWhoseTokensDiffer) {
  testing::run_ranks(8, [](testing::RankContext& ctx) {
    const MeshRef mesh = mesh_of(ctx, {{"dp", 4}, {"ep", 2}});
    const Tensor tokens = count_up({6, 4}), weight = add(count_up({4}), 1);
    const Tensor x = distribute_tensor(tokens, mesh, {s(0), s(1)});
    const Tensor w = requires_grad_(distribute_tensor(weight, mesh, {kR, s(0)}));
    const auto scale = [](const Tensors& in) { return Tensors{mul(in[0], in[1])}; };
    const Tensor y = local_map(scale, {x, w}, {.out = {{s(0), s(1)}}})[0];
    EXPECT_EQ(values_of(full_tensor(y)), values_of(mul(tokens, weight)));
    backward(sum(full_tensor(y)));
    EXPECT_EQ(values_of(full_tensor(grad_of(w))), values_of(sum(tokens, 0)));
  });
}

// Reported as torchtitan#1805 and others: with w = 1 and tokens [1, 2] and [3, 4] the gradient of
// sum(w x) is 10 on both ranks, and the weight stays the same on both.
TEST(LocalMap, OneStepLeavesTheReplicasOfAWeightEqual) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const Tensor x = distribute_tensor(add(count_up({4}), 1), mesh, {s(0)});
    const Tensor w = requires_grad_(distribute_tensor(ones({1}, DType::kF64), mesh, {kR}));
    const auto total = [](const Tensors& in) { return Tensors{sum(mul(in[0], in[1]))}; };
    backward(full_tensor(local_map(total, {x, w}, {.out = {{kP}}})[0]));
    const Tensor grad = redistribute(grad_of(w), {kR});
    EXPECT_EQ(values_of(local_tensor(grad)), (std::vector<double>{10}));
    const NoGradGuard no_grad;
    sub_(w, mul(grad, 0.1));
    const Tensor all = empty({2, 1}, DType::kF64);
    ctx.group().run(ctx.group().all_gather_into_tensor(all, local_tensor(w)));
    EXPECT_EQ(values_of(all), (std::vector<double>{0, 0}));
  });
}

// One result is a piece, the other whole: each rank's gradient of the argument is a share, of the
// whole result counted once.
TEST(LocalMap, AWholeResultBesideAPieceCountsOnceInGradients) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const Tensor w = requires_grad_(distribute_tensor(count_up({3}), mesh, {kR}));
    const Tensor x = distribute_tensor(count_up({4, 3}), mesh, {s(0)});
    const auto both = [](const Tensors& in) { return Tensors{mul(in[0], in[1]), square(in[1])}; };
    const Tensors y = local_map(both, {x, w}, {.out = {{s(0)}, {kR}}});
    backward(add(sum(full_tensor(y[0])), sum(full_tensor(y[1]))));
    const Tensor expected = add(sum(count_up({4, 3}), 0), mul(count_up({3}), 2));
    EXPECT_EQ(values_of(full_tensor(grad_of(w))), values_of(expected));
  });
}

TEST(LocalMap, WholeArgumentsOfWholeResultsKeepTheirGradient) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const Tensor w = requires_grad_(distribute_tensor(count_up({3}), line(ctx), {kR}));
    const auto twice = [](const Tensors& in) { return Tensors{mul(in[0], 2)}; };
    backward(sum(full_tensor(local_map(twice, {w}, {.out = {{kR}}})[0])));
    EXPECT_EQ(values_of(full_tensor(grad_of(w))), (std::vector<double>{2, 2, 2}));
  });
}

TEST(LocalMap, MovesArgumentsOrRefusesThemWithBothLayouts) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const Tensor d = distribute_tensor(count_up({4, 2}), mesh, {s(0)});
    const auto rows = [](const Tensors& in) { return Tensors{softmax(in[0], 0)}; };
    LocalMapOptions options{.out = {{s(1)}}, .in = {Placements{s(1)}}};
    EXPECT_ERROR(local_map(rows, {d}, options), ErrorCode::kInvalidArgument,
                 ::testing::HasSubstr("argument 0 must lie as [S(1)]; got f64[4, 2] as [S(0)]"));
    options.redistributes = true;
    const Tensor y = local_map(rows, {d}, options)[0];
    EXPECT_EQ(values_of(full_tensor(y)), values_of(softmax(count_up({4, 2}), 0)));
  });
}

TEST(LocalMap, SizesThatAreToldSaveTheExchangeOfSizes) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const Tensor d = distribute_tensor(count_up({5, 2}), line(ctx), {s(0)});
    const Tensor plain = full({1}, 2.0, DType::kF64);  // passed on as it is
    const auto scale = [](const Tensors& in) { return Tensors{mul(in[0], in[1])}; };
    const uint64_t before = ctx.group().num_launched(CollectiveKind::kAllGather);
    const Tensor y =
        local_map(scale, {d, plain}, {.out = {{s(0)}}, .out_sizes = {DimVector{5, 2}}})[0];
    EXPECT_EQ(ctx.group().num_launched(CollectiveKind::kAllGather), before);
    EXPECT_EQ(values_of(full_tensor(y)), values_of(mul(count_up({5, 2}), 2)));
  });
}

TEST(LocalMap, RefusesWhatItCannotPlace) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const Tensor d = distribute_tensor(count_up({4}), mesh, {s(0)});
    const auto refused = [&](const LocalFunction& function, const Tensors& arguments,
                             const LocalMapOptions& options, const char* fact) {
      EXPECT_ERROR(local_map(function, arguments, options), ErrorCode::kInvalidArgument,
                   ::testing::HasSubstr(fact));
    };
    refused(same, {count_up({4})}, {.out = {{s(0)}}}, "must be a DTensor; got 1 plain");
    refused(same, {d}, {.out = {}}, "must give 0 results, one for each entry of `out`; got 1");
    refused(same, {d}, {.out = {{s(0), s(0)}}}, "for each of 1 mesh axes; got [S(0), S(0)]");
    // Pieces of 1 and 3 elements are no chunks of 4.
    const auto torn = [&](const Tensors&) {
      return Tensors{zeros({1 + 2 * ctx.group_rank()}, DType::kF64)};
    };
    refused(torn, {d}, {.out = {{s(0)}}}, "must be cut by ceil(n / ranks)");
    const Tensor open =
        from_local(count_up({2}), mesh, {Placement::partial(PartialOp::kMax)}, DimVector{2});
    refused(same, {open}, {.out = {{kP}}}, "say by `in_grad` how its gradient lies");
  });
}
}  // namespace
}  // namespace muster
