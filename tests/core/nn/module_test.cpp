#include "core/nn/module.h"

#include "core/autograd/autograd.h"
#include "core/kernels/parallel.h"
#include "core/nn/gpt.h"
#include "core/ops/ops.h"
#include "tests/support/matchers.h"

namespace muster::testing {
namespace {
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr GptConfig kSmall{
    .vocab_size = 19, .max_positions = 8, .dim = 12, .layers = 2, .heads = 3};

std::vector<std::string> names_of(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> names;
  for (const NamedTensor& named : tensors) names.push_back(named.name);
  return names;
}

// A module of its own for hooks and buffers.
class Scale final : public Module {
 public:
  explicit Scale(double factor) : Module("Scale") {
    register_parameter("factor", factor_, full({}, factor), InitSpec::ones());
    register_buffer("calls", calls_, zeros({}), /*persistent=*/true);
    register_buffer("scratch", scratch_, zeros({}), /*persistent=*/false);
  }
  Tensor factor_, calls_, scratch_;

 protected:
  Tensor compute(const Tensor& input) override { return mul(input, factor_); }
};

TEST(Module, NamesFollowRegistrationOrder) {
  Gpt model(GptConfig{.vocab_size = 5, .max_positions = 4, .dim = 4, .layers = 1, .heads = 2});
  EXPECT_THAT(
      names_of(model.named_parameters()),
      ElementsAre("wte.weight", "wpe.weight", "h.0.ln_1.weight", "h.0.ln_1.bias",
                  "h.0.attn.c_attn.weight", "h.0.attn.c_attn.bias", "h.0.attn.c_proj.weight",
                  "h.0.attn.c_proj.bias", "h.0.ln_2.weight", "h.0.ln_2.bias", "h.0.mlp.c_fc.weight",
                  "h.0.mlp.c_fc.bias", "h.0.mlp.c_proj.weight", "h.0.mlp.c_proj.bias",
                  "ln_f.weight", "ln_f.bias"));
  EXPECT_EQ(model.module_at("h.0.mlp").kind(), "GptMlp");
  EXPECT_EQ(&model.module_at(""), &model);
  EXPECT_ERROR(static_cast<void>(model.module_at("h.0.mpl")), ErrorCode::kNotFound,
               HasSubstr("\"h.0.mlp\""));
}

TEST(Module, HooksRunAroundComputeInOrderAndMayReplace) {
  Scale module(3.0);
  std::vector<std::string> log;
  HookHandle first = module.register_forward_pre_hook([&](Module&, const Tensor& in) {
    log.push_back("pre 1");
    return add(in, 1);
  });
  module.register_forward_pre_hook([&](Module&, const Tensor& in) {
    log.push_back("pre 2");
    EXPECT_EQ(in.item(), 3.0);
    return Tensor();
  });
  module.register_forward_hook([&](Module& m, const Tensor& in, const Tensor& out) {
    log.push_back("post");
    EXPECT_EQ(&m, &module);
    EXPECT_EQ(in.item(), 3.0);
    EXPECT_EQ(out.item(), 9.0);
    return neg(out);
  });
  EXPECT_EQ(module(tensor(2.0)).item(), -9.0);
  EXPECT_THAT(log, ElementsAre("pre 1", "pre 2", "post"));
  first.remove();
  log.clear();
  EXPECT_EQ(module.forward(tensor(3.0)).item(), 9.0) << "forward runs no hooks";
  EXPECT_TRUE(log.empty());
  EXPECT_EQ(module(tensor(3.0)).item(), -9.0);
  EXPECT_THAT(log, ElementsAre("pre 2", "post"));
}

TEST(Module, AHookMayRemoveItselfAndAddOthers) {
  Scale module(1.0);
  int calls = 0;
  HookHandle handle;
  handle = module.register_forward_pre_hook([&](Module& m, const Tensor&) {
    handle.remove();
    m.register_forward_pre_hook([&](Module&, const Tensor&) { return ++calls, Tensor(); });
    return Tensor();
  });
  module(tensor(1.0));
  module(tensor(1.0));
  EXPECT_EQ(calls, 2);
}

TEST(Module, RefusesADirectForwardWhereHooksAreRequired) {
  Scale module(1.0);
  module.require_hooked_call("its parameters are gathered by a hook");
  EXPECT_TRUE(module.requires_hooked_call());
  EXPECT_ERROR(module.forward(tensor(1.0)), ErrorCode::kFailedPrecondition,
               AllOf(HasSubstr("Scale"), HasSubstr("module(x)"), HasSubstr("gathered by a hook")));
  EXPECT_EQ(module(tensor(2.0)).item(), 2.0);
}

TEST(Module, ComputesWithTheTensorThatASlotWasGiven) {
  Scale module(3.0);
  const std::vector<TensorSlot> slots = module.parameter_slots();
  ASSERT_EQ(slots.size(), 1u);
  EXPECT_EQ(slots[0].owner, &module);
  *slots[0].tensor = requires_grad_(full({}, 5.0));
  EXPECT_EQ(module(tensor(2.0)).item(), 10.0);
  EXPECT_EQ(module.named_parameters()[0].tensor.item(), 5.0);
}

TEST(Module, StateLeavesOutBuffersThatDoNotPersist) {
  Scale module(3.0);
  EXPECT_THAT(names_of(module.state()), ElementsAre("factor", "calls"));
  EXPECT_THAT(names_of(module.named_buffers()), ElementsAre("calls", "scratch"));
}

TEST(Module, LoadStateListsEveryFaultAndChangesNothing) {
  Linear layer({.in_features = 2, .out_features = 3});
  layer.reset_parameters(1);
  const std::vector<float> before = to_vector<float>(layer.weight());
  EXPECT_ERROR(
      layer.load_state({{"weight", zeros({2, 3})}, {"wieght", zeros({3, 2})}}),
      ErrorCode::kInvalidArgument,
      AllOf(HasSubstr("missing: bias f32[3]"), HasSubstr("unexpected: wieght f32[3, 2]"),
            HasSubstr("shape: weight is f32[3, 2], got f32[2, 3]"), HasSubstr("3 entries")));
  EXPECT_EQ(to_vector<float>(layer.weight()), before);
  layer.load_state({{"weight", ones({3, 2})}, {"bias", ones({3}, DType::kF64)}});
  EXPECT_EQ(to_vector<float>(layer(ones({1, 2}))), (std::vector<float>{3, 3, 3}));
  EXPECT_TRUE(layer.weight().requires_grad());
}

TEST(Module, TrainAndEvalReachEveryModule) {
  Gpt model(kSmall);
  model.eval();
  for (const NamedModule& named : model.named_modules()) {
    EXPECT_FALSE(named.module->is_training()) << named.name;
  }
  model.train();
  EXPECT_TRUE(model.module_at("h.1.attn.resid_dropout").is_training());
}

TEST(Module, RefusesNamesThatAreTakenOrDotted) {
  struct Twice final : Module {
    Twice() : Module("Twice") {
      register_parameter("a", a_, zeros({1}), InitSpec::zeros());
      register_buffer("a", b_, zeros({1}));
    }
    Tensor a_, b_;
  };
  EXPECT_ERROR(Twice(), ErrorCode::kInvalidArgument, HasSubstr("\"a\" is taken"));
}

TEST(Module, ContainersComputeNothing) {
  ModuleList list;
  EXPECT_ERROR(list(tensor(1.0)), ErrorCode::kUnimplemented, HasSubstr("ModuleList"));
}

// Shards of a parameter draw what the whole draws at their place.
TEST(InitParameter, OfShardsEqualsShardsOfTheWhole) {
  for (const InitSpec spec : {InitSpec::normal(0.02), InitSpec::uniform(-1, 1)}) {
    const Tensor whole = empty({7, 5});
    init_parameter(whole, spec, 42, "h.0.attn.c_attn.weight");
    for (int64_t start = 0; start < 7; start += 3) {
      const int64_t rows = std::min<int64_t>(3, 7 - start);
      const Tensor shard = empty({rows, 5});
      init_parameter(shard, spec, 42, "h.0.attn.c_attn.weight", {7, 5}, {start, 0});
      EXPECT_TRUE(equal(shard, narrow(whole, 0, start, rows))) << start;
    }
    const Tensor columns = empty({7, 2});
    init_parameter(columns, spec, 42, "h.0.attn.c_attn.weight", {7, 5}, {0, 3});
    EXPECT_TRUE(equal(columns, narrow(whole, 1, 3, 2)));
    const Tensor other = empty({7, 5});
    init_parameter(other, spec, 42, "h.1.attn.c_attn.weight");
    EXPECT_FALSE(equal(other, whole)) << "the name counts";
  }
}

TEST(Module, MetaConstructionThenResetEqualsConstructionThenReset) {
  Gpt real(kSmall);
  real.reset_parameters(7);
  std::unique_ptr<Gpt> deferred;
  {
    const DeviceGuard meta(kMetaDevice);
    deferred = std::make_unique<Gpt>(kSmall);
  }
  for (const NamedTensor& named : deferred->named_parameters()) {
    EXPECT_TRUE(named.tensor.is_meta()) << named.name;
  }
  EXPECT_ERROR(deferred->reset_parameters(7), ErrorCode::kFailedPrecondition,
               HasSubstr("to_empty"));
  deferred->to_empty();
  deferred->reset_parameters(7);
  const auto a = real.named_parameters(), b = deferred->named_parameters();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(equal(a[i].tensor, b[i].tensor)) << a[i].name;
    EXPECT_TRUE(b[i].tensor.requires_grad()) << b[i].name;
  }
}

TEST(Gpt, ResidualProjectionsBeginSmaller) {
  Gpt model({.vocab_size = 64, .max_positions = 8, .dim = 64, .layers = 8, .heads = 4});
  model.reset_parameters(3);
  std::map<std::string, Tensor> by_name;
  for (const NamedTensor& named : model.named_parameters()) by_name[named.name] = named.tensor;
  EXPECT_NEAR(std(by_name["h.3.attn.c_attn.weight"]).item(), 0.02, 0.0005);
  EXPECT_NEAR(std(by_name["h.3.attn.c_proj.weight"]).item(), 0.02 / 4, 0.0002);
  EXPECT_EQ(sum(abs(by_name["h.3.mlp.c_fc.bias"])).item(), 0.0);
  EXPECT_EQ(sum(by_name["ln_f.weight"]).item(), 64.0);
}

TEST(Gpt, RunsOnTheMetaDevice) {
  const DeviceGuard meta(kMetaDevice);
  Gpt model(kSmall);
  const Tensor logits = model(empty({2, 8}, DType::kI64));
  EXPECT_TRUE(logits.is_meta());
  EXPECT_EQ(to_string(logits.sizes()), "[2, 8, 19]");
}

TEST(Gpt, AnUntiedHeadHasAWeightOfItsOwn) {
  GptConfig config = kSmall;
  config.tied_head = false;
  Gpt untied(config), tied(kSmall);
  EXPECT_EQ(untied.num_parameters() - tied.num_parameters(), 19 * 12);
  EXPECT_EQ(untied.named_parameters().back().name, "lm_head.weight");
}

TEST(Gpt, DropoutRepeatsUnderTheSameSeedAndStopsInEval) {
  GptConfig config = kSmall;
  config.dropout = 0.3;
  Gpt model(config);
  model.reset_parameters(1);
  const Tensor tokens = randint(0, 19, {2, 8});
  manual_seed(5);
  const Tensor a = model(tokens), b = model(tokens);
  manual_seed(5);
  EXPECT_TRUE(equal(a, model(tokens)));
  EXPECT_FALSE(equal(a, b));
  model.eval();
  EXPECT_TRUE(equal(model(tokens), model(tokens)));
}

// One training step's loss and gradients, to compare bit for bit.
std::vector<Tensor> train_step(int threads) {
  const int before = kernels::num_threads();
  kernels::set_num_threads(threads);
  Gpt model(
      {.vocab_size = 301, .max_positions = 96, .dim = 96, .layers = 2, .heads = 3, .dropout = 0.1});
  model.reset_parameters(2);
  manual_seed(4);
  const Tensor tokens = randint(0, 301, {3, 96}), targets = randint(0, 301, {3, 96});
  const LossSum loss = model.loss(tokens, targets);
  backward(div(loss.sum, loss.count));
  std::vector<Tensor> out = {loss.sum};
  for (const Tensor& parameter : model.parameters()) out.push_back(grad_of(parameter));
  kernels::set_num_threads(before);
  return out;
}

TEST(Gpt, AStepIsTheSameToTheBitOnAnyNumberOfThreads) {
  const std::vector<Tensor> one = train_step(1), three = train_step(3);
  ASSERT_EQ(one.size(), three.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(equal(one[i], three[i])) << i;
}

TEST(Gpt, NamesASequenceThatIsTooLong) {
  Gpt model(kSmall);
  model.reset_parameters(1);
  EXPECT_ERROR(model(zeros({1, 9}, DType::kI64)), ErrorCode::kInvalidArgument, HasSubstr("8"));
  EXPECT_ERROR(Gpt({.dim = 10, .heads = 3}), ErrorCode::kInvalidArgument, HasSubstr("10 and 3"));
}

TEST(Module, SharedParametersCountOnce) {
  struct Tied final : Module {
    Tied() : Module("Tied") {
      register_parameter("a", a_, ones({2}), InitSpec::ones());
      register_parameter("b", b_, a_, InitSpec::ones());
    }
    Tensor a_, b_;
  } module;
  EXPECT_EQ(module.num_parameters(), 2);
  EXPECT_EQ(module.parameter_slots().size(), 2u);
  module.to(DType::kF64);
  EXPECT_TRUE(module.a_.is_same(module.b_));
  EXPECT_EQ(module.a_.dtype(), DType::kF64);
  EXPECT_TRUE(module.a_.requires_grad());
}
}  // namespace
}  // namespace muster::testing
