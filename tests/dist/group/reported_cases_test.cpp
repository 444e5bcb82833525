// What users of other process groups have reported: results and orders of calls.
#include "tests/dist/group/reported_cases.h"

#include <fmt/format.h>

#include <cstring>
#include <random>
#include <tuple>

#include "dist/group/reduce.h"

namespace muster {
namespace {
using testing::expect_all;
using testing::FailsWith;
using testing::filled;
using ::testing::HasSubstr;
using testing::RankContext;

SUITE_ON_EVERY_BACKEND(ReportedCases);

TEST_P(ReportedCases, ReduceScatterAppliesTheOperationThatWasAsked) {
  run_ranks(2, [](RankContext& ctx) {
    const int rank = ctx.group_rank();
    const std::tuple<ReduceOp, float, float> cases[] = {
        {ReduceOp::kSum, 6, 12}, {ReduceOp::kAvg, 3, 6},      {ReduceOp::kMin, 2, 4},
        {ReduceOp::kMax, 4, 8},  {ReduceOp::kProduct, 8, 32},
    };
    for (const auto& [op, first, second] : cases) {
      const Tensor in = filled(2, 0), out = filled(1, 0);
      in.data<float>()[0] = rank == 0 ? 2.0F : 4.0F;
      in.data<float>()[1] = rank == 0 ? 4.0F : 8.0F;
      ASSERT_OK(ctx.group().reduce_scatter_tensor(out, in, op)->wait(ctx.deadline()));
      EXPECT_EQ(out.data<float>()[0], rank == 0 ? first : second) << to_string(op);
    }
  });
}

TEST_P(ReportedCases, EveryWorkOfABatchOfMessagesArrives) {
  run_ranks(2, [](RankContext& ctx) {
    ProcessGroup& group = ctx.group();
    const int rank = ctx.group_rank(), other = 1 - rank;
    const Tensor in[] = {filled(3, -1), filled(100000, -1)};
    std::vector<ProcessGroup::WorkPtr> works;
    for (const Tensor& tensor : in) works.push_back(group.recv(tensor, other, true));
    works.push_back(group.send(filled(3, static_cast<float>(rank)), other, true));
    works.push_back(group.send(filled(100000, static_cast<float>(10 + rank)), other, true));
    for (const auto& work : works) ASSERT_OK(work->wait(ctx.deadline()));
    expect_all(in[0], static_cast<float>(other));
    expect_all(in[1], static_cast<float>(10 + other));
  });
}

TEST_P(ReportedCases, MessagesMayBeTheFirstCallsOfAGroupAndOnlySomeRanksTakePart) {
  run_ranks(4, [](RankContext& ctx) {
    const int rank = ctx.group_rank();
    const auto fresh = ctx.group().subgroup("fresh", {0, 1, 2, 3}, ctx.deadline()).value();
    if (rank == 1) {
      ASSERT_OK(fresh->send(filled(2, 7), 3)->wait(ctx.deadline()));
    } else if (rank == 3) {
      const Tensor x = filled(2, 0);
      ASSERT_OK(fresh->recv(x, 1)->wait(ctx.deadline()));
      expect_all(x, 7);
    }
    for (int distance = 1; distance < 4; ++distance) {
      const int to = (rank + distance) % 4, from = (rank + 4 - distance) % 4;
      const Tensor x = filled(5000, -1);
      const auto sent = fresh->send(filled(5000, static_cast<float>(rank)), to);
      const auto received = fresh->recv(x, from);
      ASSERT_OK(sent->wait(ctx.deadline()));
      ASSERT_OK(received->wait(ctx.deadline()));
      expect_all(x, static_cast<float>(from));
    }
  });
}

TEST_P(ReportedCases, SubgroupsMessagesAndBarriersMix) {
  run_ranks(4, [](RankContext& ctx) {
    ProcessGroup& world = ctx.group();
    const int rank = ctx.group_rank();
    const std::vector<int> members = rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
    const auto half = world.subgroup(rank < 2 ? "low" : "high", members, ctx.deadline()).value();
    for (int round = 0; round < 20; ++round) {
      ASSERT_OK(world.barrier()->wait(ctx.deadline()));
      const Tensor x = filled(17 + round * 300, 1);
      ASSERT_OK(half->all_reduce(x)->wait(ctx.deadline()));
      expect_all(x, 2);
      if (rank == 0) world.run(world.send(x, 3));
      if (rank == 3) world.run(world.recv(x, 0));
      ASSERT_OK(half->barrier()->wait(ctx.deadline()));
    }
  });
}

// Reported as pytorch#46181: half of the ranks took the root for a global rank, and the rest hung.
TEST_P(ReportedCases, ARootThatIsNotInTheGroupIsNamedBeforeAnythingIsSent) {
  run_ranks(4, [](RankContext& ctx) {
    const bool is_even = ctx.group_rank() % 2 == 0;
    const std::vector<int> members = is_even ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
    const auto group =
        ctx.group().subgroup(is_even ? "even" : "odd", members, ctx.deadline()).value();
    const std::string ranks = is_even ? "global ranks [0, 2]" : "global ranks [1, 3]";
    const int stranger = is_even ? 1 : 0;
    EXPECT_ERROR(static_cast<void>(group->group_rank_of(stranger)), ErrorCode::kInvalidArgument,
                 HasSubstr(fmt::format("{}; got {}", ranks, stranger)));
    const Tensor x = filled(4, static_cast<float>(ctx.group_rank()));
    for (const int root : {2, -1}) {
      const auto names_it = HasSubstr(fmt::format("{}; got {}", ranks, root));
      EXPECT_ERROR(group->broadcast(x, root), ErrorCode::kInvalidArgument, names_it);
      EXPECT_ERROR(group->reduce(x, root), ErrorCode::kInvalidArgument, names_it);
      EXPECT_ERROR(group->gather({}, x, root), ErrorCode::kInvalidArgument, names_it);
      EXPECT_ERROR(group->scatter(x, {}, root), ErrorCode::kInvalidArgument, names_it);
      EXPECT_ERROR(group->send(x, root), ErrorCode::kInvalidArgument, names_it);
      EXPECT_ERROR(group->recv(x, root), ErrorCode::kInvalidArgument, names_it);
    }
    EXPECT_TRUE(group->recorder().last(10).empty());
    ASSERT_OK(group->broadcast(x, group->group_rank_of(members[1]))->wait(ctx.deadline()));
    expect_all(x, static_cast<float>(members[1]));
  });
}

// Reductions run in group order on every backend: this is the reference, bit for bit.
TEST_P(ReportedCases, ReductionsHaveTheSameBitsOnEveryBackend) {
  constexpr int kWorld = 3;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t count : {int64_t{500}, int64_t{300001}}) {
      std::vector<Tensor> inputs;
      for (int rank = 0; rank < kWorld; ++rank) {
        std::mt19937 random(static_cast<uint32_t>(1000 + rank));
        std::uniform_real_distribution<float> uniform(-1, 1);
        inputs.push_back(empty_from_spec(TensorSpec::contiguous({kWorld * count}, dtype)));
        for (int64_t i = 0; i < kWorld * count; ++i) {
          if (dtype == DType::kF32) {
            inputs.back().data<float>()[i] = uniform(random);
          } else {
            inputs.back().data<BFloat16>()[i] = BFloat16(uniform(random));
          }
        }
      }
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        const Tensor expected = empty_from_spec(TensorSpec::contiguous({kWorld * count}, dtype));
        std::vector<const std::byte*> sources;
        for (const Tensor& input : inputs)
          sources.push_back(static_cast<const std::byte*>(input.data_ptr()));
        reduce_buffers(op, dtype, static_cast<std::byte*>(expected.data_ptr()), sources,
                       kWorld * count);
        run_ranks(kWorld, [&](RankContext& ctx) {
          const auto rank = static_cast<size_t>(ctx.group_rank());
          const Tensor whole = empty_from_spec(TensorSpec::of(inputs[rank]));
          const Tensor piece = empty_from_spec(TensorSpec::contiguous({count}, dtype));
          std::memcpy(whole.data_ptr(), inputs[rank].data_ptr(),
                      static_cast<size_t>(whole.nbytes()));
          ASSERT_OK(ctx.group().reduce_scatter_tensor(piece, whole, op)->wait(ctx.deadline()));
          ASSERT_OK(ctx.group().all_reduce(whole, op)->wait(ctx.deadline()));
          EXPECT_EQ(std::memcmp(whole.data_ptr(), expected.data_ptr(),
                                static_cast<size_t>(whole.nbytes())),
                    0);
          const auto* own = static_cast<const std::byte*>(expected.data_ptr()) +
                            static_cast<int64_t>(rank) * piece.nbytes();
          EXPECT_EQ(std::memcmp(piece.data_ptr(), own, static_cast<size_t>(piece.nbytes())), 0);
        });
      }
    }
  }
}
}  // namespace
}  // namespace muster
