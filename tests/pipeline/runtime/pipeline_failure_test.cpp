// What goes wrong in a pipeline is named on every rank: stage, microbatch, and the schedule drawn.
#include <csignal>

#include "tests/pipeline/runtime/model.h"

namespace muster::pipeline {
namespace {
using ::testing::AllOf;
using testing::FailsWith;
using ::testing::HasSubstr;
using testing::RankContext;
using testing::run_ranks;
using testing::thrown_by;
using testing::World;

constexpr int64_t kWidth = 4;

// A two-stage pipeline of one rank's part, with a batch of four microbatches.
struct Part {
  explicit Part(RankContext& ctx, Schedule schedule_in = make_1f1b({2, 4}))
      : schedule(std::move(schedule_in)),
        own(schedule, ctx.group_rank(), schedule.num_stages, kWidth, DType::kF64),
        pipeline(Pipeline::open(
                     {.schedule = schedule, .group = borrowed(ctx.group()), .stages = own.stages()})
                     .value()),
        targets(cut(wave(8, kWidth, DType::kF64, 1.3), 4)) {
    inputs.inputs = cut(wave(8, kWidth, DType::kF64, 0.7), 4);
    inputs.loss = [this](const Tensor& output, int m) {
      return squared_error(output, targets[static_cast<size_t>(m)]);
    };
  }
  Schedule schedule;
  RankStages own;
  std::unique_ptr<Pipeline> pipeline;
  std::vector<Tensor> targets;
  StepInputs inputs;
};

TEST(PipelineFailure, AShapeThatChangesIsNamedOnAllRanks) {
  run_ranks(2, [](RankContext& ctx) {
    Part part(ctx);
    part.pipeline->train_step(part.inputs);
    part.inputs.inputs[1] = wave(1, kWidth, DType::kF64, 0.7);
    const Result<void> outcome = thrown_by([&] { part.pipeline->train_step(part.inputs); });
    if (ctx.group_rank() == 0) {
      EXPECT_THAT(outcome,
                  FailsWith(ErrorCode::kInvalidArgument,
                            AllOf(HasSubstr("output of stage 0 for microbatch 1 must be f64[2, 4]"),
                                  HasSubstr("got f64[1, 4]"), HasSubstr("stage 0 | F0   [F1]"))));
    } else {
      EXPECT_THAT(outcome, FailsWith(ErrorCode::kAborted,
                                     AllOf(HasSubstr("0F1 failed"), HasSubstr("got f64[1, 4]"),
                                           HasSubstr("microbatch 1, stage 0 to stage 1"))));
    }
  });
}

TEST(PipelineFailure, AThrowingStageEndsTheStepOfItsPeers) {
  run_ranks(2, [](RankContext& ctx) {
    Part part(ctx);
    part.inputs.loss = [](const Tensor&, int m) -> LossSum {
      throw_error(ErrorCode::kOutOfRange, "loss: no target for microbatch {}", m);
    };
    const Result<void> outcome = thrown_by([&] { part.pipeline->train_step(part.inputs); });
    if (ctx.group_rank() == 1) {
      EXPECT_THAT(outcome, FailsWith(ErrorCode::kOutOfRange,
                                     AllOf(HasSubstr("forward of stage 1, microbatch 0"),
                                           HasSubstr("[F0]"))));
    } else {
      EXPECT_THAT(outcome,
                  FailsWith(ErrorCode::kAborted, HasSubstr("loss: no target for microbatch 0")));
    }
  });
}

TEST(PipelineFailure, MissingInputsAreRefused) {
  run_ranks(2, [](RankContext& ctx) {
    Part part(ctx);
    part.inputs.inputs.pop_back();
    const Result<void> outcome = thrown_by([&] { part.pipeline->train_step(part.inputs); });
    if (ctx.group_rank() == 0) {
      EXPECT_THAT(outcome, FailsWith(ErrorCode::kInvalidArgument,
                                     HasSubstr("one input for each of 4 microbatches; got 3")));
    }
    EXPECT_FALSE(outcome.ok());
  });
}

TEST(PipelineFailure, DifferentSchedulesAreAMismatchOnAllRanks) {
  run_ranks(2, [](RankContext& ctx) {
    const Schedule schedule = ctx.group_rank() == 0 ? make_1f1b({2, 4}) : make_gpipe({2, 4});
    RankStages own(schedule, ctx.group_rank(), 2, kWidth, DType::kF64);
    EXPECT_THAT(Pipeline::open(
                    {.schedule = schedule, .group = borrowed(ctx.group()), .stages = own.stages()}),
                FailsWith(ErrorCode::kMismatch, HasSubstr("one schedule")));
  });
}

TEST(PipelineFailure, StagesOfAnotherRankAndBadSchedulesAreRefused) {
  run_ranks(1, [](RankContext& ctx) {
    Layers module(kWidth, 0, 1);
    const auto open = [&](Schedule schedule, std::vector<Stage> stages) {
      return Pipeline::open({.schedule = std::move(schedule),
                             .group = borrowed(ctx.group()),
                             .stages = std::move(stages)});
    };
    EXPECT_THAT(
        open(make_1f1b({1, 2}), {{.index = 1, .module = &module}}),
        FailsWith(ErrorCode::kInvalidArgument, HasSubstr("runs stages [0]; got modules for [1]")));
    EXPECT_THAT(open(make_1f1b({1, 2}), {{.index = 0}}),
                FailsWith(ErrorCode::kInvalidArgument, HasSubstr("no module")));
    EXPECT_THAT(open(make_1f1b({2, 2}), {}),
                FailsWith(ErrorCode::kInvalidArgument, HasSubstr("2 rows for 1 ranks")));
    EXPECT_THAT(
        open(parse_csv("0F0,0B0,0B0", "x", 1, 1).value(), {{.index = 0, .module = &module}}),
        FailsWith(ErrorCode::kInvalidArgument, HasSubstr("position 2")));
  });
}

RANK_BODY(pipeline_dies_in_microbatch_2) {
  Part part(ctx);
  if (ctx.group_rank() == 0) {
    part.pipeline->train_step(part.inputs);
    part.inputs.inputs[2] = part.inputs.inputs[2];
  } else {
    part.pipeline->train_step(part.inputs);
    const auto loss = part.inputs.loss;
    part.inputs.loss = [&ctx, loss](const Tensor& output, int m) {
      if (m == 2) ctx.hold_at("microbatch 2");
      return loss(output, m);
    };
  }
  ctx.report(thrown_by([&] { part.pipeline->train_step(part.inputs); }));
}

TEST(PipelineFailure, AKilledPeerIsNamedWithStageAndMicrobatch) {
  World world(2, "pipeline_dies_in_microbatch_2");
  world.await_hold(1, "microbatch 2");
  world.kill(1, SIGKILL);
  EXPECT_THAT(
      world.outcome(0),
      FailsWith(ErrorCode::kPeerLost,
                AllOf(HasSubstr("gradients of microbatch 2, stage 1 to stage 0, from group rank 1"),
                      HasSubstr("[B2]"))));
}

TEST(PipelineFailure, ALatePeerIsATimeoutThatNamesStageAndMicrobatch) {
  run_ranks(2, [](RankContext& ctx) {
    ProcessGroup::Options options;
    options.name = "late";
    options.group_rank = ctx.group_rank();
    options.global_ranks = {0, 1};
    options.timeout = 2s;
    auto group = std::make_shared<ProcessGroup>(
        options,
        ctx.group()
            .backend()
            .subgroup({"late", "late", options.global_ranks, options.group_rank}, ctx.deadline())
            .value());
    const Schedule schedule = make_1f1b({2, 4});
    RankStages own(schedule, ctx.group_rank(), 2, kWidth, DType::kF64);
    auto pipeline =
        Pipeline::open({.schedule = schedule, .group = group, .stages = own.stages()}).value();
    if (ctx.group_rank() == 1) {
      const std::vector<Tensor> targets = cut(wave(8, kWidth, DType::kF64, 1.3), 4);
      StepInputs inputs;
      inputs.loss = [&](const Tensor& output, int m) {
        return squared_error(output, targets[static_cast<size_t>(m)]);
      };
      EXPECT_THAT(
          thrown_by([&] { pipeline->train_step(inputs); }),
          FailsWith(
              ErrorCode::kTimeout,
              AllOf(HasSubstr("activations of microbatch 0, stage 0 to stage 1, from group rank 0"),
                    HasSubstr("2 s"), HasSubstr("stage 1 | .    [F0]"))));
    }
    ctx.group().run(ctx.group().barrier());
  });
}
}  // namespace
}  // namespace muster::pipeline
