#include <fmt/format.h>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "dist/tensor/dtensor_dispatch.h"
#include "dist/tensor/redistribute.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using Placements = std::vector<Placement>;
constexpr Placement kR = Placement::replicate();
constexpr Placement s(int32_t dim) { return Placement::shard(dim); }

MeshRef line(testing::RankContext& ctx) { return mesh_of(ctx, {{"tp", ctx.world_size()}}); }

std::vector<double> values_of(const Tensor& x) {
  return to_vector<double>(to(contiguous(detach(x)), DType::kF64));
}
void expect_values(const Tensor& actual, const Tensor& expected, const std::string& what = "") {
  ASSERT_EQ(to_string(actual.sizes()), to_string(expected.sizes())) << what;
  EXPECT_EQ(actual.dtype(), expected.dtype()) << what;
  const auto a = values_of(actual), b = values_of(expected);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-9) << what << " element " << i;
}
std::string placements_of(const Tensor& x) { return to_string(dtensor_spec(x).placements); }

// Distinct values without structure that a wrong layout could hide behind.
Tensor sample(Dims sizes, int salt) {
  const int64_t n = numel_of(sizes);
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) {
    values.push_back(static_cast<double>((i * 37 + salt * 11) % 23) / 7.0 - 1.2);
  }
  return from_vector(values, sizes);
}

using Call = std::function<Tensor(const std::vector<Tensor>&)>;
struct OpCase {
  std::string name;
  std::vector<DimVector> sizes;
  Call call;
};

std::vector<OpCase> op_cases(int64_t n) {
  const auto dims = [](std::initializer_list<int64_t> list) { return DimVector(Dims(list)); };
  return {
      {"add", {dims({n, 4}), dims({n, 4})}, [](auto& x) { return add(x[0], x[1], 2); }},
      {"add broadcast", {dims({n, 4}), dims({4})}, [](auto& x) { return add(x[0], x[1]); }},
      {"mul broadcast", {dims({n, 4}), dims({n, 1})}, [](auto& x) { return mul(x[0], x[1]); }},
      {"mul number", {dims({n, 4})}, [](auto& x) { return mul(x[0], 3.0); }},
      {"mm", {dims({n, 4}), dims({4, n})}, [](auto& x) { return mm(x[0], x[1]); }},
      {"mm inner", {dims({4, n}), dims({n, 3})}, [](auto& x) { return mm(x[0], x[1]); }},
      {"sum", {dims({n, 4})}, [](auto& x) { return sum(x[0]); }},
      {"sum rows", {dims({n, 4})}, [](auto& x) { return sum(x[0], 1); }},
      {"sum columns kept", {dims({n, 4})}, [](auto& x) { return sum(x[0], 0, true); }},
      {"mean", {dims({n, 4})}, [](auto& x) { return mean(x[0]); }},
      {"mean rows", {dims({n, 4})}, [](auto& x) { return mean(x[0], 1); }},
      {"softmax", {dims({n, 4})}, [](auto& x) { return softmax(x[0], 1); }},
      {"softmax first", {dims({n, 4})}, [](auto& x) { return softmax(x[0], 0); }},
      {"transpose", {dims({n, 4})}, [](auto& x) { return transpose(x[0], 0, 1); }},
      {"permute",
       {dims({n, 4, 3})},
       [](auto& x) {
         return permute(x[0], {2, 0, 1});
       }},
      {"expand",
       {dims({n, 1})},
       [](auto& x) {
         return expand(x[0], {x[0].size(0), 5});
       }},
      {"unsqueeze", {dims({n, 4})}, [](auto& x) { return unsqueeze(x[0], 1); }},
      {"reshape", {dims({n, 4})}, [](auto& x) { return reshape(x[0], {-1}); }},
      {"linear",
       {dims({n, 4}), dims({3, 4}), dims({3})},
       [](auto& x) { return linear(x[0], x[1], x[2]); }},
  };
}

// Values and gradients equal those of one process that holds everything.
void check_case(const OpCase& op_case, const MeshRef& mesh, const std::vector<Placements>& layout,
                bool with_gradients) {
  std::string what = op_case.name;
  std::vector<Tensor> dense, sharded;
  for (size_t i = 0; i < op_case.sizes.size(); ++i) {
    dense.push_back(requires_grad_(sample(op_case.sizes[i], static_cast<int>(i))));
    sharded.push_back(requires_grad_(distribute_tensor(detach(dense[i]), mesh, layout[i])));
    what += " " + to_string(layout[i]);
  }
  const Tensor expected = op_case.call(dense);
  const Tensor actual = op_case.call(sharded);
  ASSERT_TRUE(is_dtensor(actual)) << what;
  expect_values(full_tensor(actual), expected, what);
  if (!with_gradients) return;
  const Tensor weight = sample(expected.sizes(), 5);
  backward(sum(mul(expected, weight)));
  backward(sum(mul(full_tensor(actual), weight)));
  for (size_t i = 0; i < dense.size(); ++i) {
    expect_values(full_tensor(grad_of(sharded[i])), grad_of(dense[i]),
                  fmt::format("{} gradient {}", what, i));
  }
}

std::vector<Placements> all_layouts(const DimVector& sizes) {
  std::vector<Placements> layouts = {{kR}};
  for (size_t dim = 0; dim < sizes.size(); ++dim) layouts.push_back({s(static_cast<int32_t>(dim))});
  return layouts;
}

void check_all_layouts(const OpCase& op_case, const MeshRef& mesh) {
  std::vector<Placements> chosen;
  const std::function<void(size_t)> choose = [&](size_t i) {
    if (i == op_case.sizes.size()) return check_case(op_case, mesh, chosen, true);
    for (const Placements& layout : all_layouts(op_case.sizes[i])) {
      chosen.push_back(layout);
      choose(i + 1);
      chosen.pop_back();
    }
  };
  choose(0);
}

TEST(DTensorOps, AgreeWithOneProcessInEveryLayout) {
  for (const int world : {2, 3}) {
    testing::run_ranks(world, [](testing::RankContext& ctx) {
      const MeshRef mesh = line(ctx);
      for (const int64_t n : {6, 5, 1}) {  // even, uneven, with empty shards
        for (const OpCase& op_case : op_cases(n)) check_all_layouts(op_case, mesh);
      }
    });
  }
}

TEST(DTensorOps, AgreeWithOneProcessOnTwoAxes) {
  testing::run_ranks(4, [](testing::RankContext& ctx) {
    const MeshRef mesh = mesh_of(ctx, {{"dp", 2}, {"tp", 2}});
    const std::vector<Placements> layouts = {{s(0), s(1)}, {s(0), s(0)}, {kR, s(0)}, {s(1), kR}};
    for (const int64_t n : {4, 5}) {
      for (const OpCase& op_case : op_cases(n)) {
        for (const Placements& layout : layouts) {
          std::vector<Placements> all;
          for (const DimVector& sizes : op_case.sizes) {
            Placements fitting = layout;
            for (Placement& p : fitting) {
              if (p.is_shard() && static_cast<size_t>(p.dim) >= sizes.size()) p = kR;
            }
            all.push_back(fitting);
          }
          check_case(op_case, mesh, all, true);
        }
      }
    }
  });
}

TEST(DTensorOps, FollowTheShardRules) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const auto put = [&](Dims sizes, Placement p) {
      return distribute_tensor(sample(sizes, 1), mesh, {p});
    };
    EXPECT_EQ(placements_of(add(put({4, 6}, s(0)), put({6}, kR))), "[S(0)]");
    EXPECT_EQ(placements_of(mm(put({4, 6}, s(0)), put({6, 2}, kR))), "[S(0)]");
    EXPECT_EQ(placements_of(mm(put({4, 6}, s(1)), put({6, 2}, s(0)))), "[P]");
    EXPECT_EQ(placements_of(mm(put({4, 6}, kR), put({6, 2}, s(1)))), "[S(1)]");
    EXPECT_EQ(placements_of(sum(put({4, 6}, s(0)), 0)), "[P]");
    EXPECT_EQ(placements_of(sum(put({4, 6}, s(1)), 0)), "[S(0)]");
    EXPECT_EQ(placements_of(amax(put({4, 6}, s(0)), {0})), "[P(max)]");
    EXPECT_EQ(placements_of(softmax(put({4, 6}, s(0)), 1)), "[S(0)]");
    EXPECT_EQ(placements_of(softmax(put({4, 6}, s(1)), 1)), "[R]");
    EXPECT_EQ(placements_of(transpose(put({4, 6}, s(0)), 0, 1)), "[S(1)]");
    EXPECT_EQ(placements_of(mul(sum(put({4, 6}, s(0))), -1)), "[P]");
    EXPECT_EQ(placements_of(exp(sum(put({4, 6}, s(0))))), "[R]");
  });
}

// D3: an average of averages is one only where all pieces are equal.
TEST(DTensorOps, MeanOfUnevenShardsIsTheMean) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const Tensor x = view(arange(12, DType::kF64), {3, 4});
    EXPECT_EQ(full_tensor(mean(distribute_tensor(x, mesh, {s(0)}))).item(), 5.5);
    const Tensor row = view(arange(4, DType::kF64), {1, 4});
    EXPECT_EQ(full_tensor(mean(distribute_tensor(row, mesh, {s(0)}))).item(), 1.5);
  });
}

// D4: a number added to an open sum counts once.
TEST(DTensorOps, NumberAddedToAPartialCountsOnce) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const Tensor total = sum(distribute_tensor(arange(10, DType::kF64), mesh, {s(0)}));
    ASSERT_EQ(placements_of(total), "[P]");
    EXPECT_EQ(full_tensor(add(total, 10)).item(), 55);
    EXPECT_EQ(full_tensor(add(10, total)).item(), 55);
    EXPECT_EQ(full_tensor(add(total, tensor(10.0, DType::kF64))).item(), 55);
    const Tensor ten = distribute_tensor(tensor(10.0, DType::kF64), mesh, {kR});
    EXPECT_EQ(full_tensor(add(total, ten)).item(), 55);
    EXPECT_EQ(full_tensor(mul(total, 2)).item(), 90);
    EXPECT_ERROR(add_(total, 10), ErrorCode::kInvalidArgument,
                 ::testing::HasSubstr("never redistributed"));
  });
}

// D6: indices are of the whole dim.
TEST(DTensorOps, ArgmaxAcrossShardsIsTheGlobalIndex) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const Tensor x = distribute_tensor(tensor({10.0, 5.0, 3.0, 8.0}), line(ctx), {s(0)});
    EXPECT_EQ(full_tensor(argmax(x)).item_int(), 0);
    EXPECT_EQ(full_tensor(argmax(x, 0)).item_int(), 0);
    EXPECT_EQ(full_tensor(max(x, 0)[1]).item_int(), 0);
    EXPECT_EQ(full_tensor(amax(x)).item(), 10);
  });
}

// D7: a written DTensor keeps its placement, or the write is refused.
TEST(DTensorOps, WritesInPlaceNeverMoveSelf) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const Tensor x = distribute_tensor(arange(5, DType::kF64), mesh, {s(0)});
    const Tensor returned = add_(x, distribute_tensor(ones({5}, DType::kF64), mesh, {kR}));
    EXPECT_TRUE(returned.is_same(x));
    EXPECT_EQ(placements_of(x), "[S(0)]");
    expect_values(full_tensor(x), add(arange(5, DType::kF64), 1));
    const Tensor partial = from_local(full({2}, 72.0), mesh, {Placement::partial()}, DimVector{2});
    EXPECT_ERROR(clamp_(partial, std::nullopt, 2), ErrorCode::kInvalidArgument,
                 ::testing::HasSubstr("clamp_: no sharding rule"));
    expect_values(full_tensor(partial), full({2}, 144.0));
  });
}

TEST(DTensorOps, PlainTensorBesideADTensorIsRefusedByName) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const Tensor x = distribute_tensor(ones({4}), mesh, {s(0)});
    EXPECT_ERROR(mul(x, ones({4})), ErrorCode::kInvalidArgument,
                 ::testing::HasSubstr("mul: argument 1 (other) is a plain tensor f32[4]"));
    expect_values(full_tensor(mul(x, full({1}, 3.0))), full({4}, 3.0));
  });
}

TEST(DTensorOps, TensorsOfTwoMeshesAreRefusedWithBoth) {
  testing::run_ranks(4, [](testing::RankContext& ctx) {
    const MeshRef mesh = mesh_of(ctx, {{"dp", 2}, {"tp", 2}});
    const Tensor x = distribute_tensor(ones({4}), mesh, {s(0), kR});
    const Tensor y = distribute_tensor(ones({4}), mesh->slice({"tp"}), {s(0)});
    EXPECT_ERROR(add(x, y), ErrorCode::kInvalidArgument,
                 ::testing::AllOf(::testing::HasSubstr("must lie on one mesh"),
                                  ::testing::HasSubstr("[S(0), R] on mesh [dp=2, tp=2]"),
                                  ::testing::HasSubstr("[S(0)] on mesh [tp=2]")));
    // Slices of the same axes are the same mesh.
    const Tensor z = distribute_tensor(ones({4}), mesh->slice({"tp"}), {kR});
    expect_values(full_tensor(add(y, z)), full({4}, 2.0));
  });
}

// The second pass gives a gradient that lies otherwise than the first one's.
TEST(DTensorOps, GradientsOfPassesThatLieDifferentlyAddUp) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const Tensor x = sample({3, 4}, 2);
    const auto lying = [&](Placement placement) {
      if (!placement.is_partial()) return distribute_tensor(x, mesh, {placement});
      const Tensor share = ctx.group_rank() == 0 ? sub(x, 1) : ones_like(x);
      return from_local(share, mesh, {placement}, DimVector{3, 4});
    };
    for (const Placement of_weight : {kR, s(0), s(1)}) {
      for (const Placement first : {kR, s(0), s(1), Placement::partial()}) {
        for (const Placement second : {kR, s(0), s(1), Placement::partial()}) {
          const Tensor w = requires_grad_(distribute_tensor(x, mesh, {of_weight}));
          backward(w, lying(first));
          backward(w, lying(second));
          expect_values(full_tensor(grad_of(w)), mul(x, 2),
                        to_string(Placements{of_weight, first, second}));
        }
      }
    }
  });
}

TEST(DTensorOps, DrawTheSameNumbersInEveryLayout) {
  manual_seed(7);
  const Tensor drawn = uniform_(empty({5, 3}, DType::kF64));
  const Tensor dropped = dropout(drawn, 0.5, true);
  for (const int world : {2, 3}) {
    testing::run_ranks(world, [&](testing::RankContext& ctx) {
      const MeshRef mesh = line(ctx);
      for (const Placement placement : {kR, s(0), s(1)}) {
        manual_seed(7);
        const Tensor x = distribute_tensor(zeros({5, 3}, DType::kF64), mesh, {placement});
        expect_values(full_tensor(uniform_(x)), drawn);
        EXPECT_EQ(placements_of(x), to_string(Placements{placement}));
        const Tensor y = dropout(x, 0.5, true);
        expect_values(full_tensor(y), dropped);
        EXPECT_EQ(placements_of(y), to_string(Placements{placement}));
        EXPECT_EQ(placements_of(empty_like(x)), to_string(Placements{placement}));
      }
    });
  }
}

TEST(DTensorOps, KnowALayoutTheSecondTime) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const Tensor x = distribute_tensor(ones({4}), line(ctx), {s(0)});
    static_cast<void>(mul(x, x));
    const LayoutCacheCounts before = layout_cache_counts();
    static_cast<void>(mul(x, x));
    EXPECT_EQ(layout_cache_counts().misses, before.misses);
    EXPECT_EQ(layout_cache_counts().hits, before.hits + 1);
  });
}
}  // namespace
}  // namespace muster
