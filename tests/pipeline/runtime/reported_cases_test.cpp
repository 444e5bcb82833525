// Faults of pipelines that users of other systems reported, each as a small case.
#include <cmath>
#include <latch>
#include <utility>

#include "core/nn/optim/grad_scaler.h"
#include "tests/pipeline/runtime/model.h"

namespace muster::pipeline {
namespace {
using ::testing::AllOf;
using testing::FailsWith;
using ::testing::HasSubstr;
using testing::RankContext;
using testing::run_ranks;
using testing::thrown_by;

constexpr int64_t kWidth = 4;

std::unique_ptr<Pipeline> open(RankContext& ctx, const Schedule& schedule, RankStages& own) {
  return Pipeline::open(
             {.schedule = schedule, .group = borrowed(ctx.group()), .stages = own.stages()})
      .value();
}

// Sixteen rows of which seven count, and not equally many in each microbatch.
bool counts(int64_t row) { return row < 4 || row == 9 || row == 10 || row == 15; }
LossSum masked_error(const Tensor& output, const Tensor& target, int64_t first_row) {
  std::vector<double> weights;
  double count = 0;
  for (int64_t row = 0; row < output.size(0); ++row) {
    weights.push_back(counts(first_row + row) ? 1 : 0);
    count += weights.back();
  }
  const Tensor mask = from_vector(weights, {output.size(0), 1});
  const Tensor difference = sub(output, target);
  return {sum(mul(mul(difference, difference), mask)), full({}, count, DType::kF64)};
}

// torchtitan#2972: gradients were larger by the number of tokens, as nobody divided.
TEST(ReportedPipelineCases, MaskedRowsCountOnceHoweverTheBatchIsCut) {
  const Tensor batch = wave(16, kWidth, DType::kF64, 0.7);
  const Tensor target = wave(16, kWidth, DType::kF64, 1.3);
  Layers whole(kWidth, 0, 2);
  whole.to(DType::kF64);
  whole.reset_parameters(3);
  const LossSum loss = masked_error(whole(batch), target, 0);
  ASSERT_EQ(loss.count.item(), 7.0);
  backward(div(loss.sum, 7));
  std::map<std::string, Tensor> expected;
  for (const NamedTensor& named : whole.named_parameters())
    expected[named.name] = grad_of(named.tensor);
  for (const int microbatches : {1, 2, 4, 8, 3}) {
    SCOPED_TRACE(microbatches);
    const Schedule schedule = make_1f1b({2, microbatches});
    run_ranks(2, [&](RankContext& ctx) {
      RankStages own(schedule, ctx.group_rank(), 2, kWidth, DType::kF64);
      const auto pipeline = open(ctx, schedule, own);
      const std::vector<Tensor> targets = cut(target, microbatches);
      StepInputs inputs{.inputs = cut(batch, microbatches), .grad_scale = 1.0 / 7};
      inputs.loss = [&](const Tensor& output, int m) {
        int64_t first = 0;
        for (int before = 0; before < m; ++before)
          first += targets[static_cast<size_t>(before)].size(0);
        return masked_error(output, targets[static_cast<size_t>(m)], first);
      };
      const StepResult result = pipeline->train_step(inputs);
      if (pipeline->has_last_stage()) {
        double count = 0, sum = 0;
        for (const double one : result.loss_counts) count += one;
        for (const double one : result.loss_sums) sum += one;
        EXPECT_EQ(count, 7.0);
        EXPECT_NEAR(sum, detach(loss.sum).item(), 1e-12);
      }
      for (const NamedTensor& named : own.parameters()) {
        const Tensor difference = sub(grad_of(named.tensor), expected.at(named.name));
        EXPECT_LT(amax(abs(difference)).item(), 1e-12) << named.name;
      }
    });
  }
}

// input + weight, or input * weight: the gradient of the sum's weight does not see a large input.
class OneWeight final : public Module {
 public:
  explicit OneWeight(bool adds) : Module("OneWeight"), adds_(adds) {
    register_parameter("weight", weight_, empty({1}), InitSpec::ones());
    reset_parameters(1);
  }

 protected:
  Tensor compute(const Tensor& input) override {
    return adds_ ? add(input, weight_) : mul(input, weight_);
  }

 private:
  Tensor weight_;
  bool adds_;
};

// torchtitan#803: an overflow that one stage sees must end the step of all.
TEST(ReportedPipelineCases, AnOverflowInOneStageSkipsTheStepOnAll) {
  const Schedule schedule = make_1f1b({2, 2});
  run_ranks(2, [&](RankContext& ctx) {
    OneWeight module(/*adds=*/ctx.group_rank() == 0);
    const auto pipeline =
        Pipeline::open({.schedule = schedule,
                        .group = borrowed(ctx.group()),
                        .stages = {{.index = ctx.group_rank(), .module = &module}}})
            .value();
    Sgd optimizer(module.named_parameters(), {.lr = 1e-3});
    GradScaler scaler({.init_scale = 1e20});
    scaler.set_agreement([&](bool found) {
      const Tensor any = from_vector(std::vector<int64_t>{found ? 1 : 0});
      ctx.group().run(ctx.group().all_reduce(any, ReduceOp::kMax));
      return any.item_int() != 0;
    });
    const auto weight = [&] { return detach(module.parameters()[0]).item(); };
    // Whether this rank saw an overflow, and whether it stepped.
    const auto step = [&](double input_of_second_microbatch) {
      static_cast<void>(scaler.scale(ones({})));  // in use on stages without a loss too
      StepInputs inputs{.inputs = {ones({1}), full({1}, input_of_second_microbatch)},
                        .grad_scale = scaler.scale_value()};
      inputs.loss = [&](const Tensor& output, int) { return LossSum{sum(output), ones({})}; };
      pipeline->train_step(inputs);
      const bool has_overflow = !std::isfinite(grad_of(module.parameters()[0]).item());
      const bool stepped = scaler.step(optimizer);
      scaler.update();
      optimizer.zero_grad();
      return std::pair{has_overflow, stepped};
    };
    EXPECT_EQ(step(1e30), (std::pair{ctx.group_rank() == 1, false}));
    EXPECT_EQ(weight(), 1.0);
    EXPECT_FLOAT_EQ(static_cast<float>(scaler.scale_value()), 0.5e20f);
    EXPECT_EQ(step(1.0), (std::pair{false, true}));
    EXPECT_NE(weight(), 1.0);
  });
}

// One layer at two places of a path.
class Twice final : public Module {
 public:
  Twice()
      : Module("Twice"),
        layer_(add_module<Linear>("layer",
                                  LinearOptions{.in_features = kWidth, .out_features = kWidth})) {}

 protected:
  Tensor compute(const Tensor& input) override { return layer_(tanh(layer_(input))); }

 private:
  Linear& layer_;
};

// pytorch#180952: where backward is split, a weight that is used twice counted double.
TEST(ReportedPipelineCases, AWeightUsedTwiceCountsOnceInASplitBackward) {
  const Schedule schedule = make_schedule("zero_bubble", {2, 4, 2}).value();
  const std::vector<Tensor> batch = cut(wave(8, kWidth, DType::kF64, 0.7), 4);
  const auto loss = [](const Tensor& output) {
    return squared_error(output, zeros(output.sizes(), DType::kF64));
  };
  Twice first, second;
  for (Twice* stage : {&first, &second}) {
    stage->to(DType::kF64);
    stage->reset_parameters(3);
  }
  for (const Tensor& input : batch) backward(loss(second(first(input))).sum);
  run_ranks(2, [&](RankContext& ctx) {
    Twice module;
    module.to(DType::kF64);
    module.reset_parameters(3);
    ASSERT_EQ(split_linear_backward(module), 1);
    const auto pipeline =
        Pipeline::open({.schedule = schedule,
                        .group = borrowed(ctx.group()),
                        .stages = {{.index = ctx.group_rank(), .module = &module}}})
            .value();
    StepInputs inputs{.inputs = batch};
    inputs.loss = [&](const Tensor& output, int) { return loss(output); };
    pipeline->train_step(inputs);
    const std::vector<Tensor> expected = (ctx.group_rank() == 0 ? first : second).parameters();
    const std::vector<Tensor> actual = module.parameters();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LT(amax(abs(sub(grad_of(actual[i]), grad_of(expected[i])))).item(), 1e-12) << i;
    }
  });
}

// torchtitan#775: fewer microbatches than stages hung.
TEST(ReportedPipelineCases, FewerMicrobatchesThanStagesEqualOneProcess) {
  struct Kind {
    const char* name;
    int stages;
  };
  const Tensor batch = wave(6, kWidth, DType::kF64, 0.7);
  const Tensor target = wave(6, kWidth, DType::kF64, 1.3);
  for (const Kind& kind :
       {Kind{"1f1b", 4}, Kind{"gpipe", 4}, Kind{"interleaved", 4}, Kind{"interleaved", 8},
        Kind{"bfs", 8}, Kind{"zero_bubble", 4}, Kind{"zbv", 8}}) {
    Layers whole(kWidth, 0, kind.stages);
    whole.to(DType::kF64);
    whole.reset_parameters(3);
    backward(squared_error(whole(batch), target).sum);
    std::map<std::string, Tensor> expected;
    for (const NamedTensor& named : whole.named_parameters())
      expected[named.name] = grad_of(named.tensor);
    for (const int microbatches : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{} of {} stages, m {}", kind.name, kind.stages, microbatches));
      const Schedule schedule = make_schedule(kind.name, {kind.stages, microbatches, 4}).value();
      run_ranks(4, [&](RankContext& ctx) {
        RankStages own(schedule, ctx.group_rank(), kind.stages, kWidth, DType::kF64);
        const auto pipeline = open(ctx, schedule, own);
        const std::vector<Tensor> targets = cut(target, microbatches);
        StepInputs inputs{.inputs = cut(batch, microbatches)};
        inputs.loss = [&](const Tensor& output, int m) {
          return squared_error(output, targets[static_cast<size_t>(m)]);
        };
        pipeline->train_step(inputs);
        for (const NamedTensor& named : own.parameters()) {
          const Tensor difference = sub(grad_of(named.tensor), expected.at(named.name));
          EXPECT_LT(amax(abs(difference)).item(), 1e-12) << named.name;
        }
      });
    }
  }
}

// pytorch#136912: all ranks must learn which stage met which shapes.
TEST(ReportedPipelineCases, AnotherSequenceLengthInALaterStepIsNamedOnAllRanks) {
  const Schedule schedule = make_1f1b({3, 4});
  run_ranks(3, [&](RankContext& ctx) {
    RankStages own(schedule, ctx.group_rank(), 3, kWidth, DType::kF64);
    const auto pipeline = open(ctx, schedule, own);
    const auto step = [&](int64_t length) {
      StepInputs inputs;
      for (int m = 0; m < 4; ++m)
        inputs.inputs.push_back(
            view(wave(2 * length, kWidth, DType::kF64, 0.7), {2, length, kWidth}));
      inputs.loss = [&](const Tensor& output, int) {
        return squared_error(output, zeros(output.sizes(), DType::kF64));
      };
      pipeline->train_step(inputs);
    };
    step(5);
    EXPECT_THAT(thrown_by([&] { step(7); }),
                FailsWith(ctx.group_rank() == 0 ? ErrorCode::kInvalidArgument : ErrorCode::kAborted,
                          AllOf(HasSubstr("stage 0"), HasSubstr("f64[2, 5, 4]"),
                                HasSubstr("f64[2, 7, 4]"))));
  });
}

// What a stage in the middle gives may change although its input does not.
class Growing final : public Module {
 public:
  Growing() : Module("Growing") {
    register_parameter("weight", weight_, empty({kWidth}, DType::kF64), InitSpec::ones());
    reset_parameters(1);
  }
  int64_t length = 5;
  DType dtype = DType::kF64;

 protected:
  Tensor compute(const Tensor& input) override {
    return muster::to(mul(narrow(input, 1, 0, length), weight_), dtype);
  }

 private:
  Tensor weight_;
};

// pytorch#126732, ColossalAI#5940: ranks inferred shapes for themselves and waited for each other.
TEST(ReportedPipelineCases, AStageInTheMiddleThatGivesAnotherShapeIsNamedOnAllRanks) {
  for (const char* name : {"1f1b", "zero_bubble"}) {
    for (const bool changes_dtype : {false, true}) {
      SCOPED_TRACE(fmt::format("{}, dtype {}", name, changes_dtype));
      const Schedule schedule = make_schedule(name, {3, 4, 3}).value();
      run_ranks(3, [&](RankContext& ctx) {
        Growing module;
        const auto pipeline =
            Pipeline::open({.schedule = schedule,
                            .group = borrowed(ctx.group()),
                            .stages = {{.index = ctx.group_rank(), .module = &module}}})
                .value();
        StepInputs inputs;
        for (int m = 0; m < 4; ++m)
          inputs.inputs.push_back(view(wave(10, kWidth, DType::kF64, 0.7), {2, 5, kWidth}));
        inputs.loss = [](const Tensor& output, int) { return LossSum{sum(output), {}}; };
        pipeline->train_step(inputs);
        pipeline->train_step(inputs);
        if (ctx.group_rank() == 1) {
          module.dtype = changes_dtype ? DType::kF32 : DType::kF64;
          module.length = changes_dtype ? 5 : 3;
        }
        EXPECT_THAT(
            thrown_by([&] { pipeline->train_step(inputs); }),
            FailsWith(ctx.group_rank() == 1 ? ErrorCode::kInvalidArgument : ErrorCode::kAborted,
                      AllOf(HasSubstr("output of stage 1"), HasSubstr("f64[2, 5, 4]"),
                            HasSubstr(changes_dtype ? "f32[2, 5, 4]" : "f64[2, 3, 4]"))));
      });
    }
  }
}

// torchtitan#1492: the first messages of a rank may come long before its peers are there.
TEST(ReportedPipelineCases, RanksMayBeginOneAfterTheOther) {
  const Schedule schedule = make_1f1b({4, 4});
  for (const bool ascending : {true, false}) {
    SCOPED_TRACE(ascending);
    std::vector<std::unique_ptr<std::latch>> has_begun;
    for (int i = 0; i < 5; ++i) has_begun.push_back(std::make_unique<std::latch>(1));
    has_begun[0]->count_down();
    run_ranks(4, [&](RankContext& ctx) {
      RankStages own(schedule, ctx.group_rank(), 4, kWidth, DType::kF64);
      const auto pipeline = open(ctx, schedule, own);
      const auto turn = static_cast<size_t>(ascending ? ctx.group_rank() : 3 - ctx.group_rank());
      has_begun[turn]->wait();
      // The next rank begins when this one has computed, or waits in, its first action.
      bool is_first = true;
      const auto begin = [&] {
        if (std::exchange(is_first, false)) has_begun[turn + 1]->count_down();
      };
      own.stages()[0].module->register_forward_hook([&](Module&, const Tensor&, const Tensor&) {
        if (ascending) begin();
        return Tensor();
      });
      if (!ascending) begin();
      StepInputs inputs{.inputs = cut(wave(8, kWidth, DType::kF64, 0.7), 4)};
      inputs.loss = [&](const Tensor& output, int) {
        return squared_error(output, zeros(output.sizes(), DType::kF64));
      };
      pipeline->train_step(inputs);
      begin();
    });
  }
}
}  // namespace
}  // namespace muster::pipeline
