#include "dist/group/waits.h"

#include <gmock/gmock.h>

#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RankContext;
using testing::run_ranks;

std::string text_with(const std::string& part) {
  for (const LongWait& wait : long_waits(Duration::zero())) {
    if (wait.text.find(part) != std::string::npos) return wait.text;
  }
  return "";
}

TEST(Waits, SayWhoIsWaitedForAsLongAsTheyLastAndShortlyAfter) {
  run_ranks(2, [](RankContext& ctx) {
    const Tensor tensor = empty_from_spec(TensorSpec::contiguous({4}, DType::kF32));
    tensor.data<float>()[0] = 1;
    ProcessGroup& group = ctx.group();  // opened by both
    if (ctx.group_rank() == 1) {
      std::string text;
      while (text.empty() && !ctx.deadline().passed()) text = text_with(" has waited ");
      EXPECT_THAT(text, AllOf(HasSubstr("all_reduce #1 f32[4] sum in group world at "),
                              HasSubstr(" s for group rank 1 (global 1)")));
      for (const LongWait& wait : long_waits(1h)) EXPECT_THAT(wait.text, HasSubstr("had waited"));
    }
    group.run(group.all_reduce(tensor));
    group.run(group.barrier());
  });
  EXPECT_EQ(text_with(" has waited "), "");
  EXPECT_THAT(text_with(" had waited "),
              AllOf(HasSubstr(" s for group rank 1 (global 1), until "), HasSubstr(" s ago")));
}

}  // namespace
}  // namespace muster
