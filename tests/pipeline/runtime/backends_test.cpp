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

// The gradients of two steps, by parameter; empty where the build lacks the backend.
std::map<std::string, Bytes> gradients(const std::string& backend, const Schedule& schedule) {
  std::mutex mutex;
  std::map<std::string, Bytes> out;
  run_ranks(schedule.num_ranks(), [&](RankContext& ctx) {
    Result<std::unique_ptr<Backend>> opened = open_backend(backend,
                                                           {.store = ctx.shared_store(),
                                                            .global_rank = ctx.group_rank(),
                                                            .world_size = ctx.world_size(),
                                                            .master_addr = ""},
                                                           ctx.deadline());
    if (!opened.ok() && opened.error().code() == ErrorCode::kUnimplemented) return;
    ProcessGroup::Options options;
    options.group_rank = ctx.group_rank();
    for (int rank = 0; rank < ctx.world_size(); ++rank) options.global_ranks.push_back(rank);
    options.timeout = ctx.deadline().left();
    const auto group = std::make_shared<ProcessGroup>(options, std::move(opened).value());
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
}  // namespace
}  // namespace muster::pipeline
