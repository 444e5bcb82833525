// Faults of DTensors that users of other systems reported, each as a small case.
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
Tensor count_up(Dims sizes) { return view(to(arange(numel_of(sizes)), DType::kF64), sizes); }

// D8: the contracted dim is cut in another order on either side.
TEST(ReportedCases, ProductsOfDifferentShardOrdersAreThoseOfTheWholes) {
  testing::run_ranks(4, [](testing::RankContext& ctx) {
    const MeshRef mesh = mesh_of(ctx, {{"dp", 2}, {"tp", 2}});
    const Tensor x = count_up({4, 4});
    const Tensor a = distribute_tensor(x, mesh, {s(1), s(1)});
    const Tensor b = distribute_tensor(x, mesh, {Placement::strided_shard(0, 2), s(0)});
    EXPECT_EQ(values_of(select(full_tensor(mm(a, b)), 0, 0)),
              (std::vector<double>{56, 62, 68, 74}));
  });
}

// The same for each operator that contracts, with its gradients.
TEST(ReportedCases, ContractionsOfAnyShardOrdersAreThoseOfTheWholes) {
  using Call = Tensor (*)(const Tensor&, const Tensor&);
  const std::pair<const char*, Call> calls[] = {
      {"mm", [](const Tensor& a, const Tensor& b) { return mm(a, b); }},
      {"addmm", [](const Tensor& a, const Tensor& b) { return addmm(b, a, b); }},
      {"linear", [](const Tensor& a, const Tensor& b) { return linear(a, transpose(b, 0, 1)); }},
      {"einsum",
       [](const Tensor& a, const Tensor& b) {
         return einsum("ik,kj->ij", {a, b});
       }},
      {"bmm", [](const Tensor& a, const Tensor& b) {
         return squeeze(bmm(unsqueeze(a, 0), unsqueeze(b, 0)), 0);
       }}};
  const auto orders = [](int32_t dim) {
    return std::vector<Placements>{{s(dim), s(dim)},
                                   {Placement::strided_shard(dim, 2), s(dim)},
                                   {s(dim), kR},
                                   {kR, s(dim)},
                                   {Placement::strided_shard(dim, 2), kR}};
  };
  testing::run_ranks(4, [&](testing::RankContext& ctx) {
    const MeshRef mesh = mesh_of(ctx, {{"dp", 2}, {"tp", 2}});
    for (const int64_t size : {4, 5}) {
      const Tensor x = sin(count_up({size, size})), y = cos(count_up({size, size}));
      for (const auto& [name, call] : calls) {
        const Tensor p = requires_grad_(clone(x)), q = requires_grad_(clone(y));
        const Tensor expected = call(p, q);
        backward(sum(square(expected)));
        for (const Placements& of_a : orders(1)) {
          for (const Placements& of_b : orders(0)) {
            const std::string what = std::string(name) + to_string(of_a) + to_string(of_b);
            const Tensor a = requires_grad_(distribute_tensor(x, mesh, of_a));
            const Tensor b = requires_grad_(distribute_tensor(y, mesh, of_b));
            const Tensor actual = full_tensor(call(a, b));
            backward(sum(square(actual)));
            EXPECT_LT(amax(abs(sub(actual, expected))).item(), 1e-13) << what;
            EXPECT_LT(amax(abs(sub(full_tensor(grad_of(a)), grad_of(p)))).item(), 1e-12) << what;
            EXPECT_LT(amax(abs(sub(full_tensor(grad_of(b)), grad_of(q)))).item(), 1e-12) << what;
          }
        }
      }
    }
  });
}

// D14: a view that merges or splits around a cut dim.
TEST(ReportedCases, ViewsAcrossACutDimAreThoseOfTheWhole) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const Tensor x = count_up({4, 4, 4});
    const Tensor d = requires_grad_(distribute_tensor(x, line(ctx), {s(1)}));
    const Tensor y = full_tensor(view(d, {8, 8}));
    EXPECT_EQ(values_of(y), values_of(x));
    backward(sum(mul(y, count_up({8, 8}))));
    EXPECT_EQ(values_of(full_tensor(grad_of(d))), values_of(x));
  });
  testing::run_ranks(6, [](testing::RankContext& ctx) {
    const Tensor x = count_up({12, 8});
    const Tensor d = distribute_tensor(x, line(ctx), {s(1)});
    EXPECT_EQ(values_of(full_tensor(view(d, {16, 6}))), values_of(x));
  });
}

// A view that had to communicate is a copy: what is written to it would be lost.
TEST(ReportedCases, WritesThroughAViewReachTheTensorOrAreRefused) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const NoGradGuard no_grad;
    const Tensor x = count_up({4, 3});
    using View = std::function<Tensor(const Tensor&)>;
    const std::pair<const char*, View> views[] = {
        {"select", [](const Tensor& t) { return select(t, 0, 1); }},
        {"narrow", [](const Tensor& t) { return narrow(t, 0, 1, 2); }},
        {"column", [](const Tensor& t) { return select(t, 1, 0); }},
        {"transpose", [](const Tensor& t) { return transpose(t, 0, 1); }},
        {"view",
         [](const Tensor& t) {
           return view(t, {2, 6});
         }},
        {"view of 12", [](const Tensor& t) { return view(t, {12}); }},
        {"view of a view",
         [](const Tensor& t) {
           return transpose(view(t, {3, 4}), 0, 1);
         }},
        {"detached", [](const Tensor& t) { return detach(select(t, 0, 1)); }}};
    int refusals = 0;
    for (const Placement placement : {kR, s(0), s(1)}) {
      for (const auto& [name, view_of] : views) {
        const Tensor expected = clone(x), d = distribute_tensor(x, mesh, {placement});
        add_(view_of(expected), 10);
        const Result<void> outcome = testing::thrown_by([&] { add_(view_of(d), 10); });
        if (!outcome.ok()) {
          ++refusals;
          EXPECT_FALSE(placement.is_replicate()) << name;
          EXPECT_THAT(outcome, testing::FailsWith(ErrorCode::kInvalidArgument,
                                                  ::testing::HasSubstr("clone the view")));
          EXPECT_EQ(values_of(full_tensor(add_(clone(view_of(d)), 10))),
                    values_of(add(view_of(x), 10)));
        }
        EXPECT_EQ(values_of(full_tensor(d)), values_of(outcome.ok() ? expected : x))
            << name << " " << to_string(placement);
      }
    }
    EXPECT_GT(refusals, 4);
  });
}

// D23: calls over lists are known the second time.
TEST(ReportedCases, CallsOverListsHitTheLayoutCache) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const Tensor x = distribute_tensor(ones({4}), line(ctx), {s(0)});
    const Tensor y = distribute_tensor(zeros({4}), line(ctx), {s(0)});
    const auto of_lists = [&] {
      return std::vector<Tensor>{stack({x, x, x, x}), cat({x, y}, 0), stack({y, x}, 1)};
    };
    static_cast<void>(of_lists());
    const LayoutCacheCounts before = layout_cache_counts();
    const std::vector<Tensor> again = of_lists();
    EXPECT_EQ(layout_cache_counts().misses, before.misses);
    EXPECT_GE(layout_cache_counts().hits, before.hits + 3);
    EXPECT_EQ(values_of(full_tensor(again[0])), std::vector<double>(16, 1));
    EXPECT_EQ(values_of(full_tensor(again[1])), (std::vector<double>{1, 1, 1, 1, 0, 0, 0, 0}));
    EXPECT_EQ(values_of(full_tensor(again[2])), (std::vector<double>{0, 1, 0, 1, 0, 1, 0, 1}));
  });
}

// D24: two tables cut by rows, alive in one pass.
TEST(ReportedCases, TwoEmbeddingsByRowsDoNotShareState) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const Tensor first = sin(count_up({100, 23})), second = cos(count_up({101, 29}));
    const Tensor ids = remainder(arange(40) * 7, 100);
    const Tensor a = requires_grad_(distribute_tensor(first, mesh, {s(0)}));
    const Tensor b = requires_grad_(distribute_tensor(second, mesh, {s(0)}));
    const Tensor whole_ids = distribute_tensor(ids, mesh, {kR});
    const auto loss = [](const Tensor& x, const Tensor& y) {
      return add(sum(square(x)), sum(square(y)));
    };
    const Tensor of_a = embedding(a, whole_ids), of_b = embedding(b, whole_ids);
    EXPECT_EQ(values_of(full_tensor(of_a)), values_of(embedding(first, ids)));
    EXPECT_EQ(values_of(full_tensor(of_b)), values_of(embedding(second, ids)));
    backward(loss(of_a, of_b));
    const Tensor dense_a = requires_grad_(clone(first)), dense_b = requires_grad_(clone(second));
    backward(loss(embedding(dense_a, ids), embedding(dense_b, ids)));
    EXPECT_LT(amax(abs(sub(full_tensor(grad_of(a)), grad_of(dense_a)))).item(), 1e-12);
    EXPECT_LT(amax(abs(sub(full_tensor(grad_of(b)), grad_of(dense_b)))).item(), 1e-12);
  });
}

// D19: the gradient of a replicated input is reduced once, or not at all where its user wants the
// shares.
TEST(ReportedCases, AnMlpOfDTensorsCostsOneAllReduceEachWay) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const Tensor up = requires_grad_(distribute_tensor(sin(count_up({6, 4})), mesh, {s(0)}));
    const Tensor down = requires_grad_(distribute_tensor(cos(count_up({4, 6})), mesh, {s(1)}));
    const Tensor x = requires_grad_(sin(count_up({3, 4})));
    const auto reductions = [&] {
      uint64_t others = 0;
      for (const auto kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                              CollectiveKind::kAllToAll}) {
        others += ctx.group().num_launched(kind);
      }
      EXPECT_EQ(others, 0u);
      return ctx.group().num_launched(CollectiveKind::kAllReduce);
    };
    for (const bool takes_shares : {false, true}) {
      const uint64_t before = reductions();
      const Tensor d = takes_shares ? from_local(x, mesh, {kR}, DimVector{3, 4},
                                                 Placements{Placement::partial()})
                                    : from_local(x, mesh, {kR}, DimVector{3, 4});
      const Tensor y = full_tensor(linear(gelu(linear(d, up)), down));
      EXPECT_EQ(reductions(), before + 1);
      const Tensor outputs[] = {sum(y)}, inputs[] = {x};
      Tensor share = muster::grad(outputs, inputs)[0];
      EXPECT_EQ(reductions(), before + (takes_shares ? 1 : 2));
      if (takes_shares) {
        share = clone(share);
        ctx.group().run(ctx.group().all_reduce(share));
      }
      const Tensor z = requires_grad_(clone(detach(x)));
      backward(sum(linear(gelu(linear(z, sin(count_up({6, 4})))), cos(count_up({4, 6})))));
      EXPECT_LT(amax(abs(sub(share, grad_of(z)))).item(), 1e-13);
    }
  });
}

// Views that merge or split the leading dims keep a cut of the first of them: a product of an even
// batch with a matrix costs nothing. Uneven pieces of 3 are no pieces of 15.
TEST(ReportedCases, ABatchTimesAMatrixIsMultipliedPieceByPiece) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    for (const int64_t batch : {4, 3}) {
      const Tensor x = sin(count_up({batch, 5, 4})), w = cos(count_up({4, 3}));
      const Tensor a = requires_grad_(distribute_tensor(x, mesh, {s(0)}));
      const Tensor b = requires_grad_(distribute_tensor(w, mesh, {kR}));
      const uint64_t before = ctx.group().num_launched(CollectiveKind::kAllGather);
      const Tensor y = matmul(a, b);
      EXPECT_EQ(to_string(dtensor_spec(y).placements), batch == 4 ? "[S(0)]" : "[R]");
      EXPECT_EQ(ctx.group().num_launched(CollectiveKind::kAllGather) - before, batch == 4 ? 0 : 1);
      EXPECT_LT(amax(abs(sub(full_tensor(y), matmul(x, w)))).item(), 1e-14);
      backward(sum(square(full_tensor(y))));
      const Tensor p = requires_grad_(clone(x)), q = requires_grad_(clone(w));
      backward(sum(square(matmul(p, q))));
      EXPECT_LT(amax(abs(sub(full_tensor(grad_of(a)), grad_of(p)))).item(), 1e-13);
      EXPECT_LT(amax(abs(sub(full_tensor(grad_of(b)), grad_of(q)))).item(), 1e-13);
    }
  });
}

// Shares of a gradient that are cast to more bits are reduced in them; what is narrowed is reduced
// first. 1 + 2^-9 needs more bits than bf16 has.
TEST(ReportedCases, SharesAreReducedInTheWiderDType) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const double share = ctx.group_rank() == 0 ? 1.0 : 0x1p-9;
    const auto open = [&](DType dtype) {
      return from_local(full({2}, share, dtype), mesh, {Placement::partial()}, DimVector{2});
    };
    const Tensor wider = to(open(DType::kBF16), DType::kF32);
    EXPECT_EQ(to_string(dtensor_spec(wider).placements), "[P]");
    EXPECT_EQ(values_of(full_tensor(wider)), (std::vector<double>{1 + 0x1p-9, 1 + 0x1p-9}));
    EXPECT_EQ(to_string(dtensor_spec(to(open(DType::kF32), DType::kBF16)).placements), "[R]");
    EXPECT_EQ(to_string(dtensor_spec(to(open(DType::kF32), DType::kI64)).placements), "[R]");
  });
}

// D28: a transposed gradient must not cost another reduction, nor anything in its place.
TEST(ReportedCases, ATransposeCostsNoCommunication) {
  testing::run_ranks(2, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    using Counts = std::vector<uint64_t>;
    const auto launched = [&] {
      Counts counts;
      for (const auto kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                              CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll}) {
        counts.push_back(ctx.group().num_launched(kind));
      }
      return counts;
    };
    // The transposed value is an open sum where x and w are cut, its gradient where tokens are.
    for (const Placement of_tokens : {kR, s(0)}) {
      const bool is_open = of_tokens.is_replicate();
      const auto collectives = [&](bool transposes) {
        const Tensor ones_of_x = ones({4, 6}, DType::kF64), w = sin(count_up({6, 4}));
        const Tensor tokens = cos(count_up({5, 4}));
        const Tensor x = distribute_tensor(ones_of_x, mesh, {is_open ? s(1) : kR});
        const Tensor weight = requires_grad_(distribute_tensor(w, mesh, {is_open ? s(0) : kR}));
        const Tensor placed = distribute_tensor(tokens, mesh, {of_tokens});
        const auto loss_of = [&](const Tensor& a, const Tensor& b, const Tensor& c) {
          const Tensor y = mm(a, b);
          return sum(mm(c, transposes ? transpose(y, 0, 1) : y));
        };
        const Counts before = launched();
        backward(full_tensor(loss_of(x, weight, placed)));
        Counts counts = launched();
        for (size_t i = 0; i < counts.size(); ++i) counts[i] -= before[i];
        const Tensor dense = requires_grad_(clone(w));
        backward(loss_of(ones_of_x, dense, tokens));
        EXPECT_LT(amax(abs(sub(full_tensor(grad_of(weight)), grad_of(dense)))).item(), 1e-13);
        return counts;
      };
      EXPECT_EQ(collectives(false), (Counts{1, 0, 0, 0})) << to_string(of_tokens);
      EXPECT_EQ(collectives(true), (Counts{1, 0, 0, 0})) << to_string(of_tokens);
    }
  });
}
}  // namespace
}  // namespace muster
