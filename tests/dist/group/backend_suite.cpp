// The suite that every backend with real peers passes. Members join by join_backend_suite().
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <tuple>

#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using testing::BackendMember;
using testing::RankContext;

// A case that runs once for each member; bodies start ranks on the member under test.
// Skips where the machine cannot run so many ranks of a member. For the main thread.
#define SKIP_IF_UNABLE(member, world)                                           \
  do {                                                                          \
    const BackendMember& asked = (member);                                      \
    const std::string why = asked.unable ? asked.unable(world) : std::string(); \
    if (!why.empty()) GTEST_SKIP() << why;                                      \
  } while (false)

class BackendSuite : public ::testing::TestWithParam<BackendMember> {
 protected:
  static void run_ranks(int world, const std::function<void(RankContext&)>& body) {
    SKIP_IF_UNABLE(GetParam(), world);
    testing::run_ranks(world, body, 60s, GetParam().name);
  }
  static std::unique_ptr<testing::World> spawn_ranks(int world, const std::string& body) {
    return std::make_unique<testing::World>(world, body, 60s, GetParam().name);
  }
};

#define BACKEND_SUITE(suite)                                                                 \
  class suite : public BackendSuite {};                                                      \
  INSTANTIATE_TEST_SUITE_P(Backends, suite, ::testing::ValuesIn(testing::backend_members()), \
                           [](const auto& p) { return p.param.name; })

BACKEND_SUITE(Abilities);
BACKEND_SUITE(AllReduce);
BACKEND_SUITE(AllGather);
BACKEND_SUITE(AllToAll);
BACKEND_SUITE(SendRecv);
BACKEND_SUITE(Async);
BACKEND_SUITE(Subgroup);
BACKEND_SUITE(SharedMemory);
BACKEND_SUITE(Contract);
BACKEND_SUITE(Deadlines);
BACKEND_SUITE(Abort);
BACKEND_SUITE(PeerDeath);
BACKEND_SUITE(Processes);

TEST_P(Abilities, AreThoseThatTheBackendStates) {
  run_ranks(1, [](RankContext& ctx) {
    Backend& backend = ctx.group().backend();
    EXPECT_EQ(backend.name(), GetParam().name);
    EXPECT_EQ(backend.abilities().send_recv, GetParam().abilities.send_recv);
    EXPECT_EQ(backend.abilities().all_to_all, GetParam().abilities.all_to_all);
    EXPECT_EQ(backend.abilities().survives_peer_death, GetParam().abilities.survives_peer_death);
    EXPECT_EQ(backend.abilities().reduces_in_group_order,
              GetParam().abilities.reduces_in_group_order);
    EXPECT_EQ(backend.abilities().shares_memory, GetParam().abilities.shares_memory);
  });
}

Tensor values(Dims sizes, DType dtype, const std::function<double(int64_t)>& at,
              Allocator* allocator = nullptr) {
  const bool is_of_host = allocator == nullptr || allocator->device() == kCpuDevice;
  Tensor tensor =
      empty_from_spec(TensorSpec::contiguous(sizes, dtype), is_of_host ? allocator : nullptr);
  visit_dtype(dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
        tensor.data<T>()[i] = T(static_cast<float>(at(i)));
      } else {
        tensor.data<T>()[i] = static_cast<T>(at(i));
      }
    }
  });
  return testing::on_backend(tensor);
}

double element(const Tensor& tensor, int64_t i) {
  return visit_dtype(tensor.dtype(), [&](auto type) {
    using T = decltype(type);
    const T value = static_cast<const T*>(tensor.data_ptr())[i];
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
      return static_cast<double>(static_cast<float>(value));
    } else {
      return static_cast<double>(value);
    }
  });
}

void expect_values(const Tensor& result, const std::function<double(int64_t)>& at) {
  const Tensor tensor = testing::on_host(result);
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    ASSERT_DOUBLE_EQ(element(tensor, i), at(i)) << "element " << i << " of " << tensor.describe();
  }
}

// Sizes around the inline limit and the tile, in the arena and outside.
struct Case {
  int world;
  int64_t count;
  bool in_arena;
};
class Sizes : public ::testing::TestWithParam<std::tuple<BackendMember, Case>> {
 protected:
  static Case size_case() { return std::get<1>(GetParam()); }
  static void run_ranks(int world, const std::function<void(RankContext&)>& body) {
    SKIP_IF_UNABLE(std::get<0>(GetParam()), world);
    testing::run_ranks(world, body, 60s, std::get<0>(GetParam()).name);
  }
};
INSTANTIATE_TEST_SUITE_P(
    Backends, Sizes,
    ::testing::Combine(::testing::ValuesIn(testing::backend_members()),
                       ::testing::Values(Case{1, 10, false}, Case{2, 0, false}, Case{2, 1, false},
                                         Case{3, 100, false}, Case{2, 5000, false},
                                         Case{4, 10007, true}, Case{3, 100003, false},
                                         Case{2, 3000001, true})),
    [](const auto& p) {
      const Case& size = std::get<1>(p.param);
      return fmt::format("{}_w{}_n{}_{}", std::get<0>(p.param).name, size.world, size.count,
                         size.in_arena ? "arena" : "heap");
    });

TEST_P(Sizes, AllReduceSumsWhatEachRankContributed) {
  const Case param = size_case();
  run_ranks(param.world, [&](RankContext& ctx) {
    Allocator* allocator = param.in_arena ? &ctx.group().communication_allocator() : nullptr;
    const int rank = ctx.group_rank();
    for (int round = 0; round < 3; ++round) {
      const Tensor x = values(
          {param.count}, DType::kF32,
          [&](int64_t i) { return (rank + 1) * double(i % 97) + round; }, allocator);
      ASSERT_OK(ctx.group().all_reduce(x)->wait(ctx.deadline()));
      const int ranks = param.world * (param.world + 1) / 2;
      expect_values(x, [&](int64_t i) { return ranks * double(i % 97) + param.world * round; });
    }
  });
}

TEST_P(Sizes, AllGatherConcatenatesInRankOrder) {
  const Case param = size_case();
  run_ranks(param.world, [&](RankContext& ctx) {
    Allocator* allocator = param.in_arena ? &ctx.group().communication_allocator() : nullptr;
    const int rank = ctx.group_rank();
    const Tensor in = values(
        {param.count}, DType::kI64, [&](int64_t i) { return rank * 1000000 + i; }, allocator);
    const Tensor out = values(
        {param.world * param.count}, DType::kI64, [](int64_t) { return -1; }, allocator);
    ASSERT_OK(ctx.group().all_gather_into_tensor(out, in)->wait(ctx.deadline()));
    expect_values(out, [&](int64_t i) {
      return i / std::max<int64_t>(param.count, 1) * 1000000 +
             i % std::max<int64_t>(param.count, 1);
    });
  });
}

TEST_P(Sizes, ReduceScatterGivesEachRankItsPieceReduced) {
  const Case param = size_case();
  run_ranks(param.world, [&](RankContext& ctx) {
    const int rank = ctx.group_rank();
    const Tensor in = values({param.world * param.count}, DType::kF64,
                             [&](int64_t i) { return (rank + 1) * double(i % 1009); });
    const Tensor out = values({param.count}, DType::kF64, [](int64_t) { return -1; });
    ASSERT_OK(ctx.group().reduce_scatter_tensor(out, in, ReduceOp::kAvg)->wait(ctx.deadline()));
    expect_values(out, [&](int64_t i) {
      return (param.world + 1) / 2.0 * double((rank * param.count + i) % 1009);
    });
  });
}

TEST_P(Sizes, BroadcastReduceGatherAndScatterAgree) {
  const Case param = size_case();
  run_ranks(param.world, [&](RankContext& ctx) {
    const int rank = ctx.group_rank(), root = param.world - 1;
    ProcessGroup& group = ctx.group();
    const Tensor x = values({param.count}, DType::kI32, [&](int64_t i) { return rank * 100 + i; });
    ASSERT_OK(group.broadcast(x, root)->wait(ctx.deadline()));
    expect_values(x, [&](int64_t i) { return double(root * 100 + i); });
    const Tensor y = values({param.count}, DType::kI32, [&](int64_t i) { return rank + i; });
    ASSERT_OK(group.reduce(y, root, ReduceOp::kMax)->wait(ctx.deadline()));
    expect_values(y, [&](int64_t i) { return double(rank == root ? root + i : rank + i); });
    std::vector<Tensor> pieces;
    for (int r = 0; r < param.world && rank == root; ++r)
      pieces.push_back(values({param.count}, DType::kI32, [](int64_t) { return -1; }));
    const Tensor mine = values({param.count}, DType::kI32, [&](int64_t i) { return rank * 7 + i; });
    ASSERT_OK(group.gather(pieces, mine, root)->wait(ctx.deadline()));
    for (int r = 0; r < static_cast<int>(pieces.size()); ++r)
      expect_values(pieces[static_cast<size_t>(r)], [&](int64_t i) { return double(r * 7 + i); });
    const Tensor back = values({param.count}, DType::kI32, [](int64_t) { return -1; });
    ASSERT_OK(group.scatter(back, pieces, root)->wait(ctx.deadline()));
    expect_values(back, [&](int64_t i) { return double(rank * 7 + i); });
  });
}

TEST_P(AllReduce, AveragesBf16InF32) {
  if (!GetParam().abilities.reduces_in_group_order) GTEST_SKIP() << "the library's own rounding";
  run_ranks(3, [](RankContext& ctx) {
    // 1 + 2^-8 + 2^-8 needs nine bits: rounding after each addition would lose it.
    const double mine[] = {1.0, 0x1p-8, 0x1p-8};
    const Tensor x = values({5000}, DType::kBF16, [&](int64_t) { return mine[ctx.group_rank()]; });
    ASSERT_OK(ctx.group().all_reduce(x)->wait(ctx.deadline()));
    expect_values(x, [](int64_t) { return 1.0078125; });
  });
}

TEST_P(AllReduce, KeepsNanInMinAndMax) {
  if (!GetParam().abilities.reduces_in_group_order) GTEST_SKIP() << "the library's own maximum";
  run_ranks(2, [](RankContext& ctx) {
    const Tensor x = values({4}, DType::kF32, [&](int64_t i) {
      return i == 2 && ctx.group_rank() == 1 ? NAN : double(i);
    });
    ASSERT_OK(ctx.group().all_reduce(x, ReduceOp::kMax)->wait(ctx.deadline()));
    const Tensor result = testing::on_host(x);
    EXPECT_TRUE(std::isnan(element(result, 2)));
    EXPECT_EQ(element(result, 3), 3.0);
  });
}

TEST_P(AllGather, TakesPiecesOfDifferentSizes) {
  run_ranks(3, [](RankContext& ctx) {
    const int64_t counts[] = {3, 0, 2};
    const int rank = ctx.group_rank();
    const Tensor in =
        values({counts[rank]}, DType::kF32, [&](int64_t i) { return rank * 10 + double(i); });
    std::vector<Tensor> outs;
    for (const int64_t count : counts)
      outs.push_back(values({count}, DType::kF32, [](int64_t) { return -1; }));
    ASSERT_OK(ctx.group().all_gather(outs, in)->wait(ctx.deadline()));
    for (int r = 0; r < 3; ++r)
      expect_values(outs[static_cast<size_t>(r)], [&](int64_t i) { return r * 10 + double(i); });
  });
}

TEST_P(AllToAll, ExchangesUnevenPieces) {
  run_ranks(3, [](RankContext& ctx) {
    const int rank = ctx.group_rank();
    std::vector<Tensor> in, out;
    for (int r = 0; r < 3; ++r) {
      in.push_back(values({rank + r}, DType::kF32, [&](int64_t) { return rank * 10 + r; }));
      out.push_back(values({rank + r}, DType::kF32, [](int64_t) { return -1; }));
    }
    ASSERT_OK(ctx.group().all_to_all(out, in)->wait(ctx.deadline()));
    for (int r = 0; r < 3; ++r)
      expect_values(out[static_cast<size_t>(r)], [&](int64_t) { return r * 10 + rank; });
  });
}

TEST_P(SendRecv, BothSidesMaySendFirst) {
  run_ranks(2, [](RankContext& ctx) {
    const int rank = ctx.group_rank(), other = 1 - rank;
    const int64_t count = int64_t{1} << 22;
    const Tensor mine =
        values({count}, DType::kF32, [&](int64_t i) { return rank + double(i % 5); });
    const Tensor theirs = values({count}, DType::kF32, [](int64_t) { return -1; });
    ASSERT_OK(ctx.group().send(mine, other)->wait(ctx.deadline()));
    ASSERT_OK(ctx.group().recv(theirs, other)->wait(ctx.deadline()));
    expect_values(theirs, [&](int64_t i) { return other + double(i % 5); });
  });
}

TEST_P(SendRecv, KeepsOrderOverManyMessages) {
  run_ranks(2, [](RankContext& ctx) {
    for (int round = 0; round < 100; ++round) {
      const Tensor x = values({round % 7}, DType::kI64, [&](int64_t i) { return round * 10 + i; });
      if (ctx.group_rank() == 0) {
        ASSERT_OK(ctx.group().send(x, 1)->wait(ctx.deadline()));
      } else {
        const Tensor y = values({round % 7}, DType::kI64, [](int64_t) { return -1; });
        ASSERT_OK(ctx.group().recv(y, 0)->wait(ctx.deadline()));
        expect_values(y, [&](int64_t i) { return double(round * 10 + i); });
      }
    }
  });
}

TEST_P(Async, WorksOfTwoGroupsMayBeAwaitedInAnyOrder) {
  run_ranks(2, [](RankContext& ctx) {
    const auto second = ctx.group().subgroup("second", {0, 1}, ctx.deadline()).value();
    const Tensor a = values({1000}, DType::kF32, [](int64_t) { return 1; });
    const Tensor b = values({1000}, DType::kF32, [](int64_t) { return 2; });
    const auto first_work = ctx.group().all_reduce(a, ReduceOp::kSum, true);
    const auto second_work = second->all_reduce(b, ReduceOp::kSum, true);
    if (ctx.group_rank() == 0) {
      ASSERT_OK(second_work->wait(ctx.deadline()));
      ASSERT_OK(first_work->wait(ctx.deadline()));
    } else {
      ASSERT_OK(first_work->wait(ctx.deadline()));
      ASSERT_OK(second_work->wait(ctx.deadline()));
    }
    expect_values(a, [](int64_t) { return 2; });
    expect_values(b, [](int64_t) { return 4; });
  });
}

TEST_P(Subgroup, NumbersAndRanksAreItsOwn) {
  run_ranks(4, [](RankContext& ctx) {
    const int rank = ctx.group_rank();
    const std::vector<int> members =
        rank % 2 == 0 ? std::vector<int>{2, 0} : std::vector<int>{1, 3};
    const auto group =
        ctx.group().subgroup(rank % 2 == 0 ? "even" : "odd", members, ctx.deadline()).value();
    EXPECT_EQ(group->group_rank(), rank == 2 || rank == 1 ? 0 : 1);
    const Tensor in = values({1}, DType::kI64, [&](int64_t) { return rank; });
    const Tensor out = values({2}, DType::kI64, [](int64_t) { return -1; });
    ASSERT_OK(group->all_gather_into_tensor(out, in)->wait(ctx.deadline()));
    expect_values(out, [&](int64_t i) { return double(members[static_cast<size_t>(i)]); });
  });
}

// Two meshes of one job name their axes alike, and some ranks are in other company than before.
TEST_P(Subgroup, GroupsOfOneNameAreApart) {
  run_ranks(3, [](RankContext& ctx) {
    const std::vector<std::vector<int>> memberships{{0, 1}, {0, 1, 2}, {0, 1}, {2, 0}, {0, 1, 2}};
    std::vector<std::unique_ptr<ProcessGroup>> groups;
    for (size_t i = 0; i < 50; ++i) {  // who comes first differs
      const std::vector<int>& members = memberships[i % memberships.size()];
      const bool is_member = std::count(members.begin(), members.end(), ctx.group_rank()) > 0;
      groups.push_back(is_member ? ctx.group().subgroup("tp", members, ctx.deadline()).value()
                                 : nullptr);
    }
    for (size_t i = 0; i < groups.size(); ++i) {
      if (!groups[i]) continue;
      const double own = static_cast<double>(i);
      const Tensor sum = values({1}, DType::kI64, [&](int64_t) { return own; });
      ASSERT_OK(groups[i]->all_reduce(sum)->wait(ctx.deadline()));
      expect_values(sum, [&](int64_t) { return own * groups[i]->world_size(); });
    }
  });
}

TEST_P(SharedMemory, IsSeenByAllRanksOnceTheyHaveGathered) {
  run_ranks(3, [](RankContext& ctx) {
    ProcessGroup& group = ctx.group();
    const bool has_any = group.backend().abilities().shares_memory;
    const auto memory = group.share(3 * 1000 * sizeof(double), "a test");
    ASSERT_EQ(memory != nullptr, has_any);
    if (!has_any) {
      EXPECT_THAT(
          catch_error([&] {
            group.all_gather_in_place(
                testing::on_backend(values({2}, DType::kF32, [](int64_t) { return 1; })));
          }),
          testing::FailsWith(ErrorCode::kUnimplemented, ::testing::HasSubstr("use all_gather")));
      return;
    }
    const Tensor whole = tensor_from_memory(memory.get(), {3, 1000}, DType::kF64);
    expect_values(whole, [](int64_t) { return 0; });
    ASSERT_OK(group.barrier()->wait(ctx.deadline()));
    for (int round = 1; round < 50; ++round) {
      for (int64_t i = 0; i < 1000; ++i)
        whole.data<double>()[ctx.group_rank() * 1000 + i] = round * 10 + ctx.group_rank();
      ASSERT_OK(group.all_gather_in_place(whole, round % 2 == 0)->wait(ctx.deadline()));
      expect_values(whole, [&](int64_t i) { return round * 10 + static_cast<double>(i / 1000); });
      ASSERT_OK(group.barrier()->wait(ctx.deadline()));  // all have looked
    }
  });
}

TEST_P(SharedMemory, RanksAgreeOnItsSizeAndOnWhatItIsFor) {
  run_ranks(2, [](RankContext& ctx) {
    if (!ctx.group().backend().abilities().shares_memory) return;
    const auto in_place = [&](int64_t nbytes) { return ctx.group().share(nbytes, "weights"); };
    const int64_t nbytes = 4096 * (1 + ctx.group_rank());
    EXPECT_THAT(
        catch_error([&] { in_place(nbytes); }),
        testing::FailsWith(ErrorCode::kMismatch, ::testing::HasSubstr("8192 bytes of weights")));
  });
}

// Pieces of other sizes for each rank, some empty, of every op and of a half type.
TEST_P(SharedMemory, PiecesAreReducedWhereTheyLie) {
  run_ranks(3, [](RankContext& ctx) {
    ProcessGroup& group = ctx.group();
    if (!group.backend().abilities().shares_memory) {
      const Tensor two = testing::on_backend(values({2}, DType::kF32, [](int64_t) { return 1; }));
      EXPECT_THAT(catch_error([&] {
                    group.reduce_scatter({two}, {two, two, two});
                  }),
                  testing::FailsWith(ErrorCode::kUnimplemented,
                                     ::testing::HasSubstr("use reduce_scatter_tensor")));
      return;
    }
    const int rank = ctx.group_rank();
    const auto size_of = [](int to, int piece) { return int64_t{to * 1000 + piece * 3}; };
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI64}) {
      for (const bool async_op : {false, true}) {
        std::vector<Tensor> inputs, outputs;
        for (int to = 0; to < 3; ++to) {
          for (int piece = 0; piece < 2; ++piece) {
            inputs.push_back(values({size_of(to, piece)}, dtype, [&](int64_t i) {
              return static_cast<double>(i % 7) + 10 * rank + piece;
            }));
          }
        }
        for (int piece = 0; piece < 2; ++piece)
          outputs.push_back(values({size_of(rank, piece)}, dtype, [](int64_t) { return -1; }));
        ASSERT_OK(
            group.reduce_scatter(outputs, inputs, ReduceOp::kSum, async_op)->wait(ctx.deadline()));
        for (int piece = 0; piece < 2; ++piece) {
          expect_values(outputs[static_cast<size_t>(piece)],
                        [&](int64_t i) { return 3 * static_cast<double>(i % 7) + 30 + 3 * piece; });
        }
      }
    }
  });
}

TEST_P(SharedMemory, PiecesOfOtherSizesAreAMismatch) {
  run_ranks(2, [](RankContext& ctx) {
    ProcessGroup& group = ctx.group();
    if (!group.backend().abilities().shares_memory) return;
    const int64_t size = 1000 + ctx.group_rank();
    const Tensor piece = values({size}, DType::kF32, [](int64_t) { return 1; });
    EXPECT_THAT(group.reduce_scatter({piece}, {piece, piece})->wait(ctx.deadline()),
                testing::FailsWith(ErrorCode::kMismatch, ::testing::HasSubstr("diverged")));
    EXPECT_THAT(catch_error([&] { group.reduce_scatter({piece}, {piece}); }),
                testing::FailsWith(ErrorCode::kInvalidArgument,
                                   ::testing::HasSubstr("as many inputs for each of 2 ranks")));
  });
}

// The contract check: each pair diverges in one respect, and both sides name both sites.
struct Divergence {
  const char* name;
  std::function<ProcessGroup::WorkPtr(ProcessGroup&)> first, second;
};
void PrintTo(const Divergence& value, std::ostream* out) { *out << value.name; }

class Divergences : public ::testing::TestWithParam<std::tuple<BackendMember, Divergence>> {};

Tensor zeros(int64_t count, DType dtype = DType::kF32) {
  return values({count}, dtype, [](int64_t) { return 0; });
}

INSTANTIATE_TEST_SUITE_P(
    Backends, Divergences,
    ::testing::Combine(
        ::testing::ValuesIn(testing::backend_members()),
        ::testing::Values(
            Divergence{
                "kind", [](ProcessGroup& g) { return g.all_reduce(zeros(4)); },
                [](ProcessGroup& g) { return g.all_gather_into_tensor(zeros(8), zeros(4)); }},
            Divergence{"size", [](ProcessGroup& g) { return g.all_reduce(zeros(14)); },
                       [](ProcessGroup& g) { return g.all_reduce(zeros(15)); }},
            Divergence{"dtype", [](ProcessGroup& g) { return g.all_reduce(zeros(4)); },
                       [](ProcessGroup& g) { return g.all_reduce(zeros(4, DType::kF64)); }},
            Divergence{"reduce_op", [](ProcessGroup& g) { return g.all_reduce(zeros(4)); },
                       [](ProcessGroup& g) { return g.all_reduce(zeros(4), ReduceOp::kMax); }},
            Divergence{"root", [](ProcessGroup& g) { return g.broadcast(zeros(4), 0); },
                       [](ProcessGroup& g) { return g.broadcast(zeros(4), 1); }},
            Divergence{"large", [](ProcessGroup& g) { return g.all_reduce(zeros(1 << 20)); },
                       [](ProcessGroup& g) {
                         return g.reduce_scatter_tensor(zeros(1 << 19), zeros(1 << 20));
                       }},
            Divergence{"reduce_root", [](ProcessGroup& g) { return g.reduce(zeros(4), 0); },
                       [](ProcessGroup& g) { return g.reduce(zeros(4), 1); }},
            Divergence{"splits",
                       [](ProcessGroup& g) {
                         return g.all_to_all_single(zeros(5), zeros(4), {2, 3}, {2, 2});
                       },
                       [](ProcessGroup& g) {
                         return g.all_to_all_single(zeros(5), zeros(4), {3, 2}, {2, 2});
                       }},
            Divergence{"split_dtype",
                       [](ProcessGroup& g) { return g.all_to_all_single(zeros(4), zeros(4)); },
                       [](ProcessGroup& g) {
                         return g.all_to_all_single(zeros(2, DType::kF64), zeros(2, DType::kF64));
                       }})),
    [](const auto& p) {
      return fmt::format("{}_{}", std::get<0>(p.param).name, std::get<1>(p.param).name);
    });

TEST_P(Divergences, BothSidesNameBothCallSites) {
  SKIP_IF_UNABLE(std::get<0>(GetParam()), 2);
  const Divergence& param = std::get<1>(GetParam());
  const auto body = [&](RankContext& ctx) {
    ASSERT_OK(ctx.group().barrier()->wait(ctx.deadline()));
    const auto work = ctx.group_rank() == 0 ? param.first(ctx.group()) : param.second(ctx.group());
    const Result<void> outcome = work->wait(ctx.deadline());
    EXPECT_THAT(outcome,
                testing::FailsWith(ErrorCode::kMismatch, ::testing::HasSubstr("ranks diverged")));
    EXPECT_THAT(
        outcome,
        testing::FailsWith(
            ErrorCode::kMismatch,
            ::testing::ContainsRegex("group rank 0 .*tests/dist/group/backend_suite.cpp:[0-9]+")));
    EXPECT_THAT(
        outcome,
        testing::FailsWith(
            ErrorCode::kMismatch,
            ::testing::ContainsRegex("group rank 1 .*tests/dist/group/backend_suite.cpp:[0-9]+")));
    // The group is done for: the next operation says so at once instead of hanging.
    EXPECT_THAT(ctx.group().barrier()->wait(ctx.deadline()),
                testing::FailsWith(ErrorCode::kMismatch, ::testing::HasSubstr("diverged")));
  };
  testing::run_ranks(2, body, 60s, std::get<0>(GetParam()).name);
}

TEST_P(Contract, RecvOfAnotherSizeIsRefused) {
  run_ranks(2, [](RankContext& ctx) {
    if (ctx.group_rank() == 0) {
      ASSERT_OK(ctx.group().send(zeros(4), 1)->wait(ctx.deadline()));
    } else {
      EXPECT_THAT(ctx.group().recv(zeros(5), 0)->wait(ctx.deadline()),
                  testing::FailsWith(ErrorCode::kMismatch, ::testing::HasSubstr("f32[4]")));
    }
  });
}

TEST_P(Deadlines, NamesTheLateRankAndLeavesTheWorkPending) {
  run_ranks(2, [](RankContext& ctx) {
    const Tensor x = values({8}, DType::kF32, [](int64_t) { return 1; });
    static_cast<void>(ctx.group());
    if (ctx.group_rank() == 0) {
      const auto work = ctx.group().all_reduce(x);
      EXPECT_THAT(
          work->wait(muster::Deadline::after(20ms)),
          testing::FailsWith(ErrorCode::kTimeout,
                             ::testing::HasSubstr("group rank 1 (global 1) has not arrived")));
      ctx.store().set("late", "").value();
      ASSERT_OK(work->wait(ctx.deadline()));
    } else {
      ctx.store().get("late", ctx.deadline()).value();
      ASSERT_OK(ctx.group().all_reduce(x)->wait(ctx.deadline()));
    }
    expect_values(x, [](int64_t) { return 2; });
  });
}

TEST_P(Abort, EndsAWaitingOperationAtOnce) {
  run_ranks(2, [](RankContext& ctx) {
    if (ctx.group_rank() == 1) {
      static_cast<void>(ctx.group());
      ctx.store().get("entered", ctx.deadline()).value();
      return;
    }
    const auto work = ctx.group().all_reduce(zeros(4), ReduceOp::kSum, true);
    ctx.group().abort("the test asks for it");
    EXPECT_THAT(work->wait(ctx.deadline()),
                testing::FailsWith(ErrorCode::kAborted, ::testing::HasSubstr("the test asks")));
    EXPECT_THAT(ctx.group().barrier()->wait(ctx.deadline()),
                testing::FailsWith(ErrorCode::kAborted, ::testing::HasSubstr("the test asks")));
    ctx.store().set("entered", "").value();
  });
}

RANK_BODY(survivor) {
  const Tensor x = zeros(1 << 20);
  static_cast<void>(ctx.group());
  ctx.hold_at("before all_reduce", ctx.group_rank() == 0);
  ctx.report(ctx.group().all_reduce(x)->wait(ctx.deadline()));
}

TEST_P(PeerDeath, SurvivorsNameTheDeadPeerWithinTheirDeadline) {
  SKIP_IF_UNABLE(GetParam(), 3);
  if (!GetParam().abilities.survives_peer_death) GTEST_SKIP() << "the backend does not notice";
  const auto spawned = spawn_ranks(3, "survivor");
  testing::World& world = *spawned;
  for (int rank = 0; rank < 3; ++rank) world.await_hold(rank, "before all_reduce");
  world.kill(0, SIGKILL);
  for (const int rank : {1, 2}) {
    EXPECT_THAT(world.outcome(rank),
                testing::FailsWith(ErrorCode::kPeerLost, ::testing::HasSubstr("group rank 0")));
  }
}

RANK_BODY(sums_in_processes) {
  for (int round = 0; round < 50; ++round) {
    const Tensor x = values({4096}, DType::kF32,
                            [&](int64_t i) { return ctx.group_rank() + double(i % 3) + round; });
    ctx.group().run(ctx.group().all_reduce(x));
    expect_values(x, [&](int64_t i) { return 3 + 3 * (double(i % 3) + round); });
  }
  ctx.report(Result<void>());
}

TEST_P(Processes, AllReduceWorksBetweenThem) {
  if (!GetParam().in_processes) GTEST_SKIP() << "its ranks are threads";
  SKIP_IF_UNABLE(GetParam(), 3);
  const auto spawned = spawn_ranks(3, "sums_in_processes");
  testing::World& world = *spawned;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_OK(world.outcome(rank));
    EXPECT_EQ(world.exit_status(rank), 0);
  }
}
}  // namespace
}  // namespace muster
