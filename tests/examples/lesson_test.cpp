// The examples print what the lesson prints, and their values are those that PyTorch computes.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/autograd/autocast.h"
#include "core/autograd/autograd.h"
#include "core/autograd/gradcheck.h"
#include "core/base/text.h"
#include "core/nn/layers.h"
#include "core/nn/optim/optimizer.h"
#include "core/ops/ops.h"
#include "tests/support/golden_case.h"
#include "tests/support/golden_close.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using testing::is_close;

const testing::GoldenFile& lesson() { return testing::GoldenFile::load("lesson/lesson"); }

// The lines that an example prints; it must exit with 0.
std::vector<std::string> lines_of(const std::string& name) {
  const std::string path =
      (std::filesystem::read_symlink("/proc/self/exe").parent_path() / ("example_" + name))
          .string();
  std::string out;
  FILE* pipe = ::popen(("timeout 50 " + path + " < /dev/null").c_str(), "r");
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) out.append(buffer, n);
  const int status = ::pclose(pipe);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << name << ": " << out;
  std::vector<std::string> lines = split(out, '\n');
  lines.pop_back();  // behind the last line break
  return lines;
}

class LessonExample : public ::testing::TestWithParam<const char*> {};

TEST_P(LessonExample, PrintsWhatTheLessonPrints) {
  const json& golden = lesson().find(GetParam());
  EXPECT_EQ(golden["prints"], golden["run_prints"]);
  EXPECT_THAT(lines_of(GetParam()),
              ElementsAreArray(golden["prints"].get<std::vector<std::string>>()));
}

INSTANTIATE_TEST_SUITE_P(All, LessonExample,
                         ::testing::Values("storage_and_strides", "saved_value_versions",
                                           "score_cells", "sdpa_math_and_masks",
                                           "checkpoint_reload"),
                         [](const auto& example) { return std::string(example.param); });

// The last line of compile_boundaries.
TEST(LessonExample, MixedPrecisionPrintsTheLineOfAutocast) {
  const json& prints = lesson().find("compile_boundaries")["prints"];
  EXPECT_THAT(lines_of("mixed_precision"), ElementsAre(prints.back().get<std::string>()));
}

std::vector<int64_t> ints(Dims dims) { return {dims.begin(), dims.end()}; }

TEST(Lesson, StorageAndStridesHaveTheValuesOfEachStep) {
  const json& golden = lesson().find("storage_and_strides");
  const json& steps = golden["steps"];
  const Tensor x = reshape(arange(6), {2, 3});
  const Tensor y = t(x);
  EXPECT_EQ(json(ints(x.strides())), steps[0]["x_strides"]);
  EXPECT_EQ(json(x.storage()->nbytes()), steps[0]["storage_bytes"]);
  EXPECT_EQ(json(ints(y.strides())), steps[1]["y_strides"]);
  EXPECT_EQ(json(y.storage() == x.storage()), steps[1]["same_storage"]);
  EXPECT_EQ(json(y.is_contiguous()), steps[1]["contiguous"]);
  EXPECT_ERROR(view(y, {-1}), ErrorCode::kInvalidArgument, HasSubstr("use reshape"));
  const Tensor flat = reshape(y, {-1});
  EXPECT_EQ(json(flat.storage() == y.storage()), steps[3]["same_storage"]);
  fill_(select(select(y, 0, 0), 0, 1), 30);
  EXPECT_TRUE(is_close(x, lesson().tensor(golden["tensors"]["x_end"])));
  EXPECT_TRUE(is_close(y, lesson().tensor(golden["tensors"]["y_end"])));
  EXPECT_TRUE(is_close(flat, lesson().tensor(golden["tensors"]["flat_end"])));
}

TEST(Lesson, SavedValuesAreGuardedByTheirVersion) {
  const json& golden = lesson().find("saved_value_versions");
  const Tensor x = requires_grad_(lesson().tensor(golden["inputs"]["x"]));
  const auto loss_of = [](const Tensor& value) { return sum(square(value)); };
  backward(loss_of(x));
  EXPECT_TRUE(equal(grad_of(x), lesson().tensor(golden["grad"])));

  const Tensor loss = loss_of(x);
  EXPECT_EQ(loss.item(), golden["loss"].get<double>());
  EXPECT_EQ(json(x.version()), golden["versions"]["at_save"]);
  add_(detach(x), 1.0);
  EXPECT_EQ(json(x.version()), golden["versions"]["after_detached_add"]);
  EXPECT_ERROR(backward(loss), ErrorCode::kFailedPrecondition,
               ::testing::AllOf(HasSubstr("modified by an inplace operation"), HasSubstr("f64[1]"),
                                HasSubstr("version 0, now 1")));

  const Tensor fresh = requires_grad_(lesson().tensor(golden["inputs"]["x"]));
  const Tensor fresh_loss = loss_of(fresh);
  const Tensor independent = clone(detach(fresh));
  add_(independent, 1.0);
  backward(fresh_loss);
  EXPECT_EQ(fresh.item(), golden["clone"]["x_after"].get<double>());
  EXPECT_EQ(independent.item(), golden["clone"]["independent"].get<double>());
  EXPECT_EQ(grad_of(fresh).item(), golden["clone"]["grad"].get<double>());
  const auto function = [&](std::span<const Tensor> inputs) {
    return std::vector<Tensor>{loss_of(inputs[0])};
  };
  EXPECT_EQ(json(gradcheck(function, std::vector<Tensor>{fresh})), golden["gradcheck"]);
}

TEST(Lesson, AttentionMatchesInValuesGradientsAndMasks) {
  const json& golden = lesson().find("sdpa_math_and_masks");
  const auto input = [&](const char* name) { return lesson().tensor(golden["inputs"][name]); };
  const Tensor q = requires_grad_(input("q"));
  const Tensor k = requires_grad_(input("k"));
  const Tensor v = requires_grad_(input("v"));
  const SdpaKernelGuard math_only({SdpaKernel::kMath});
  const auto expect_out = [&](const Tensor& out, const char* name) {
    EXPECT_TRUE(is_close(out, lesson().tensor(golden["out"][name]))) << name;
  };
  const Tensor out = scaled_dot_product_attention(q, k, v);
  expect_out(out, "plain");
  const Tensor loss = sum(square(out));
  const std::vector<Tensor> grads = grad({&loss, 1}, std::vector<Tensor>{q, k, v});
  EXPECT_TRUE(is_close(grads[0], lesson().tensor(golden["grads"]["q"])));
  EXPECT_TRUE(is_close(grads[1], lesson().tensor(golden["grads"]["k"])));
  EXPECT_TRUE(is_close(grads[2], lesson().tensor(golden["grads"]["v"])));
  expect_out(scaled_dot_product_attention(q, k, v, {.attn_mask = input("keep_first")}), "masked");
  const Tensor first = slice(q, 2, 0, 1);
  expect_out(scaled_dot_product_attention(first, k, v, {.causal = CausalAlignment::kUpperLeft}),
             "upper_left_L1");
  expect_out(scaled_dot_product_attention(first, k, v, {.causal = CausalAlignment::kLowerRight}),
             "cached_last_L1");
}

TEST(Lesson, AutocastGivesBfloat16LossAndFloat32Gradient) {
  const json& golden = lesson().find("compile_boundaries")["amp"];
  const Tensor inputs = lesson().tensor(golden["inputs"]);
  const Tensor weight = requires_grad_(lesson().tensor(golden["weight"]));
  Tensor product;
  Tensor loss;
  {
    const AutocastGuard autocast(DeviceType::kCpu, DType::kBF16);
    product = matmul(inputs, weight);
    loss = mean(square(product));
  }
  backward(loss);
  // A bf16 product may be rounded in another place, so PyTorch's own numbers are met nearly.
  EXPECT_TRUE(is_close(product, lesson().tensor(golden["product"])));
  EXPECT_TRUE(is_close(loss, lesson().tensor(golden["loss"])));
  EXPECT_EQ(grad_of(weight).dtype(), DType::kF32);
  EXPECT_TRUE(is_close(grad_of(weight), lesson().tensor(golden["grad"]),
                       testing::default_tolerance(DType::kBF16)));
}

TEST(Lesson, AdamMakesTheTwoUpdatesOfTheCheckpointExample) {
  const json& golden = lesson().find("checkpoint_reload");
  Linear model({.in_features = 2, .out_features = 1});
  model.reset_parameters(0);
  model.to(DType::kF64);
  model.load_state({{"weight", lesson().tensor(golden["init"]["weight"])},
                    {"bias", lesson().tensor(golden["init"]["bias"])}});
  AdamW adam(
      model.named_parameters(),
      AdamWOptions{.lr = golden["optimizer"]["lr"], .weight_decay = 0.0, .decoupled_decay = false});
  const Tensor inputs = lesson().tensor(golden["inputs"]);
  const Tensor targets = lesson().tensor(golden["targets"]);
  for (const json& step : golden["steps"]) {
    adam.zero_grad();
    const Tensor loss = mean(square(model(inputs) - targets));
    backward(loss);
    EXPECT_TRUE(is_close(loss, lesson().tensor(step["loss"])));
    EXPECT_TRUE(is_close(grad_of(model.weight()), lesson().tensor(step["grads"]["weight"])));
    EXPECT_TRUE(is_close(grad_of(model.bias()), lesson().tensor(step["grads"]["bias"])));
    adam.step();
    EXPECT_TRUE(is_close(model.weight(), lesson().tensor(step["params"]["weight"])));
    EXPECT_TRUE(is_close(model.bias(), lesson().tensor(step["params"]["bias"])));
    for (const OptimizerStateEntry& entry : adam.state()) {
      const json& state = step["state"][entry.parameter];
      EXPECT_EQ(static_cast<double>(entry.step), lesson().tensor(state["step"]).item());
      for (const NamedTensor& moment : entry.tensors) {
        EXPECT_TRUE(is_close(moment.tensor, lesson().tensor(state[moment.name]))) << moment.name;
      }
    }
  }
}

TEST(Lesson, WorkedNumbersHold) {
  const json& golden = lesson().find("worked_numbers");
  const json& scores = golden["scores"];
  const Tensor q = empty({scores["B"], scores["H"], scores["S"], scores["D"]});
  EXPECT_EQ(json(matmul(q, transpose(q, -2, -1)).numel()), scores["cells"]);
  const Tensor x = arange(6);
  const auto* base = static_cast<const std::byte*>(x.data_ptr());
  const auto* third = static_cast<const std::byte*>(select(x, 0, 3).data_ptr());
  EXPECT_EQ(json(third - base), golden["byte_of_element_3_i64"]);
  const json& cells = lesson().find("score_cells");
  EXPECT_EQ(cells["value"], 134217728);
}
}  // namespace
}  // namespace muster
