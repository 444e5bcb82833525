#pragma once
/// The training loop of one rank: model, data, sharding, optimizer, checkpoints, records.
///
/// What step s computes is a function of the recipe and s alone: the samples, the learning rate and
/// the random numbers are keyed by the step, so that a restart continues to the last bit. The loss
/// is a sum over tokens divided by the global count, whatever the microbatches.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "checkpoint/io/checkpointer.h"
#include "core/nn/optim/lr_schedule.h"
#include "core/nn/optim/optimizer.h"
#include "train/parallel_model.h"
#include "train/run_records.h"
#include "train/tensorboard.h"
#include "train/text_data.h"
#include "train/worker_env.h"

namespace muster {

class Trainer {
 public:
  /// Builds everything and loads the newest checkpoint that verifies, if there is one.
  /// @collective all ranks @error throws what the parts report
  Trainer(const Recipe& recipe, const WorkerEnv& env, std::shared_ptr<Store> store);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Trains to the recipe's last step. @collective all ranks
  void run();

  /// Steps completed so far.
  [[nodiscard]] int64_t step() const noexcept { return step_; }
  [[nodiscard]] ParallelModel& model() noexcept { return *model_; }
  /// Trains one step and returns its metrics. @collective all ranks
  StepMetrics train_step();

 private:
  void open_group();
  void build_optimizer();
  void open_records();
  void resume();
  void write_recipe();
  void save();
  void report(const StepMetrics& metrics);
  void write_tensorboard(const StepMetrics& metrics);
  void report_slow(const SlowPeers& slow);
  void tell_memory_plan();
  void event(nlohmann::json json);  // adds the attempt and, where it has none, the time
  [[nodiscard]] std::vector<Microbatch> microbatches(int64_t first_sample) const;
  double forward_backward(int64_t first_sample, int64_t* tokens);
  [[nodiscard]] std::vector<checkpoint::TensorPiece> pieces(bool with_tied_copies);
  [[nodiscard]] std::string train_state_json() const;
  void apply_train_state(const checkpoint::LoadedState& state);
  [[nodiscard]] bool is_first_rank() const noexcept { return env_.global_rank == 0; }

  const Recipe recipe_;
  const WorkerEnv env_;
  std::shared_ptr<Store> store_;
  std::shared_ptr<ProcessGroup> group_;
  TextData data_;
  std::unique_ptr<ParallelModel> model_;
  std::unique_ptr<Optimizer> optimizer_;
  LrSchedule schedule_;
  std::unique_ptr<checkpoint::Checkpointer> checkpointer_;
  std::unique_ptr<LineFile> metrics_, events_;      // on the first rank only
  std::unique_ptr<TensorBoardWriter> tensorboard_;  // likewise, where the recipe wants it
  int64_t group_ready_ns_ = 0;                      // when the first collective ended, monotonic
  int64_t step_ = 0;
  int64_t tokens_seen_ = 0;
};

}  // namespace muster
