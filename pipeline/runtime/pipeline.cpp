#include "pipeline/runtime/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/autograd/autograd.h"
#include "core/base/hash.h"
#include "core/ops/ops.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/schedule/render.h"
#include "pipeline/schedule/validate.h"

namespace muster::pipeline {
namespace {
// All ranks must run rows of one schedule.
Result<void> compare_schedules(ProcessGroup& group, const Schedule& schedule) {
  const std::string text =
      fmt::format("{} {}\n{}", schedule.num_stages, schedule.num_microbatches, to_csv(schedule));
  const Tensor own = from_vector(std::vector<int64_t>{static_cast<int64_t>(hash_text(text))});
  const Tensor all = empty_from_spec(TensorSpec::contiguous({group.world_size()}, DType::kI64));
  MUSTER_TRY(group.all_gather_into_tensor(all, own)->wait(Deadline::after(group.timeout())),
             "comparing the schedules of all ranks of a pipeline");
  for (int rank = 0; rank < group.world_size(); ++rank) {
    if (all.data<int64_t>()[rank] == own.item_int()) continue;
    return make_error(ErrorCode::kMismatch,
                      "pipeline: all ranks must run one schedule; group rank {} has {} of {} "
                      "stages and {} microbatches, group rank {} another one",
                      group.group_rank(), schedule.name, schedule.num_stages,
                      schedule.num_microbatches, rank);
  }
  return {};
}

std::string where(const Action& action) {
  if (is_message(action.kind)) return describe_message(action);
  if (!has_microbatch(action.kind)) return fmt::format("stage {}", action.stage);
  return fmt::format("{} of stage {}, microbatch {}",
                     action.kind == ActionKind::kForward ? "forward" : "backward", action.stage,
                     action.microbatch);
}

void call(const std::function<void()>& hook) {
  if (hook) hook();
}
}  // namespace

Result<std::unique_ptr<Pipeline>> Pipeline::open(PipelineOptions options) {
  if (options.group == nullptr) {
    return make_error(ErrorCode::kInvalidArgument, "pipeline: a group is needed");
  }
  MUSTER_TRY(validate(options.schedule, {.num_ranks = options.group->world_size(),
                                         .transport = Transport::kBuffered}));
  Schedule lowered = options.schedule;
  if (!lowered.has_messages()) {
    lowered = MUSTER_TRY(lower(options.schedule, {.is_sharded = options.is_sharded}));
  }
  const int rank = options.group->group_rank();
  std::vector<int> given;
  for (const Stage& stage : options.stages) {
    given.push_back(stage.index);
    if (stage.module == nullptr) {
      return make_error(ErrorCode::kInvalidArgument, "pipeline: stage {} has no module",
                        stage.index);
    }
  }
  std::sort(given.begin(), given.end());
  const std::vector<int> expected = stages_of_rank(lowered, rank);
  if (given != expected) {
    return make_error(ErrorCode::kInvalidArgument,
                      "pipeline: group rank {} of {} runs stages [{}]; got modules for [{}]", rank,
                      lowered.name, fmt::join(expected, ", "), fmt::join(given, ", "));
  }
  MUSTER_TRY(compare_schedules(*options.group, lowered));
  return std::unique_ptr<Pipeline>(new Pipeline(std::move(options), std::move(lowered)));
}

Pipeline::Pipeline(PipelineOptions options, Schedule lowered)
    : schedule_(std::move(lowered)),
      group_(std::move(options.group)),
      rank_of_(ranks_of_stages(schedule_)),
      records_trace_(options.records_trace) {
  for (Stage& stage : options.stages) stages_.emplace(stage.index, std::move(stage));
  for (const Cell& cell : schedule_.rows[static_cast<size_t>(group_->group_rank())]) {
    for (const Action& action : cell.actions) {
      if (gives_input_grad(action.kind)) last_backward_[action.stage] = action;
    }
  }
  make_plan(training_, schedule_, true);
  make_plan(evaluation_, forward_part(schedule_), false);
}

void Pipeline::make_plan(Plan& plan, Schedule schedule, bool is_training) {
  plan.schedule = std::move(schedule);
  plan.is_training = is_training;
  // A gradient looks like the value it belongs to.
  const auto spec_of = [&plan](const Action& receive) -> std::optional<TensorSpec> {
    const int maker = receive.kind == ActionKind::kRecvF ? receive.stage - 1 : receive.stage;
    const auto found = plan.specs.find({maker, receive.microbatch});
    if (found == plan.specs.end()) return std::nullopt;
    return found->second;
  };
  plan.mailbox = std::make_unique<Mailbox>(group_, plan.schedule, spec_of);
}

StepResult Pipeline::train_step(const StepInputs& inputs) { return run(training_, inputs); }

StepResult Pipeline::evaluate(const StepInputs& inputs) {
  const NoGradGuard no_grad;
  return run(evaluation_, inputs);
}

void Pipeline::check_inputs(const StepInputs& inputs) const {
  const auto wanted = static_cast<size_t>(schedule_.num_microbatches);
  MUSTER_CHECK(!has_first_stage() || inputs.inputs.size() == wanted, ErrorCode::kInvalidArgument,
               "pipeline: stage 0 needs one input for each of {} microbatches; got {}", wanted,
               inputs.inputs.size());
  MUSTER_CHECK(!has_last_stage() || inputs.loss, ErrorCode::kInvalidArgument,
               "pipeline: the rank of the last stage, {}, needs a loss", schedule_.num_stages - 1);
}

StepResult Pipeline::run(Plan& plan, const StepInputs& inputs) {
  StepResult result;
  Action current;
  size_t position = 0;
  const TimePoint began = real_clock().now();
  const auto timed = [&](const Action& action) {
    current = action;
    waited_ = Duration(0);
    const Duration start = real_clock().now() - began;
    run_action(plan, action, inputs, result);
    if (!records_trace_) return;
    result.trace.push_back({action, start, real_clock().now() - began, waited_});
  };
  try {
    check_inputs(inputs);
    if (has_last_stage()) {
      result.loss_sums.resize(static_cast<size_t>(schedule_.num_microbatches));
      result.loss_counts.resize(result.loss_sums.size());
    }
    kept_.clear();
    outgoing_.clear();
    plan.mailbox->begin(hash_combine(++step_, plan.is_training ? 1 : 0), !plan.is_warm);
    const auto& row = plan.schedule.rows[static_cast<size_t>(group_->group_rank())];
    for (; position < row.size(); ++position) {
      // Messages of one cell are posted together: receives first, as sends may wait for room.
      for (const Action& action : row[position].actions) {
        if (is_recv(action.kind)) timed(action);
      }
      for (const Action& action : row[position].actions) {
        if (!is_recv(action.kind)) timed(action);
      }
    }
    MUSTER_ASSERT(plan.mailbox->is_empty() && kept_.empty() && outgoing_.empty(),
                  "pipeline: something was left over at the end of step {}", step_);
  } catch (Error& error) {
    fail(std::move(error), plan, current, static_cast<int>(position));
  } catch (const std::exception& error) {
    fail(Error(ErrorCode::kInternal, error.what()), plan, current, static_cast<int>(position));
  }
  plan.is_warm = true;
  return result;
}

void Pipeline::run_action(Plan& plan, const Action& action, const StepInputs& inputs,
                          StepResult& result) {
  const StageHooks& hooks = stages_.at(action.stage).hooks;
  switch (action.kind) {
    case ActionKind::kForward:
      forward(plan, action, inputs, result);
      result.peak_live = std::max(result.peak_live, static_cast<int>(kept_.size()));
      return;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      return backward(plan, action);
    case ActionKind::kBackwardWeight:
      kept_.at({action.stage, action.microbatch}).weights.run();
      kept_.erase({action.stage, action.microbatch});
      return;
    case ActionKind::kUnshard:
      return call(hooks.unshard);
    case ActionKind::kReshard:
      return call(hooks.reshard);
    case ActionKind::kReduceGrad:
      return call(hooks.reduce_grad);
    case ActionKind::kSendF:
    case ActionKind::kSendB: {
      const auto found = outgoing_.find(action);
      MUSTER_ASSERT(found != outgoing_.end(), "pipeline: nothing to send for {}",
                    to_string(action));
      const Tensor value = std::move(found->second);
      outgoing_.erase(found);
      return plan.mailbox->send(action, value);
    }
    case ActionKind::kRecvF:
    case ActionKind::kRecvB:
      return plan.mailbox->post(action);
  }
}

void Pipeline::check_spec(Plan& plan, int stage, int microbatch, const Tensor& output) {
  const TensorSpec spec = TensorSpec::contiguous(output.sizes(), output.dtype());
  const auto [found, is_new] = plan.specs.try_emplace({stage, microbatch}, spec);
  MUSTER_CHECK(is_new || (found->second.sizes == spec.sizes && found->second.dtype == spec.dtype),
               ErrorCode::kInvalidArgument,
               "pipeline: the output of stage {} for microbatch {} must be {}, as in the first "
               "step; got {}",
               stage, microbatch, found->second.describe(), spec.describe());
}

// Lets a value go: to a stage of this rank at once, to another rank when its send comes.
void Pipeline::pass_on(Plan& plan, const Action& send, Tensor value) {
  const Action receive = other_end(send);
  if (rank_of_[static_cast<size_t>(receive.stage)] == group_->group_rank()) {
    plan.mailbox->hand_over(receive, std::move(value));
  } else {
    outgoing_.emplace(send, contiguous(value));
  }
}

Tensor Pipeline::take(Plan& plan, const Action& receive) {
  const TimePoint began = real_clock().now();
  Tensor value = plan.mailbox->take(receive);
  waited_ += real_clock().now() - began;
  return value;
}

Tensor Pipeline::loss_of(const Tensor& output, int microbatch, const StepInputs& inputs,
                         StepResult& result) {
  const LossSum loss = inputs.loss(output, microbatch);
  const auto at = static_cast<size_t>(microbatch);
  result.loss_sums[at] = detach(loss.sum).item();
  if (loss.count.defined()) result.loss_counts[at] = detach(loss.count).item();
  return inputs.grad_scale == 1 ? loss.sum : mul(loss.sum, inputs.grad_scale);
}

void Pipeline::forward(Plan& plan, const Action& action, const StepInputs& inputs,
                       StepResult& result) {
  const auto [kind, stage, m] = action;
  Tensor input;
  if (stage == 0) {
    input = inputs.inputs[static_cast<size_t>(m)];
  } else {
    input = take(plan, {ActionKind::kRecvF, stage, m});
    plan.specs.try_emplace({stage - 1, m}, TensorSpec::contiguous(input.sizes(), input.dtype()));
    if (plan.is_training && is_floating(input.dtype())) requires_grad_(input);
  }
  Tensor output = (*stages_.at(stage).module)(input);
  if (stage + 1 == schedule_.num_stages) {
    output = loss_of(output, m, inputs, result);
  } else {
    check_spec(plan, stage, m, output);
    pass_on(plan, {ActionKind::kSendF, stage, m}, detach(output));
  }
  if (plan.is_training) kept_[{stage, m}] = {std::move(input), std::move(output), {}};
}

void Pipeline::backward(Plan& plan, const Action& action) {
  const auto [kind, stage, m] = action;
  Kept& kept = kept_.at({stage, m});
  const Stage& own = stages_.at(stage);
  if (own.hooks.before_backward) own.hooks.before_backward(last_backward_.at(stage) == action);
  Tensor grad;
  if (stage + 1 < schedule_.num_stages) grad = take(plan, {ActionKind::kRecvB, stage, m});
  if (kept.output.requires_grad()) {
    // Hooks that reduce gradients must see all of them in a backward pass.
    std::optional<DeferWeights> defer;
    if (kind == ActionKind::kBackwardInput && !own.hooks.before_backward) {
      defer.emplace(kept.weights);
    }
    muster::backward(kept.output, grad);
  }
  if (stage > 0) {
    Tensor of_input = grad_of(kept.input);
    // Nothing in the stage used it: the stages before learn that too.
    if (!of_input.defined()) of_input = zeros(kept.input.sizes(), kept.input.dtype());
    pass_on(plan, {ActionKind::kSendB, stage, m}, std::move(of_input));
  }
  if (kind == ActionKind::kBackward) {
    kept_.erase({stage, m});
  } else {
    kept.input.reset();
    kept.output.reset();
  }
}

void Pipeline::fail(Error error, const Plan& plan, const Action& action, int position) {
  error.add_context(fmt::format("pipeline step {}, group rank {}, position {}, {}: {}", step_,
                                group_->group_rank(), position, to_string(action), where(action)));
  const Result<std::string> drawing = catch_error([&] { return render(plan.schedule, action); });
  if (drawing.ok()) error.add_context(fmt::format("schedule {}:{}", schedule_.name, *drawing));
  group_->abort(fmt::format("{} failed: {}", to_string(action), error.message()));
  throw std::move(error);
}
}  // namespace muster::pipeline
