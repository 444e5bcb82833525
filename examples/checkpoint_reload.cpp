// A restored run goes on exactly as the run that never stopped: parameters, moments and counters.
//
// One Adam update, a save, a second update. Then a fresh model and a fresh optimizer are filled
// from the checkpoint and do the second update, too.
#include <nlohmann/json.hpp>

#include "checkpoint/io/checkpointer.h"
#include "core/autograd/autograd.h"
#include "core/nn/layers.h"
#include "core/nn/optim/optimizer.h"
#include "examples/show.h"

using namespace muster;
using nlohmann::json;

namespace {
struct Training {
  explicit Training(uint64_t seed) : model({.in_features = 2, .out_features = 1}) {
    model.reset_parameters(seed);
    model.to(DType::kF64);
    optimizer = std::make_unique<AdamW>(
        model.named_parameters(),
        AdamWOptions{.lr = 0.01, .weight_decay = 0.0, .decoupled_decay = false});  // Adam
  }
  Tensor update() {
    optimizer->zero_grad();
    const Tensor inputs = from_vector<double>({1, 2, 2, -1}, {2, 2});
    const Tensor targets = from_vector<double>({0.5, -0.5}, {2, 1});
    const Tensor loss = mean(square(model(inputs) - targets));
    backward(loss);
    optimizer->step();
    return detach(loss);
  }
  // Everything that must survive, by name.
  std::vector<NamedTensor> tensors() {
    std::vector<NamedTensor> all;
    for (const NamedTensor& entry : model.state())
      all.push_back({"model." + entry.name, entry.tensor});
    optimizer->materialize_state();
    for (const OptimizerStateEntry& entry : optimizer->state()) {
      for (const NamedTensor& moment : entry.tensors) {
        all.push_back({"optimizer." + entry.parameter + "." + moment.name, moment.tensor});
      }
    }
    return all;
  }
  json counters() {
    json counters;
    for (const OptimizerStateEntry& entry : optimizer->state())
      counters[entry.parameter] = entry.step;
    return counters;
  }
  void set_counters(const json& counters) {
    for (OptimizerStateEntry entry : optimizer->state()) {
      entry.step = counters.at(entry.parameter);
      optimizer->load_state(entry);
    }
  }

  Linear model;
  std::unique_ptr<AdamW> optimizer;
};

std::vector<int64_t> sizes_of(const Tensor& tensor) {
  return {tensor.sizes().begin(), tensor.sizes().end()};
}

// On one rank a piece is the whole tensor; with shards it would be this rank's box of it.
checkpoint::SaveRequest to_save(Training& training, int64_t step) {
  checkpoint::SaveRequest request;
  request.step = step;
  request.train_state_json = json{{"step", step}, {"counters", training.counters()}}.dump();
  for (const NamedTensor& entry : training.tensors()) {
    const Tensor& tensor = entry.tensor;
    request.tensors.push_back(
        {.name = entry.name,
         .dtype = tensor.dtype(),
         .global_sizes = sizes_of(tensor),
         .box = checkpoint::full_box(sizes_of(tensor)),
         .data = {static_cast<const std::byte*>(tensor.data_ptr()), size_t(tensor.nbytes())},
         .holders = {}});
  }
  return request;
}

std::vector<checkpoint::TensorSlot> to_fill(Training& training) {
  std::vector<checkpoint::TensorSlot> slots;
  for (const NamedTensor& entry : training.tensors()) {
    const Tensor& tensor = entry.tensor;
    slots.push_back(
        {.name = entry.name,
         .dtype = tensor.dtype(),
         .global_sizes = sizes_of(tensor),
         .box = checkpoint::full_box(sizes_of(tensor)),
         .destination = {static_cast<std::byte*>(tensor.data_ptr()), size_t(tensor.nbytes())}});
  }
  return slots;
}
}  // namespace

int main() {
  const TempDirectory directory("checkpoint_reload");
  checkpoint::CheckpointerOptions options;
  options.directory = directory.path();
  const auto checkpointer = checkpoint::Checkpointer::open(options).value();

  Training training(7);
  training.update();
  checkpointer->save(to_save(training, 1)).value();
  const Tensor expected_loss = training.update();

  Training resumed(8);  // other values, which the load replaces
  const std::vector<checkpoint::TensorSlot> slots = to_fill(resumed);
  const auto restored =
      checkpointer->load_latest({.slots = slots, .aliases = {}, .step = {}}).value();
  const json state = json::parse(restored->train_state_json);
  resumed.set_counters(state["counters"]);
  fmt::print("restored step: {}\n", state["step"].get<int>());

  const Tensor actual_loss = resumed.update();
  MUSTER_ASSERT(equal(actual_loss, expected_loss), "losses must have the same bits");
  MUSTER_ASSERT(resumed.counters() == training.counters(), "counters must be equal");
  const std::vector<NamedTensor> expected = training.tensors();
  const std::vector<NamedTensor> actual = resumed.tensors();
  for (size_t i = 0; i < expected.size(); ++i) {
    MUSTER_ASSERT(equal(actual[i].tensor, expected[i].tensor), "{} must have the same bits",
                  expected[i].name);
  }
  fmt::print("second update: loss, parameters, Adam moments and counters match exactly\n");
}
