// Bytes between ranks, and what happens when a rank has none to give.
#include "dist/group/bytes.h"

#include <fmt/format.h>

#include "tests/dist/group/reported_cases.h"

namespace muster {
namespace {
using testing::expect_all;
using testing::FailsWith;
using testing::filled;
using ::testing::HasSubstr;
using testing::RankContext;

SUITE_ON_EVERY_BACKEND(Bytes);

TEST_P(Bytes, EachRankGetsWhatEachGave) {
  run_ranks(3, [](RankContext& ctx) {
    const std::vector<std::string> all = {std::string("a\0b", 3), "", std::string(100000, 'c')};
    const auto gathered =
        all_gather_bytes(ctx.group(), all[static_cast<size_t>(ctx.group_rank())], ctx.deadline());
    ASSERT_OK(gathered);
    EXPECT_EQ(gathered.value(), all);
    for (int source = 0; source < 3; ++source) {
      const std::string own = ctx.group_rank() == source ? all[static_cast<size_t>(source)] : "x";
      const auto sent = broadcast_bytes(ctx.group(), own, source, ctx.deadline());
      ASSERT_OK(sent);
      EXPECT_EQ(sent.value(), all[static_cast<size_t>(source)]);
    }
  });
}

// Reported as TensorRT-LLM#7507: one rank returned early, and the others met another operation.
TEST_P(Bytes, ARankThatHasAnErrorInsteadGivesItToAllAndTheGroupGoesOn) {
  run_ranks(3, [](RankContext& ctx) {
    ProcessGroup& group = ctx.group();
    const auto own = [&](int failing) -> Result<std::string> {
      if (ctx.group_rank() == failing)
        return make_error(ErrorCode::kCorruption, "sampler: no state for epoch {}", failing);
      return std::string("fine");
    };
    const auto is_told = [](int failing) {
      return FailsWith(
          ErrorCode::kCorruption,
          HasSubstr(fmt::format("in group world: group rank {0} (global {0}): sampler: no state "
                                "for epoch {0}",
                                failing)));
    };
    for (const int failing : {1, 2, 0}) {
      EXPECT_THAT(all_gather_bytes(group, own(failing), ctx.deadline()), is_told(failing));
      EXPECT_THAT(broadcast_bytes(group, own(failing), failing, ctx.deadline()), is_told(failing));
      // Only the source's counts.
      EXPECT_OK(broadcast_bytes(group, own(failing), (failing + 1) % 3, ctx.deadline()));
      const Tensor x = filled(5, 1);
      ASSERT_OK(group.all_reduce(x)->wait(ctx.deadline()));
      expect_all(x, 3);
    }
  });
}

TEST_P(Bytes, AnotherOperationMeanwhileIsNamedWithBothSites) {
  run_ranks(2, [](RankContext& ctx) {
    if (ctx.group_rank() == 0) {
      EXPECT_THAT(all_gather_bytes(ctx.group(), std::string("a"), ctx.deadline()),
                  FailsWith(ErrorCode::kMismatch,
                            ::testing::ContainsRegex("all_gather #1 .*bytes_test.cpp:[0-9]+")));
    } else {
      EXPECT_THAT(ctx.group().barrier()->wait(ctx.deadline()),
                  FailsWith(ErrorCode::kMismatch, HasSubstr("all_gather #1")));
    }
  });
}
}  // namespace
}  // namespace muster
