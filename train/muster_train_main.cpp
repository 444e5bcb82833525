// muster-train RECIPE.yaml [key=value ...]: one worker. The launcher starts one per rank.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/kernels/parallel.h"
#include "core/kernels/precision.h"
#include "train/last_words.h"
#include "train/trainer.h"

namespace {
using namespace muster;  // NOLINT(google-build-using-namespace): a main file

int fail(const WorkerEnv& env, const Error& error) {
  say_last_words(env, error);
  return exit_status(error.code());
}

int run(const WorkerEnv& env, int argc, char** argv) {
  set_log_role(fmt::format("rank {}", env.global_rank));
  const std::vector<std::string> overrides(argv + 2, argv + argc);
  const Recipe recipe = load_recipe(argv[1], overrides).value();
  check_recipe(recipe, env.world_size).value();
  arm_faults_from_environment(env.global_rank, env.attempt).value();
  if (recipe.train.threads > 0) kernels::set_num_threads(static_cast<int>(recipe.train.threads));
  kernels::set_float32_matmul_precision(recipe.train.float32_matmul_precision ==
                                                Recipe::Train::MatmulPrecision::kHigh
                                            ? kernels::MatmulPrecision::kHigh
                                            : kernels::MatmulPrecision::kHighest);
  std::shared_ptr<Store> store = open_job_store(env, Deadline::after(recipe.dist.timeout)).value();
  Trainer trainer(recipe, env, std::move(store));
  trainer.run();
  return 0;
}

// The OpenMP runtime reads its wait policy when it is loaded. By default it spins, and fights with
// a neighbour or with more ranks than cores for the core; parked threads cost a big step nothing.
void wait_passively(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  ::setenv("OMP_WAIT_POLICY", "passive", 1);
  ::execv("/proc/self/exe",
          argv);  // comes back only if it fails, and then spinning is all that is left
}

}  // namespace

int main(int argc, char** argv) {
  wait_passively(argv);
  if (argc < 2 || std::string(argv[1]) == "--help") {
    std::fputs(
        "usage: muster-train RECIPE.yaml [key=value ...]\n"
        "Trains one rank; `muster run RECIPE.yaml` starts all of them. Keys: muster recipe keys\n",
        argc < 2 ? stderr : stdout);
    return argc < 2 ? 64 : 0;
  }
  muster::Result<muster::WorkerEnv> env = muster::WorkerEnv::read();
  if (!env.ok()) return fail({}, env.error());
  await_last_words(*env);
  try {
    return run(*env, argc, argv);
  } catch (const muster::Error& error) {
    return fail(*env, error);
  } catch (const std::bad_alloc&) {
    return fail(*env, muster::Error(muster::ErrorCode::kOutOfMemory, "out of memory"));
  } catch (const std::exception& error) {
    return fail(*env, muster::Error(muster::ErrorCode::kInternal, error.what()));
  }
}
