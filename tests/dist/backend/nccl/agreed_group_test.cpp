// What AgreedGroup does beyond the backend suite, on engines that stop where a test needs it.
#include "dist/group/agreed/agreed_group.h"

#include <algorithm>
#include <atomic>

#include "dist/store/hash_store.h"
#include "tests/dist/backend/nccl/host_device.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using testing::AgreedBackend;
using ::testing::AllOf;
using testing::FailsWith;
using ::testing::HasSubstr;
using testing::RankContext;

// Operations begin and never end, as those of a peer that has died on the wire.
class StuckEngine final : public LaneEngine {
 public:
  explicit StuckEngine(std::atomic<int>& num_aborted) : num_aborted_(num_aborted) {}
  Result<void> connect(Interrupt&) override { return {}; }
  Result<void> run(const CollectiveRequest&, const void*, Interrupt& interrupt) override {
    while (!interrupt.wait_for(10ms)) continue;
    return make_error(ErrorCode::kAborted, "stopped");
  }
  void abort() noexcept override { ++num_aborted_; }
  void close() noexcept override {}

 private:
  std::atomic<int>& num_aborted_;
};

// One that cannot be connected, or fails in the middle.
class BrokenEngine final : public LaneEngine {
 public:
  explicit BrokenEngine(bool connects) : connects_(connects) {}
  Result<void> connect(Interrupt& interrupt) override {
    if (connects_) return {};
    while (!interrupt.wait_for(10ms)) continue;
    return make_error(ErrorCode::kAborted, "stopped");
  }
  Result<void> run(const CollectiveRequest&, const void*, Interrupt&) override {
    return make_error(ErrorCode::kPeerLost, "the wire is cut");
  }
  void abort() noexcept override {}
  void close() noexcept override {}

 private:
  const bool connects_;
};

class EngineDevice final : public LaneDevice {
 public:
  using Make = std::function<std::unique_ptr<LaneEngine>()>;
  explicit EngineDevice(Make make) : make_(std::move(make)) {}
  std::unique_ptr<LaneEngine> make_engine(LaneMembers) override { return make_(); }
  std::shared_ptr<const void> mark() override { return nullptr; }
  Tensor copy(const Tensor& tensor) override { return tensor; }

 private:
  const Make make_;
};

AgreedGroup::Options options_of(RankContext& ctx) {
  AgreedGroup::Options options;
  options.store = ctx.shared_store();
  options.members = GroupMembers::world(ctx.group_rank(), ctx.world_size());
  options.linger = 100ms;
  return options;
}

std::unique_ptr<ProcessGroup> group_on(RankContext& ctx, std::shared_ptr<LaneDevice> device) {
  ProcessGroup::Options options;
  options.group_rank = ctx.group_rank();
  for (int rank = 0; rank < ctx.world_size(); ++rank) options.global_ranks.push_back(rank);
  return std::make_unique<ProcessGroup>(
      std::move(options),
      AgreedBackend::open(options_of(ctx), std::move(device), ctx.deadline()).value());
}

std::unique_ptr<ProcessGroup> host_group(RankContext& ctx) {
  return group_on(ctx, std::make_shared<testing::HostDevice>(testing::Board::of(&ctx.store())));
}

Tensor ones(int64_t count) {
  Tensor tensor = empty_from_spec(TensorSpec::contiguous({count}, DType::kF32));
  std::fill_n(tensor.data<float>(), count, 1.0F);
  return tensor;
}

TEST(AgreedGroup, AnAbortReachesPeersWhoseDataIsOnTheWay) {
  std::atomic<int> num_aborted{0};
  testing::run_ranks(2, [&](RankContext& ctx) {
    const auto group = group_on(ctx, std::make_shared<EngineDevice>([&] {
                                  return std::make_unique<StuckEngine>(num_aborted);
                                }));
    const auto work = group->all_reduce(ones(4), ReduceOp::kSum, true);
    if (ctx.group_rank() == 0) {
      // Both are inside their engines once the other says so.
      ctx.store().get("moving", ctx.deadline()).value();
      group->abort("the loss is not finite");
    } else {
      Result<void> outcome = work->wait(Deadline::after(20ms));
      while (std::string(outcome.error().what()).find("on the way") == std::string::npos)
        outcome = work->wait(Deadline::after(20ms));
      EXPECT_EQ(outcome.error().code(), ErrorCode::kTimeout);
      EXPECT_EQ(work->late_ranks(), std::vector<int>());
      ctx.store().set("moving", "").value();
    }
    EXPECT_THAT(work->wait(ctx.deadline()),
                FailsWith(ErrorCode::kAborted, AllOf(HasSubstr("the loss is not finite"),
                                                     HasSubstr("group rank 0 (global 0)"))));
  });
  EXPECT_EQ(num_aborted, 2);
}

TEST(AgreedGroup, AFailureInsideOneRanksEngineNamesThatRankOnAll) {
  testing::run_ranks(3, [&](RankContext& ctx) {
    std::atomic<int> num_aborted{0};
    const bool is_broken = ctx.group_rank() == 1;
    const auto group =
        group_on(ctx, std::make_shared<EngineDevice>([&]() -> std::unique_ptr<LaneEngine> {
                   if (is_broken) return std::make_unique<BrokenEngine>(true);
                   return std::make_unique<StuckEngine>(num_aborted);
                 }));
    const auto failure =
        FailsWith(ErrorCode::kPeerLost, HasSubstr("group rank 1 (global 1): the wire is cut"));
    EXPECT_THAT(group->all_reduce(ones(4))->wait(ctx.deadline()), failure);
    EXPECT_THAT(group->barrier()->wait(ctx.deadline()), failure);
  });
}

TEST(AgreedGroup, ConnectingEndsAtTheDeadline) {
  testing::run_ranks(2, [](RankContext& ctx) {
    const auto device =
        std::make_shared<EngineDevice>([] { return std::make_unique<BrokenEngine>(false); });
    EXPECT_THAT(AgreedBackend::open(options_of(ctx), device, Deadline::after(50ms)),
                FailsWith(ErrorCode::kTimeout, HasSubstr("of 2 ranks were connected")));
  });
}

TEST(AgreedGroup, MessagesDoNotWaitForCollectivesNorForOtherMessages) {
  testing::run_ranks(3, [](RankContext& ctx) {
    const auto group = host_group(ctx);
    const int rank = ctx.group_rank();
    // Rank 2 comes to the collective last, and to rank 1's message after rank 0's.
    const auto collective = rank == 2 ? nullptr : group->all_reduce(ones(8), ReduceOp::kSum, true);
    const Tensor in = ones(3);
    if (rank < 2) group->run(group->send(ones(3), 2));
    if (rank == 2) {
      ASSERT_OK(group->recv(in, 1)->wait(ctx.deadline()));
      ASSERT_OK(group->recv(in, 0)->wait(ctx.deadline()));
      ASSERT_OK(group->all_reduce(ones(8))->wait(ctx.deadline()));
    } else {
      ASSERT_OK(collective->wait(ctx.deadline()));
    }
  });
}

TEST(AgreedGroup, AMessageThatNobodyTakesEndsTheGroupAfterItsLinger) {
  testing::run_ranks(2, [](RankContext& ctx) {
    auto group = host_group(ctx);
    if (ctx.group_rank() == 0) {
      ASSERT_OK(group->send(ones(3), 1)->wait(ctx.deadline()));
      group.reset();
      ctx.store().set("closed", "").value();
      return;
    }
    ctx.store().get("closed", ctx.deadline()).value();
    EXPECT_THAT(group->recv(ones(3), 0)->wait(ctx.deadline()),
                FailsWith(ErrorCode::kAborted, HasSubstr("closed with this operation pending")));
  });
}

TEST(AgreedGroup, APeerThatHasLeftIsNamed) {
  testing::run_ranks(2, [](RankContext& ctx) {
    auto group = host_group(ctx);
    ASSERT_OK(group->barrier()->wait(ctx.deadline()));
    if (ctx.group_rank() == 0) return group.reset();
    EXPECT_THAT(
        group->barrier()->wait(ctx.deadline()),
        FailsWith(ErrorCode::kPeerLost, HasSubstr("group rank 0 (global 0) has left the group")));
  });
}

// What agreements keep there; barriers of the tests have keys of their own.
int64_t num_agreed_keys(Store& store) {
  const std::vector<std::string> keys = store.list_keys().value();
  return std::count_if(keys.begin(), keys.end(),
                       [](const std::string& key) { return key.starts_with("agreed/"); });
}

TEST(AgreedGroup, LeavesNothingInTheStore) {
  testing::run_ranks(3, [](RankContext& ctx) {
    auto group = host_group(ctx);
    for (int round = 0; round < 50; ++round)
      ASSERT_OK(group->all_reduce(ones(8))->wait(ctx.deadline()));
    if (ctx.group_rank() == 0) group->run(group->send(ones(3), 1));
    if (ctx.group_rank() == 1) group->run(group->recv(ones(3), 0));
    // Collectives and one message: two keys a member at most.
    EXPECT_LE(num_agreed_keys(ctx.store()), 2 * 3 + 2 * 2);
    barrier(ctx.store(), "counted", 3, ctx.deadline()).value();
    group.reset();
    barrier(ctx.store(), "closed", 3, ctx.deadline()).value();
    EXPECT_EQ(num_agreed_keys(ctx.store()), 0);
  });
}
}  // namespace
}  // namespace muster
