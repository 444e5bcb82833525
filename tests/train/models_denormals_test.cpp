// Denormals are zero inside a training step, on the thread that trains and on all threads of the
// kernels, and numbers again behind it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/autograd/saved_tensor_hooks.h"
#include "core/base/file_system.h"
#include "core/kernels/parallel.h"
#include "tests/support/matchers.h"
#include "train/trainer.h"

namespace muster {
namespace {
constexpr int kThreads = 4;

// How often a product below the smallest normal number came out as zero and not, over all threads.
struct Products {
  int64_t zeros = 0, denormals = 0;
};

void multiply_on_all_threads(Products& products) {
  std::vector<float> values(64, -1.0f);
  kernels::parallel_tiles(64, 1, [&](int64_t begin, int64_t) {
    volatile float small = 1e-30f, factor = 1e-10f;
    values[static_cast<size_t>(begin)] = small * factor;
  });
  volatile float small = 1e-30f, factor = 1e-10f;
  values.push_back(small * factor);  // on this thread
  for (const float value : values) ++(value == 0.0f ? products.zeros : products.denormals);
}

class Denormals : public ::testing::Test {
 protected:
  Denormals() : threads_before_(kernels::num_threads()) { kernels::set_num_threads(kThreads); }
  ~Denormals() override { kernels::set_num_threads(threads_before_); }

  // Trains a step and multiplies wherever autograd saves a value (forward) and reads one
  // (backward).
  Products in_a_step(const std::string& overrides) {
    std::ofstream(directory_.file("text")) << std::string(4000, 'a');
    const Recipe recipe =
        parse_recipe(fmt::format("recipe: 1\nrun: {{dir: {}}}\ndata: {{kind: text, files: [{}]}}\n"
                                 "model: {{layers: 1, dim: 16, heads: 2, sequence: 8}}\n"
                                 "train: {{steps: 2{}}}\n",
                                 directory_.file("run"), directory_.file("text"), overrides),
                     "denormals.yaml")
            .value();
    const WorkerEnv env;
    Trainer trainer(recipe, env, open_job_store(env, Deadline::after(recipe.dist.timeout)).value());
    Products products;
    {
      const SavedTensorHooksGuard hooks({.pack = [&](const Tensor& tensor) -> std::any {
                                           multiply_on_all_threads(products);
                                           return tensor;
                                         },
                                         .unpack =
                                             [&](const std::any& value) {
                                               multiply_on_all_threads(products);
                                               return std::any_cast<Tensor>(value);
                                             }});
      trainer.train_step();
    }
    return products;
  }

  TempDirectory directory_;

 private:
  const int threads_before_;
};

TEST_F(Denormals, AreFlushedInsideTheStepOnEveryThreadAndKeptBehindIt) {
  if (!kernels::set_flush_denormal(true)) GTEST_SKIP() << "this CPU cannot flush denormals";
  kernels::set_flush_denormal(false);
  const Products inside = in_a_step("");
  EXPECT_GT(inside.zeros, 20 * 65) << "the probe ran in forward and in backward";
  EXPECT_EQ(inside.denormals, 0);
  EXPECT_FALSE(kernels::flushes_denormals());
  Products behind;
  multiply_on_all_threads(behind);
  EXPECT_EQ(behind.zeros, 0);
  EXPECT_EQ(behind.denormals, 65);
}

TEST_F(Denormals, AreKeptWhereTheRecipeSaysSo) {
  const Products inside = in_a_step(", flush_denormals: false");
  EXPECT_EQ(inside.zeros, 0);
  EXPECT_GT(inside.denormals, 20 * 65);
}

TEST_F(Denormals, AStepLeavesACallerThatFlushesAsItWas) {
  if (!kernels::set_flush_denormal(true)) GTEST_SKIP() << "this CPU cannot flush denormals";
  in_a_step(", flush_denormals: false");
  EXPECT_TRUE(kernels::flushes_denormals());
  kernels::set_flush_denormal(false);
}
}  // namespace
}  // namespace muster
