// Pipeline steps measured against what the simulator predicts from the measured action times.
// The last line is JSON. Each rank is a forked process with one thread; messages go through shared
// memory.

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "bench/command_line.h"
#include "core/autograd/autograd.h"
#include "core/base/file_system.h"
#include "core/kernels/parallel.h"
#include "core/nn/gpt.h"
#include "core/ops/ops.h"
#include "dist/backend/shm/shm_backend.h"
#include "dist/store/file_store.h"
#include "pipeline/runtime/pipeline.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/schedule/simulate.h"
#include "train/stages.h"

namespace {
using namespace muster;            // NOLINT(google-build-using-namespace): a main file
using namespace muster::pipeline;  // NOLINT(google-build-using-namespace)

struct Sizes {
  int ranks = 2;
  int microbatches = 8;
  int64_t dim = 192;
  int64_t blocks = 8;
  int64_t length = 64;
  int64_t rows = 4;  // of a microbatch
};

constexpr int kWarmup = 2, kRounds = 7;
constexpr const char* kSchedules[] = {"gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "zbv"};
constexpr size_t kKinds = 4;  // F, B, I, W

Tensor tokens(const Sizes& sizes, int64_t salt) {
  std::vector<int64_t> values(static_cast<size_t>(sizes.rows * sizes.length));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = (static_cast<int64_t>(i) * 7 + salt * 13) % 256;
  }
  return from_vector(values, {sizes.rows, sizes.length});
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Seconds; means over steps.
struct Measured {
  double step = 0;          // the slowest rank's
  double predicted = 0;     // from the mean time of each kind of action of each stage
  double by_own_times = 0;  // from the time that each action took in that step
  double ideal = 0;         // without bubbles: the busiest rank's work
};

// Where the time of an action stands among those of its step.
size_t place_of(const Action& action, int microbatches) {
  return (static_cast<size_t>(action.stage) * kKinds + static_cast<size_t>(action.kind)) *
             static_cast<size_t>(microbatches) +
         static_cast<size_t>(action.microbatch);
}

// Seconds of every action of one step, over all ranks.
std::vector<double> own_costs(ProcessGroup& group, const std::vector<TracedAction>& trace,
                              const Schedule& schedule, int microbatches) {
  std::vector<double> costs(static_cast<size_t>(schedule.num_stages * microbatches) * kKinds);
  for (const TracedAction& traced : trace) {
    if (!is_compute(traced.action.kind)) continue;
    costs[place_of(traced.action, microbatches)] =
        to_seconds(traced.end - traced.start - traced.waited);
  }
  const Tensor all = from_vector(costs);
  group.run(group.all_reduce(all));
  std::copy_n(all.data<double>(), costs.size(), costs.begin());
  return costs;
}

// The mean over steps and microbatches, for each stage and kind.
std::vector<double> mean_costs(const std::vector<std::vector<double>>& steps, int microbatches) {
  std::vector<double> means(steps.front().size() / static_cast<size_t>(microbatches));
  for (const std::vector<double>& costs : steps) {
    for (size_t i = 0; i < costs.size(); ++i) {
      means[i / static_cast<size_t>(microbatches)] +=
          costs[i] / static_cast<double>(steps.size()) / microbatches;
    }
  }
  return means;
}

Measured measure(ProcessGroup& group, const Schedule& schedule, const Sizes& sizes) {
  GptConfig config;
  config.vocab_size = 256;
  config.max_positions = sizes.length;
  config.dim = sizes.dim;
  config.layers = sizes.blocks;
  config.heads = 4;
  config.tied_head = false;
  std::unique_ptr<Gpt> whole;
  {
    const DeviceGuard meta(kMetaDevice);
    whole = std::make_unique<Gpt>(config);
  }
  std::vector<std::unique_ptr<StageModule>> modules;
  PipelineOptions options{.schedule = schedule,
                          .group = {&group, [](ProcessGroup*) {}},
                          .stages = {},
                          .records_trace = true};
  for (const int stage : stages_of_rank(schedule, group.group_rank())) {
    modules.push_back(make_stage(*whole, stage, schedule.num_stages));
    modules.back()->reset_parameters(1);
    split_linear_backward(*modules.back());
    options.stages.push_back({.index = stage, .module = modules.back().get()});
  }
  const std::unique_ptr<Pipeline> pipeline = Pipeline::open(std::move(options)).value();
  StepInputs inputs;
  for (int m = 0; m < sizes.microbatches; ++m) inputs.inputs.push_back(tokens(sizes, m));
  inputs.loss = [&](const Tensor& logits, int m) {
    return modules.back()->loss(logits, tokens(sizes, m + 1));
  };
  std::vector<double> steps;
  std::vector<double> own_makespans;
  std::vector<std::vector<double>> costs;
  for (int round = 0; round < kWarmup + kRounds; ++round) {
    for (const auto& module : modules) module->zero_grad();
    group.run(group.barrier());
    const TimePoint began = real_clock().now();
    const StepResult result = pipeline->train_step(inputs);
    const Tensor slowest = from_vector(std::vector<double>{to_seconds(real_clock().now() - began)});
    group.run(group.all_reduce(slowest, ReduceOp::kMax));
    if (round < kWarmup) continue;
    steps.push_back(slowest.item());
    costs.push_back(own_costs(group, result.trace, schedule, sizes.microbatches));
    const auto own = [&](const Action& action) {
      return costs.back()[place_of(action, sizes.microbatches)];
    };
    own_makespans.push_back(simulate(schedule, own).value().makespan);
  }
  const std::vector<double> means = mean_costs(costs, sizes.microbatches);
  const Timeline timeline = simulate(schedule, [&](const Action& action) {
                              return means[place_of(action, sizes.microbatches) /
                                           static_cast<size_t>(sizes.microbatches)];
                            }).value();
  return {mean(steps), timeline.makespan, mean(own_makespans),
          *std::max_element(timeline.busy.begin(), timeline.busy.end())};
}

int run_rank(int rank, const Sizes& sizes, const std::string& path) {
  kernels::set_num_threads(1);
  FileStoreOptions file;
  file.path = path;
  std::shared_ptr<Store> store = FileStore::open(file).value();
  ProcessGroup::Options options;
  options.group_rank = rank;
  options.timeout = 120s;
  for (int r = 0; r < sizes.ranks; ++r) options.global_ranks.push_back(r);
  ProcessGroup group(options, ShmBackend::open_world(
                                  {.store = store, .global_rank = rank, .world_size = sizes.ranks},
                                  Deadline::after(60s))
                                  .value());
  std::string json;
  if (rank == 0) {
    std::printf("%-18s %10s %10s %7s %13s %7s %12s\n", "schedule", "step ms", "predicted", "off",
                "by own times", "off", "no bubbles");
  }
  for (const char* name : kSchedules) {
    const pipeline::Generator& generator = **find_generator(name);
    const bool has_two = generator.stages_per_rank == 2 || std::string(name) == "interleaved_1f1b";
    const int stages = sizes.ranks * (has_two ? 2 : 1);
    const Result<Schedule> schedule =
        make_schedule(name, {stages, sizes.microbatches, sizes.ranks});
    if (!schedule.ok() || stages > sizes.blocks) continue;
    const Measured measured = measure(group, *schedule, sizes);
    if (rank != 0) continue;
    std::printf("%-18s %10.2f %10.2f %6.1f%% %13.2f %6.1f%% %12.2f\n", name, measured.step * 1e3,
                measured.predicted * 1e3, 100 * (measured.step / measured.predicted - 1),
                measured.by_own_times * 1e3, 100 * (measured.step / measured.by_own_times - 1),
                measured.ideal * 1e3);
    json += fmt::format(
        "{}{{\"schedule\": \"{}\", \"step_ms\": {:.3f}, \"predicted_ms\": {:.3f}, "
        "\"by_own_times_ms\": {:.3f}, \"ideal_ms\": {:.3f}}}",
        json.empty() ? "" : ", ", name, measured.step * 1e3, measured.predicted * 1e3,
        measured.by_own_times * 1e3, measured.ideal * 1e3);
  }
  if (rank == 0) {
    std::printf("{\"ranks\": %d, \"microbatches\": %d, \"schedules\": [%s]}\n", sizes.ranks,
                sizes.microbatches, json.c_str());
  }
  std::fflush(stdout);
  return 0;
}

int run(const Sizes& sizes) {
  const TempDirectory directory;
  std::vector<pid_t> pids;
  for (int rank = 0; rank < sizes.ranks; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(run_rank(rank, sizes, directory.file("store")));
    pids.push_back(pid);
  }
  int worst = 0;
  for (const pid_t pid : pids) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 128);
  }
  return worst;
}
}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures pipeline steps beside what the simulator predicts.", "bench_pipeline");
  Sizes sizes;
  app.add_option("--ranks", sizes.ranks, "processes, one rank each; default 2")
      ->check(bench::count());
  app.add_option("--microbatches", sizes.microbatches, "microbatches of a step; default 8")
      ->check(bench::count());
  app.add_option("--dim", sizes.dim, "width of the model; default 192")->check(bench::count());
  app.add_option("--blocks", sizes.blocks, "blocks of the model; default 8")->check(bench::count());
  if (const std::optional<int> status = bench::parse(app, argc, argv)) return *status;
  return bench::guarded(app, [&] { return run(sizes); });
}
