// Attention on DTensors: batch and heads may be cut, forward and backward, without communication.
#include "core/autograd/autograd.h"
#include "core/ops/attention/sdpa.h"
#include "core/ops/ops.h"
#include "dist/tensor/redistribute.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
constexpr Placement kR = Placement::replicate();
constexpr Placement s(int32_t dim) { return Placement::shard(dim); }

MeshRef line(testing::RankContext& ctx) {
  const auto world = testing::world_of(ctx);
  return DeviceMesh::open(world, {{"tp", ctx.world_size()}}, ctx.deadline()).value();
}

uint64_t launched(const ProcessGroup& group) {
  uint64_t total = 0;
  for (const auto kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                          CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll}) {
    total += group.num_launched(kind);
  }
  return total;
}

struct Problem {
  std::string name;
  DimVector q, kv;
  DType dtype = DType::kF32;  // f64 is what the math kernel gets
  CausalAlignment causal = CausalAlignment::kNone;
  DimVector mask = {};
  bool float_mask = false;
};

Tensor wave(Dims sizes, double step, DType dtype) {
  return to(view(sin(mul(arange(numel_of(sizes), DType::kF64), step)), sizes), dtype);
}

struct Run {
  Tensor out;
  std::vector<Tensor> grads;
};

// Inputs under `place`, and the gradients for a loss that weighs every element of the result.
Run run(const Problem& problem, const std::function<Tensor(const Tensor&)>& place,
        const std::function<Tensor(const Tensor&)>& whole) {
  SdpaOptions options;
  options.causal = problem.causal;
  options.enable_gqa = problem.q[1] != problem.kv[1];
  std::vector<Tensor> leaves;
  for (const auto& [sizes, step] :
       {std::pair{problem.q, 0.7}, {problem.kv, 0.3}, {problem.kv, 0.5}}) {
    leaves.push_back(requires_grad_(place(wave(sizes, step, problem.dtype))));
  }
  if (!problem.mask.empty()) {
    const Tensor mask = wave(problem.mask, 1.3, problem.dtype);
    options.attn_mask = place(problem.float_mask ? mask : gt(mask, -0.5));
    if (problem.float_mask) leaves.push_back(requires_grad_(options.attn_mask));
  }
  Run result;
  const Tensor out = scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], options);
  result.out = detach(out);
  backward(out, place(wave(problem.q, 1.1, problem.dtype)));
  for (const Tensor& leaf : leaves) result.grads.push_back(whole(grad_of(leaf)));
  return result;
}

void expect_near(const Tensor& actual, const Tensor& expected, const std::string& what) {
  const double bound = expected.dtype() == DType::kF64 ? 1e-12 : 1e-5;
  EXPECT_LT(amax(abs(sub(detach(actual), detach(expected)))).item(), bound) << what;
}

// `cut` is the dim of q, k and v that is cut; a mask is cut with them where it has that dim.
void check(const Problem& problem, int world, int32_t cut) {
  SCOPED_TRACE(fmt::format("{} on {} ranks, dim {} cut", problem.name, world, cut));
  const auto same = [](const Tensor& x) { return x; };
  const Run dense = run(problem, same, same);
  testing::run_ranks(world, [&](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const auto place = [&](const Tensor& x) {
      const bool has_dim = x.ndim() == 4 && x.size(cut) > 1;
      return distribute_tensor(x, mesh, {has_dim ? s(cut) : kR});
    };
    std::vector<std::string> lies;
    const uint64_t before = launched(ctx.group());
    uint64_t after = 0;
    const auto whole = [&](const Tensor& x) {
      if (lies.empty()) after = launched(ctx.group());
      lies.push_back(to_string(dtensor_spec(x).placements));
      return full_tensor(x);
    };
    const Run cut_run = run(problem, place, whole);
    EXPECT_EQ(after - before, 0u);
    EXPECT_EQ(to_string(dtensor_spec(cut_run.out).placements), to_string(std::vector{s(cut)}));
    expect_near(full_tensor(cut_run.out), dense.out, "result");
    for (size_t i = 0; i < dense.grads.size(); ++i) {
      // A whole mask or key head is used by all ranks: its gradient is an open sum.
      if (i < 3 && (i == 0 || problem.kv[static_cast<size_t>(cut)] > 1)) {
        EXPECT_EQ(lies[i], to_string(std::vector{s(cut)})) << "gradient " << i;
      }
      expect_near(cut_run.grads[i], dense.grads[i], fmt::format("gradient {}", i));
    }
  });
}

TEST(SdpaLayout, FlashIsTheKernelOfTheseProblems) {
  const Tensor x = wave({2, 4, 6, 8}, 0.7, DType::kF32);
  EXPECT_EQ(sdpa_explain(x, x, x).kernel, SdpaKernel::kFlash);
}

TEST(SdpaLayout, HeadsAndBatchCutEqualDenseWithoutCommunication) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const CausalAlignment causal : {CausalAlignment::kNone, CausalAlignment::kUpperLeft}) {
      const Problem problem{"plain", {4, 4, 6, 8}, {4, 4, 6, 8}, dtype, causal};
      for (const int world : {2, 4}) {
        check(problem, world, 0);
        check(problem, world, 1);
      }
    }
  }
}

TEST(SdpaLayout, UnevenAndEmptyPiecesOfBatchAndHeads) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    check({"three", {3, 3, 4, 2}, {3, 3, 5, 2}, dtype}, 2, 0);
    check({"three", {3, 3, 4, 2}, {3, 3, 5, 2}, dtype}, 2, 1);
    check({"two", {2, 2, 4, 2}, {2, 2, 4, 2}, dtype}, 3, 0);
    check({"two", {2, 2, 4, 2}, {2, 2, 4, 2}, dtype}, 3, 1);
  }
}

TEST(SdpaLayout, HeadsThatShareKeyHeadsStayInStep) {
  check({"gqa", {2, 8, 4, 2}, {2, 4, 4, 2}}, 2, 1);
  check({"gqa", {2, 8, 4, 2}, {2, 4, 4, 2}}, 4, 1);
  check({"gqa", {4, 4, 4, 2}, {4, 2, 4, 2}}, 2, 0);
}

// Two axes that cut heads must leave the same heads of queries and keys on a rank.
TEST(SdpaLayout, HeadsCutByTwoAxesGiveTheDenseValues) {
  for (const int64_t kv_heads : {8, 4, 2}) {
    const Tensor q = wave({2, 8, 4, 2}, 0.7, DType::kF32);
    const Tensor k = wave({2, kv_heads, 4, 2}, 0.3, DType::kF32);
    SdpaOptions options;
    options.enable_gqa = true;
    const Tensor expected = scaled_dot_product_attention(q, k, k, options);
    testing::run_ranks(4, [&](testing::RankContext& ctx) {
      const MeshRef mesh = testing::mesh_of(ctx, {{"a", 2}, {"b", 2}});
      const std::vector<std::vector<Placement>> layouts = {
          {s(1), s(1)}, {kR, s(1)}, {s(1), kR}, {s(0), s(1)}, {kR, kR}};
      for (const auto& of_q : layouts) {
        for (const auto& of_k : layouts) {
          const Tensor x = distribute_tensor(q, mesh, of_q), y = distribute_tensor(k, mesh, of_k);
          const Tensor out = scaled_dot_product_attention(x, y, y, options);
          expect_near(full_tensor(out), expected, to_string(of_q) + to_string(of_k));
        }
      }
    });
  }
}

// A mask has the dims of the scores; where one of them is 1, or absent, all ranks use it whole.
TEST(SdpaLayout, MasksAreCutWhereTheyHaveTheDim) {
  for (const bool is_float : {false, true}) {
    for (const DimVector& mask :
         {DimVector{4, 4, 5, 5}, {4, 1, 5, 5}, {1, 4, 5, 5}, {1, 1, 5, 5}}) {
      const Problem problem{
          "mask " + to_string(Dims(mask)), {4, 4, 5, 2}, {4, 4, 5, 2}, DType::kF32,
          CausalAlignment::kNone,          mask,         is_float};
      check(problem, 2, 0);
      check(problem, 2, 1);
    }
  }
}

// A cut sequence is gathered: only the values are promised.
TEST(SdpaLayout, ACutSequenceOrHeadDimGivesTheDenseValues) {
  const Tensor q = wave({2, 2, 5, 4}, 0.7, DType::kF32), k = wave({2, 2, 5, 4}, 0.3, DType::kF32);
  const Tensor expected = scaled_dot_product_attention(q, k, k);
  testing::run_ranks(2, [&](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    for (const int32_t dim : {2, 3}) {
      const Tensor x = distribute_tensor(q, mesh, {s(dim)}),
                   y = distribute_tensor(k, mesh, {s(dim)});
      expect_near(full_tensor(scaled_dot_product_attention(x, y, y)), expected, "result");
    }
  });
}

// Reported as DeepSpeed#8316: the split of another model's heads was remembered.
TEST(SdpaLayout, HeadsOfOneModelSayNothingAboutTheNext) {
  testing::run_ranks(4, [](testing::RankContext& ctx) {
    const MeshRef mesh = line(ctx);
    const auto heads_of = [&](int64_t heads, int64_t kv_heads) {
      const auto cut = [&](int64_t n) {
        return distribute_tensor(wave({1, n, 4, 2}, 0.7, DType::kF32), mesh, {s(1)});
      };
      SdpaOptions options;
      options.enable_gqa = heads != kv_heads;
      const Tensor kv = cut(kv_heads);
      const Tensor out = scaled_dot_product_attention(cut(heads), kv, kv, options);
      return local_tensor(redistribute(out, {s(1)})).size(1);
    };
    const int64_t first[] = {3, 3, 3, 3};
    EXPECT_EQ(heads_of(12, 3), first[ctx.group_rank()]);
    EXPECT_EQ(heads_of(12, 12), 3);
    EXPECT_EQ(heads_of(3, 3), ctx.group_rank() < 3 ? 1 : 0);
    EXPECT_EQ(heads_of(12, 12), 3);
  });
}
}  // namespace
}  // namespace muster
