#pragma once
/// Small models for pipeline tests: layers of tanh(linear), whole or cut into stages.

#include <memory>
#include <numeric>
#include <vector>

#include "core/autograd/autograd.h"
#include "core/nn/layers.h"
#include "core/ops/ops.h"
#include "pipeline/runtime/pipeline.h"
#include "pipeline/schedule/generate.h"
#include "tests/support_ranks/ranks.h"

namespace muster::pipeline {

class TanhLinear final : public Module {
 public:
  explicit TanhLinear(int64_t width)
      : Module("TanhLinear"),
        linear_(add_module<Linear>("linear",
                                   LinearOptions{.in_features = width, .out_features = width})) {}

 protected:
  Tensor compute(const Tensor& input) override { return tanh(linear_(input)); }

 private:
  Linear& linear_;
};

/// Layers [first, last) of a model, named as in it: parameters do not depend on the cut.
class Layers final : public Module {
 public:
  Layers(int64_t width, int first, int last) : Module("Layers") {
    for (int i = first; i < last; ++i) {
      items_.push_back(&add_module<TanhLinear>(std::to_string(i), width));
    }
  }

 protected:
  Tensor compute(const Tensor& input) override {
    Tensor x = input;
    for (Module* item : items_) x = (*item)(x);
    return x;
  }

 private:
  std::vector<Module*> items_;
};

/// The stages of one rank, each with an equal number of layers.
class RankStages {
 public:
  RankStages(const Schedule& schedule, int rank, int layers, int64_t width, DType dtype,
             bool splits_backward = false) {
    const int per_stage = layers / schedule.num_stages;
    for (const int stage : stages_of_rank(schedule, rank)) {
      modules_.push_back(
          std::make_unique<Layers>(width, stage * per_stage, (stage + 1) * per_stage));
      modules_.back()->to(dtype);
      modules_.back()->reset_parameters(3);
      if (splits_backward) split_linear_backward(*modules_.back());
      stages_.push_back({.index = stage, .module = modules_.back().get()});
    }
  }
  [[nodiscard]] std::vector<Stage>& stages() { return stages_; }
  [[nodiscard]] std::vector<NamedTensor> parameters() const {
    std::vector<NamedTensor> out;
    for (const auto& module : modules_) {
      for (NamedTensor& named : module->named_parameters()) out.push_back(std::move(named));
    }
    return out;
  }

 private:
  std::vector<std::unique_ptr<Layers>> modules_;
  std::vector<Stage> stages_;
};

inline std::shared_ptr<ProcessGroup> borrowed(ProcessGroup& group) {
  return {&group, [](ProcessGroup*) {}};
}

/// Rows of a batch, microbatch after microbatch.
inline std::vector<Tensor> cut(const Tensor& batch, int microbatches) {
  std::vector<Tensor> out;
  int64_t row = 0;
  for (const int64_t size : microbatch_sizes(batch.size(0), microbatches)) {
    out.push_back(contiguous(narrow(batch, 0, row, size)));
    row += size;
  }
  return out;
}

inline Tensor wave(int64_t rows, int64_t width, DType dtype, double step) {
  std::vector<double> values(static_cast<size_t>(rows * width));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(step * static_cast<double>(i + 1));
  return to(from_vector(values, {rows, width}), dtype);
}

/// Sum of squared errors; counts elements.
inline LossSum squared_error(const Tensor& output, const Tensor& target) {
  return {mse_loss(output, target, Reduction::kSum),
          full({}, static_cast<double>(output.numel()), output.dtype())};
}

}  // namespace muster::pipeline
