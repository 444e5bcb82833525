// What workers that are ended say of whom they have waited for.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "core/base/file_system.h"
#include "tests/train/job.h"

namespace muster {
namespace {
using ::testing::HasSubstr;
using ::testing::Not;

class LastWords : public EndToEnd, public ::testing::WithParamInterface<const char*> {
 protected:
  // The launcher is ended once a rank was told slow, or as soon as there is a step.
  Ended end_by_sigterm(const std::string& environment, const std::string& awaited) {
    const std::string file = dir("run/" + awaited);
    return shell(fmt::format(
        "{} {} run --nproc-per-node 3 {} dist.backend={} dist.slow_after=\"3 s\" "
        "train.steps=1000000 & launcher=$!; until test -s {} && grep -q {} {}; do :; done; "
        "kill -TERM $launcher; wait $launcher",
        environment, binary("muster"), recipe(), GetParam(), file,
        environment.empty() ? "loss" : "slow", file));
  }
  std::string words_of(int rank) {
    const std::string path = dir(fmt::format("run/logs/attempt_0/{}/error.json", rank));
    return read_text(real_file_system(), path).value_or("");
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, LastWords, ::testing::Values("shm", "gloo"),
                         [](const auto& p) { return std::string(p.param); });

TEST_P(LastWords, NameTheRankThatHasNotCome) {
  const Ended ended = end_by_sigterm(
      "MUSTER_FAULTS=\"point=train.step_begin;rank=1;attempt=0;do=stop;step=3\"", "events.jsonl");
  EXPECT_EQ(ended.status, 143) << ended.output;
  for (const int rank : {0, 2}) {
    // Who is woken late says that the rank has ended.
    EXPECT_THAT(words_of(rank), HasSubstr("group rank 1 (global 1)"));
  }
}

TEST_P(LastWords, AreNotNeededWhereNobodyWasLate) {
  const Ended ended = end_by_sigterm("", "metrics.jsonl");
  EXPECT_EQ(ended.status, 143) << ended.output;
  // One may still see that another has ended before it.
  for (const int rank : {0, 1, 2}) EXPECT_THAT(words_of(rank), Not(HasSubstr("by SIGTERM")));
}

}  // namespace
}  // namespace muster
