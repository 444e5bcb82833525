#include "pipeline/runtime/mailbox.h"

#include "core/ops/ops.h"
#include "dist/backends/backends.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "tests/pipeline/runtime/model.h"

namespace muster::pipeline {
namespace {
using testing::RankContext;
using testing::run_ranks;

constexpr Action kFirstActivation{ActionKind::kRecvF, 1, 0};
constexpr Action kSecondActivation{ActionKind::kRecvF, 1, 1};
constexpr Action kFirstGradient{ActionKind::kRecvB, 0, 0};

Tensor value_of(double value) { return from_vector(std::vector<double>{value}); }

// A group whose rank 0 waits less long than rank 1 does.
std::shared_ptr<ProcessGroup> impatient_group(RankContext& ctx) {
  ProcessGroup::Options options;
  options.group_rank = ctx.group_rank();
  options.global_ranks = {0, 1};
  options.timeout = ctx.group_rank() == 0 ? 20s : 50s;
  std::unique_ptr<Backend> backend = open_backend("shm",
                                                  {.store = ctx.shared_store(),
                                                   .global_rank = ctx.group_rank(),
                                                   .world_size = 2,
                                                   .master_addr = ""},
                                                  ctx.deadline())
                                         .value();
  return std::make_shared<ProcessGroup>(std::move(options), std::move(backend));
}

// Interleaved schedules post receives long before their senders reach them; a rank that waited for
// all it had posted lost a fifth of the step.
TEST(Mailbox, AMessageIsTakenWhileLaterOnesArePostedAndNotSent) {
  run_ranks(2, [](RankContext& ctx) {
    const Schedule schedule = lower(make_schedule("1f1b", {2, 2, 2}).value()).value();
    const std::shared_ptr<ProcessGroup> group = impatient_group(ctx);
    Mailbox mailbox(group, schedule,
                    [](const Action&) { return TensorSpec::contiguous({1}, DType::kF64); });
    mailbox.begin(1, false);
    if (ctx.group_rank() == 0) {
      mailbox.post(kFirstGradient);
      mailbox.send(other_end(kFirstActivation), value_of(1));
      EXPECT_EQ(mailbox.take(kFirstGradient).item(), 2);
      mailbox.send(other_end(kSecondActivation), value_of(3));
    } else {
      mailbox.post(kFirstActivation);
      mailbox.post(kSecondActivation);
      const double first = mailbox.take(kFirstActivation).item();
      mailbox.send(other_end(kFirstGradient), value_of(first + 1));
      EXPECT_EQ(mailbox.take(kSecondActivation).item(), 3);
    }
    EXPECT_TRUE(mailbox.is_empty());
    group->run(group->barrier());
  });
}
}  // namespace
}  // namespace muster::pipeline
