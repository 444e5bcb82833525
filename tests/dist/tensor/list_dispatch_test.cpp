// Optimizers, norms and clipping on DTensors: lists whose entries lie in different ways.
#include "dist/tensor/list_dispatch.h"

#include <fmt/format.h>

#include <cmath>

#include "core/autograd/autograd.h"
#include "core/nn/optim/clip_grad.h"
#include "core/nn/optim/grad_scaler.h"
#include "core/nn/optim/optimizer.h"
#include "core/ops/ops.h"
#include "core/ops/optimizer.h"
#include "dist/tensor/redistribute.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using ::testing::HasSubstr;
using Placements = std::vector<Placement>;
constexpr Placement kR = Placement::replicate();
constexpr Placement kP = Placement::partial();
constexpr Placement s(int32_t dim) { return Placement::shard(dim); }

MeshRef line(testing::RankContext& ctx) { return mesh_of(ctx, {{"tp", ctx.world_size()}}); }

Tensor wave(Dims sizes, double step) {
  return view(sin(mul(arange(numel_of(sizes), DType::kF64), step)), sizes);
}
void expect_near(const Tensor& actual, const Tensor& expected, const std::string& what,
                 double bound = 1e-13) {
  EXPECT_LT(amax(abs(sub(full_tensor(detach(actual)), expected))).item(), bound) << what;
}
constexpr double kClipBound = 1e-5;  // clipping divides by the norm + 1e-6

// A gradient that lies as told; shares of an open sum differ by rank.
Tensor placed(const Tensor& x, const MeshRef& mesh, Placement placement) {
  if (!placement.is_partial()) return distribute_tensor(clone(x), mesh, {placement});
  const bool is_first = mesh->coordinate()[0] == 0;
  const Tensor share = is_first ? sub(x, mesh->size() - 1) : ones_like(x);
  return from_local(share, mesh, {placement}, DimVector(x.sizes()));
}

using Make = std::function<std::unique_ptr<Optimizer>(std::vector<NamedTensor>)>;

std::vector<std::pair<const char*, Make>> optimizers() {
  return {{"AdamW",
           [](auto parameters) {
             return std::make_unique<AdamW>(parameters, AdamWOptions{.lr = 0.1, .amsgrad = true});
           }},
          {"Sgd", [](auto parameters) {
             return std::make_unique<Sgd>(parameters, SgdOptions{.lr = 0.1, .momentum = 0.9});
           }}};
}

// Three steps with fresh gradients; `place` says where values and gradients lie.
Tensor trained(const Make& make, const Tensor& weight,
               const std::function<Tensor(const Tensor&)>& place_gradient) {
  const auto optimizer = make({{"w", weight}});
  for (int step = 0; step < 3; ++step) {
    set_grad(weight, place_gradient(wave(weight.sizes(), 0.3 + step)));
    optimizer->step({.grad_scale = 0.5});
  }
  return detach(weight);
}

// The gathered copies of what is written would be thrown away, and nobody would learn.
TEST(ListsOfDTensors, AnOptimizerDoesWhatItDoesToTheWholeWhereverItsGradientsLie) {
  for (const auto& [name, make] : optimizers()) {
    for (const DimVector& sizes : {DimVector{5, 3}, {1, 2}}) {
      const auto as_it_is = [](const Tensor& x) { return x; };
      const Tensor expected = trained(make, requires_grad_(wave(sizes, 0.7)), as_it_is);
      for (const int world : {2, 3}) {
        testing::run_ranks(world, [&, name = name, make = make](testing::RankContext& ctx) {
          const MeshRef mesh = line(ctx);
          for (const Placement of_weight : {kR, s(0), s(1)}) {
            for (const Placement of_gradient : {kR, s(0), s(1), kP}) {
              const Tensor weight =
                  requires_grad_(distribute_tensor(wave(sizes, 0.7), mesh, {of_weight}));
              const Tensor after = trained(
                  make, weight, [&](const Tensor& x) { return placed(x, mesh, of_gradient); });
              expect_near(
                  after, expected,
                  fmt::format("{} {} {}", name, to_string(of_weight), to_string(of_gradient)));
              EXPECT_EQ(dtensor_spec(after).placements[0], of_weight);
            }
          }
        });
      }
    }
  }
}

TEST(ListsOfDTensors, AGradientThatHadToMoveIsClearedToo) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    for (const Placement of_gradient : {kR, s(0), kP}) {
      const Tensor weight = requires_grad_(distribute_tensor(ones({5}, DType::kF64), mesh, {s(0)}));
      set_grad(weight, placed(full({5}, 2.0, DType::kF64), mesh, of_gradient));
      Sgd({{"w", weight}}, {.lr = 0.25}).step({.zero_grad = true});
      expect_near(weight, full({5}, 0.5, DType::kF64), to_string(of_gradient));
      expect_near(grad_of(weight), zeros({5}, DType::kF64), to_string(of_gradient));
    }
  });
}

// Reported as pytorch#180346: parameters of several meshes in one optimizer.
TEST(ListsOfDTensors, EntriesKeepTheirMeshes) {
  testing::run_ranks(4, [](testing::RankContext& ctx) {
    const MeshRef all = line(ctx), square = mesh_of(ctx, {{"dp", 2}, {"ep", 2}});
    const Tensor a = requires_grad_(distribute_tensor(ones({5}, DType::kF64), all, {s(0)}));
    const Tensor b = requires_grad_(distribute_tensor(ones({3}, DType::kF64), square, {kR, s(0)}));
    const Tensor c = requires_grad_(ones({2}, DType::kF64));
    set_grad(a, distribute_tensor(full({5}, 1.0, DType::kF64), all, {kR}));
    set_grad(b, distribute_tensor(full({3}, 2.0, DType::kF64), square, {s(0), kR}));
    set_grad(c, full({2}, 4.0, DType::kF64));
    const Tensor parameters[] = {a, b, c};
    const uint64_t before = ctx.group().num_launched(CollectiveKind::kAllReduce);
    EXPECT_NEAR(total_grad_norm(parameters), 7.0, 1e-13);  // 5 x 1 + 3 x 4 + 2 x 16
    EXPECT_EQ(ctx.group().num_launched(CollectiveKind::kAllReduce), before);
    EXPECT_NEAR(clip_grad_norm_(parameters, 3.5), 7.0, 1e-13);
    Sgd({{"a", a}, {"b", b}, {"c", c}}, {.lr = 1.0}).step();
    expect_near(a, full({5}, 0.5, DType::kF64), "a", kClipBound);
    expect_near(b, zeros({3}, DType::kF64), "b", kClipBound);
    EXPECT_NEAR(amax(c).item(), -1.0, kClipBound);
  });
}

// Reported as TransformerEngine#715: a replicated gradient of 3 and the pieces [4] and [0] have the
// norm 5, not the root of 34. One reduction for the whole list.
TEST(ListsOfDTensors, ANormCountsReplicasOnceAndPiecesOnAllRanks) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const auto leaf = [&](const Tensor& gradient) {
      const Tensor x =
          requires_grad_(distribute_tensor(zeros(gradient.sizes(), DType::kF64), mesh, {kR}));
      set_grad(x, gradient);
      return x;
    };
    const Tensor three = full({1}, 3.0, DType::kF64), four = tensor({4.0, 0.0}, DType::kF64);
    for (const Placement of_four : {s(0), kP, kR}) {
      for (const Placement of_three : {kR, kP, s(0)}) {
        const Tensor parameters[] = {leaf(placed(three, mesh, of_three)),
                                     leaf(placed(four, mesh, of_four))};
        const std::string what = to_string(of_three) + to_string(of_four);
        const uint64_t before = ctx.group().num_launched(CollectiveKind::kAllReduce);
        EXPECT_DOUBLE_EQ(total_grad_norm(parameters), 5.0) << what;
        if (!of_three.is_partial() && !of_four.is_partial()) {
          const bool is_cut = of_three.is_shard() || of_four.is_shard();
          EXPECT_EQ(ctx.group().num_launched(CollectiveKind::kAllReduce) - before, is_cut ? 1 : 0);
        }
        EXPECT_DOUBLE_EQ(total_grad_norm(parameters, 1.0), 7.0) << what;
        EXPECT_DOUBLE_EQ(total_grad_norm(parameters, INFINITY), 4.0) << what;
        EXPECT_DOUBLE_EQ(clip_grad_norm_(parameters, 2.5), 5.0) << what;
        expect_near(mul(grad_of(parameters[0]), 2), three, what, kClipBound);
        expect_near(mul(grad_of(parameters[1]), 2), four, what, kClipBound);
      }
    }
  });
}

// An overflow in one piece is one on all ranks, and one of the check itself is none.
TEST(ListsOfDTensors, AnOverflowInOnePieceSkipsTheStepOnAllRanks) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    for (const double last : {1.0, 1e200, double(INFINITY), double(NAN)}) {
      for (const Placement of_gradient : {kR, s(0)}) {
        const Tensor weight =
            requires_grad_(distribute_tensor(ones({3}, DType::kF64), mesh, {s(0)}));
        Sgd optimizer({{"w", weight}}, {.lr = 1.0});
        GradScaler scaler({.init_scale = 2.0});
        static_cast<void>(scaler.scale(ones({1})));
        set_grad(weight, placed(tensor({2.0, 4.0, 2 * last}, DType::kF64), mesh, of_gradient));
        scaler.step(optimizer);
        const Tensor expected = std::isfinite(last) ? tensor({0.0, -1.0, 1 - last}, DType::kF64)
                                                    : ones({3}, DType::kF64);
        EXPECT_EQ(to_vector<double>(full_tensor(detach(weight))), to_vector<double>(expected))
            << last << to_string(of_gradient);
      }
    }
  });
}

TEST(ListsOfDTensors, RefusalsNameListEntryAndRemedy) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const Tensor open = placed(ones({4}, DType::kF64), mesh, kP);
    const Tensor cut = distribute_tensor(ones({4}, DType::kF64), mesh, {s(0)});
    const auto step = [](const Tensor& param, const Tensor& grad, const Tensor& buffer) {
      const Tensor params[] = {param}, grads[] = {grad}, buffers[] = {buffer};
      fused_sgd_(params, grads, buffers, DimVector{1}, {.lr = 0.1, .momentum = 0.9});
    };
    EXPECT_ERROR(step(open, cut, clone(cut)), ErrorCode::kInvalidArgument,
                 HasSubstr("entry 0 of params is written, so it must hold values; got f64[4]"));
    EXPECT_ERROR(step(cut, ones({4}, DType::kF64), clone(cut)), ErrorCode::kInvalidArgument,
                 HasSubstr("entry 0 of grads is a plain tensor f64[4], beside a DTensor f64[4]"));
    EXPECT_ERROR(step(cut, cut, redistribute(cut, {kR})), ErrorCode::kInvalidArgument,
                 HasSubstr("entry 0 of momentum_buffers is written, so it must lie as"));
    EXPECT_ERROR(step(cut, distribute_tensor(ones({5}, DType::kF64), mesh, {s(0)}), clone(cut)),
                 ErrorCode::kInvalidArgument, HasSubstr("entry 0 of grads must fit"));
    expect_near(cut, ones({4}, DType::kF64), "after refusals");
  });
}
}  // namespace
}  // namespace muster
