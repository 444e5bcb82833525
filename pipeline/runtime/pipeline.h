#pragma once
/// Pipeline: runs any valid schedule over the stages of a model.
///
///   auto pipeline = Pipeline::open({.schedule = make_1f1b({2, 8}), .group = pp, .stages =
///   stages}); StepResult done = pipeline->train_step({.inputs = tokens, .loss = loss, .grad_scale
///   = 1 / n});
///
/// Gradients add up in the parameters' .grad, microbatch after microbatch, as in a loop over
/// microbatches in one process; losses are sums, and the caller owns the denominator. Activations
/// live from a microbatch's F to its B. Where a schedule splits backward, W does what I could put
/// off: the weights of Linear layers prepared by split_linear_backward(), else nothing. A failed
/// step names the action and shows the schedule, and aborts the group, so that no peer waits for
/// it.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "core/ops/losses.h"
#include "dist/group/process_group.h"
#include "pipeline/runtime/mailbox.h"
#include "pipeline/runtime/split_backward.h"
#include "pipeline/runtime/stage.h"
#include "pipeline/schedule/schedule.h"

namespace muster::pipeline {

struct PipelineOptions {
  Schedule schedule;                    ///< compute-only (is lowered here) or lowered
  std::shared_ptr<ProcessGroup> group;  ///< group rank r runs row r
  std::vector<Stage> stages;            ///< those of this rank, any order
  /// Adds UNSHARD, RESHARD and REDUCE_GRAD to a compute-only schedule. The same on all ranks.
  bool is_sharded = false;
  bool records_trace = false;
};

/// What one step works on. Only what this rank's stages need must be given.
struct StepInputs {
  /// One tensor a microbatch, for stage 0.
  std::vector<Tensor> inputs = {};
  /// The loss of a microbatch from the last stage's output. What it leaves out (a weight of 0, say)
  /// does not count.
  std::function<LossSum(const Tensor& output, int microbatch)> loss = {};
  /// Multiplies the gradient of every microbatch's sum: 1 / (tokens of all ranks and microbatches).
  double grad_scale = 1;
};

/// When an action ran.
struct TracedAction {
  Action action;
  Duration start{0};  ///< since the step began
  Duration end{0};
  Duration waited{0};  ///< of that, for a tensor of another rank
};

struct StepResult {
  std::vector<double> loss_sums;    ///< by microbatch; empty where the last stage does not live
  std::vector<double> loss_counts;  ///< what each sum is to be divided by
  int peak_live = 0;                ///< most microbatches kept at once, a stage each
  std::vector<TracedAction> trace;  ///< with records_trace
};

class Pipeline {
 public:
  /// Validates the schedule and compares it over the group.
  /// @collective all ranks of the group
  /// @error kInvalidArgument the schedule is not valid, or its stages are not those given;
  /// kMismatch ranks have different schedules; what the group reports
  static Result<std::unique_ptr<Pipeline>> open(PipelineOptions options);
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// Forward and backward of all microbatches. @collective all ranks of the group
  /// @error kInvalidArgument inputs or loss are missing, or a shape between stages is not that of
  /// the first step; kPeerLost, kTimeout, kMismatch, kAborted from peers. The group is aborted.
  StepResult train_step(const StepInputs& inputs);
  /// Forward of all microbatches, without gradients. @collective @error as train_step
  StepResult evaluate(const StepInputs& inputs);

  /// The schedule as it is run, with messages.
  [[nodiscard]] const Schedule& schedule() const noexcept { return schedule_; }
  [[nodiscard]] bool has_first_stage() const noexcept { return stages_.contains(0); }
  [[nodiscard]] bool has_last_stage() const noexcept {
    return stages_.contains(schedule_.num_stages - 1);
  }

 private:
  // One kind of step: its rows, mailbox and the shapes seen in the first one.
  struct Plan {
    Schedule schedule;
    std::unique_ptr<Mailbox> mailbox;
    std::map<std::pair<int, int>, TensorSpec> specs;  // of stage outputs, by (stage, microbatch)
    bool is_warm = false;                             // the first step is over
    bool is_training = false;
  };
  struct Kept {
    Tensor input;
    Tensor output;       // at the last stage: the loss, scaled
    WeightWork weights;  // between I and W
  };

  Pipeline(PipelineOptions options, Schedule lowered);
  void make_plan(Plan& plan, Schedule schedule, bool is_training);
  StepResult run(Plan& plan, const StepInputs& inputs);
  void run_action(Plan& plan, const Action& action, const StepInputs& inputs, StepResult& result);
  void forward(Plan& plan, const Action& action, const StepInputs& inputs, StepResult& result);
  void backward(Plan& plan, const Action& action);
  Tensor loss_of(const Tensor& output, int microbatch, const StepInputs& inputs,
                 StepResult& result);
  Tensor take(Plan& plan, const Action& receive);
  void check_inputs(const StepInputs& inputs) const;
  void check_spec(Plan& plan, int stage, int microbatch, const Tensor& output);
  void pass_on(Plan& plan, const Action& send, Tensor value);
  [[noreturn]] void fail(Error error, const Plan& plan, const Action& action, int position);

  Schedule schedule_;
  std::shared_ptr<ProcessGroup> group_;
  std::map<int, Stage> stages_;
  std::vector<int> rank_of_;
  bool records_trace_;
  Plan training_;
  Plan evaluation_;
  std::map<int, Action> last_backward_;  // by stage
  std::map<std::pair<int, int>, Kept> kept_;
  std::map<Action, Tensor> outgoing_;  // made, not yet sent
  uint64_t step_ = 0;
  Duration waited_{0};  // in the current action
};

}  // namespace muster::pipeline
