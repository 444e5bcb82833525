// The same pipeline over every backend that connects processes.
#include "dist/backends/backends.h"

#include <cstring>
#include <mutex>

#include "tests/pipeline/runtime/model.h"

namespace muster::pipeline {
namespace {
using testing::RankContext;
using testing::run_ranks;

constexpr int64_t kWidth = 4;
using Bytes = std::vector<double>;

// The world's group over a backend; null where the build lacks it.
std::shared_ptr<ProcessGroup> open_group(RankContext& ctx, const std::string& backend) {
  Result<std::unique_ptr<Backend>> opened = open_backend(backend,
                                                         {.store = ctx.shared_store(),
                                                          .global_rank = ctx.group_rank(),
                                                          .world_size = ctx.world_size(),
                                                          .master_addr = ""},
                                                         ctx.deadline());
  if (!opened.ok() && opened.error().code() == ErrorCode::kUnimplemented) return nullptr;
  ProcessGroup::Options options;
  options.group_rank = ctx.group_rank();
  for (int rank = 0; rank < ctx.world_size(); ++rank) options.global_ranks.push_back(rank);
  options.timeout = ctx.deadline().left();
  return std::make_shared<ProcessGroup>(options, std::move(opened).value());
}

// The gradients of two steps, by parameter; empty where the build lacks the backend.
std::map<std::string, Bytes> gradients(const std::string& backend, const Schedule& schedule) {
  std::mutex mutex;
  std::map<std::string, Bytes> out;
  run_ranks(schedule.num_ranks(), [&](RankContext& ctx) {
    const std::shared_ptr<ProcessGroup> group = open_group(ctx, backend);
    if (group == nullptr) return;
    RankStages own(schedule, ctx.group_rank(), schedule.num_stages, kWidth, DType::kF64);
    auto pipeline =
        Pipeline::open({.schedule = schedule, .group = group, .stages = own.stages()}).value();
    const int m = schedule.num_microbatches;
    const std::vector<Tensor> targets = cut(wave(2 * m, kWidth, DType::kF64, 1.3), m);
    StepInputs inputs{.inputs = cut(wave(2 * m, kWidth, DType::kF64, 0.7), m)};
    inputs.loss = [&](const Tensor& output, int at) {
      return squared_error(output, targets[static_cast<size_t>(at)]);
    };
    for (int step = 0; step < 2; ++step) pipeline->train_step(inputs);
    for (const NamedTensor& named : own.parameters()) {
      const std::lock_guard lock(mutex);
      out[named.name] = to_vector<double>(grad_of(named.tensor));
    }
    group->run(group->barrier());  // nobody leaves before all have what they were sent
  });
  return out;
}

TEST(PipelineBackends, GradientsAreTheSameToTheLastBit) {
  for (const char* name : {"1f1b", "interleaved", "bfs", "zbv"}) {
    SCOPED_TRACE(name);
    const int per_rank = std::string(name) == "1f1b" ? 1 : 2;
    const Schedule schedule = make_schedule(name, {3 * per_rank, 6, 3}).value();
    const auto shm = gradients("shm", schedule), gloo = gradients("gloo", schedule);
    EXPECT_EQ(shm.size(), 2U * static_cast<size_t>(schedule.num_stages));
    if (!gloo.empty()) {
      EXPECT_EQ(shm, gloo);
    }
  }
}

TEST(PipelineBackends, ManyMessagesInBothDirectionsPass) {
  const Schedule schedule =
      make_looped_bfs({.num_stages = 4, .num_microbatches = 150, .num_ranks = 2});
  const auto shm = gradients("shm", schedule), gloo = gradients("gloo", schedule);
  EXPECT_EQ(shm.size(), 8U);
  if (!gloo.empty()) {
    EXPECT_EQ(shm, gloo);
  }
}

// Opens everything after all others have had `late` for it, and trains two steps.
void begin_late(RankContext& ctx, const std::string& backend, Duration late) {
  EXPECT_FALSE(ctx.store().get("never set", Deadline::after(late)).ok());
  const std::shared_ptr<ProcessGroup> group = open_group(ctx, backend);
  if (group == nullptr) return ctx.report({});
  const Schedule schedule = make_1f1b({4, 6});
  RankStages own(schedule, ctx.group_rank(), 4, kWidth, DType::kF64);
  auto opened = Pipeline::open({.schedule = schedule, .group = group, .stages = own.stages()});
  if (!opened.ok()) return ctx.report(opened.error());
  StepInputs inputs{.inputs = cut(wave(12, kWidth, DType::kF64, 0.7), 6)};
  inputs.loss = [](const Tensor& output, int) {
    return squared_error(output, zeros(output.sizes(), DType::kF64));
  };
  ctx.report(testing::thrown_by([&] {
    for (int step = 0; step < 2; ++step) (*opened)->train_step(inputs);
    group->run(group->barrier());
  }));
}
// The first stage is there at once, and the second, which waits for it, last.
Duration lateness(RankContext& ctx) { return std::chrono::seconds((4 - ctx.group_rank()) % 4); }
RANK_BODY(begins_late_over_shm) { begin_late(ctx, "shm", lateness(ctx)); }
RANK_BODY(begins_late_over_gloo) { begin_late(ctx, "gloo", lateness(ctx)); }

// torchtitan#1492: stages hung where hosts began at different times.
TEST(PipelineBackends, ProcessesThatBeginASecondApartTrain) {
  for (const char* body : {"begins_late_over_shm", "begins_late_over_gloo"}) {
    testing::World world(4, body);
    for (int rank = 0; rank < 4; ++rank) EXPECT_OK(world.outcome(rank)) << body;
  }
}
}  // namespace
}  // namespace muster::pipeline
