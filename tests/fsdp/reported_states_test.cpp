// What users of other systems reported of the values of sharded models: states that went stale,
// gradients that began on leftovers, initialisation from the meta device.
#include <cmath>
#include <cstring>
#include <map>

#include "core/autograd/autograd.h"
#include "core/nn/gpt.h"
#include "core/nn/optim/optimizer.h"
#include "core/ops/ops.h"
#include "dist/parallel/plan.h"
#include "dist/tensor/redistribute.h"
#include "fsdp/fully_shard.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using ::testing::HasSubstr;
using testing::RankContext;
using testing::run_ranks;

std::shared_ptr<ProcessGroup> world_of(RankContext& ctx) {
  return {&ctx.group(), [](ProcessGroup*) {}};
}

MeshRef mesh_of(RankContext& ctx, const std::vector<DeviceMesh::Axis>& axes) {
  return DeviceMesh::open(world_of(ctx), axes, ctx.deadline()).value();
}

LinearOptions linear_of(int64_t in, int64_t out) {
  return {.in_features = in, .out_features = out, .weight_init = {}};
}

// Three layers whose pieces are uneven on two ranks and on four; the last may be left out.
class Layers final : public Module {
 public:
  explicit Layers(bool uses_last = true)
      : Module("Layers"),
        first_(add_module<Linear>("first", linear_of(3, 5))),
        second_(add_module<Linear>("second", linear_of(5, 7))),
        last_(add_module<Linear>("last", linear_of(7, 7))),
        uses_last_(uses_last) {}
  Linear& second() { return second_; }

 protected:
  Tensor compute(const Tensor& input) override {
    const Tensor x = second_(tanh(first_(input)));
    return uses_last_ ? last_(tanh(x)) : x;
  }

 private:
  Linear& first_;
  Linear& second_;
  Linear& last_;
  bool uses_last_;
};

Tensor batch_of(int rank) { return add(view(arange(6, DType::kF32), {2, 3}), rank * 0.5); }

void train_step(Module& model, Optimizer& optimizer, int rank) {
  backward(sum(to(model(batch_of(rank)), DType::kF32)));
  optimizer.step();
  optimizer.zero_grad();
  for (const fsdp::NamedShard& shard : fsdp::sharded_parameters(model))
    set_grad(shard.param->sharded, {});
}

std::vector<NamedTensor> locals_of(Module& model) {
  std::vector<NamedTensor> locals;
  for (const fsdp::NamedShard& shard : fsdp::sharded_parameters(model))
    locals.push_back({shard.name, shard.param->local});
  return locals;
}

// pytorch#163130: what was read before the first step was saved long after it.
TEST(ReportedStates, AStateReadBeforeTheFirstStepIsWhatIsTrained) {
  for (const bool is_meta : {false, true}) {
    for (const std::optional<DType> dtype : {std::optional<DType>(), {DType::kBF16}}) {
      SCOPED_TRACE(fmt::format("meta {}, bf16 {}", is_meta, dtype.has_value()));
      run_ranks(2, [&](RankContext& ctx) {
        std::unique_ptr<Layers> model;
        {
          const DeviceGuard device(is_meta ? kMetaDevice : kCpuDevice);
          model = std::make_unique<Layers>();
        }
        if (!is_meta) model->reset_parameters(3);
        fsdp::Options options{.mesh = mesh_of(ctx, {{"fsdp", 2}})};
        options.mixed_precision.param_dtype = dtype;
        fsdp::fully_shard(model->second(), options);
        fsdp::fully_shard(*model, options);
        const std::vector<NamedTensor> state = model->state();
        if (is_meta) fsdp::init_parameters(*model, 3);
        std::vector<Tensor> initial;
        for (const NamedTensor& named : state) initial.push_back(clone(local_tensor(named.tensor)));
        const std::vector<NamedTensor> locals = locals_of(*model);
        Sgd optimizer(locals, {.lr = 0.1});
        for (int step = 0; step < 3; ++step) train_step(*model, optimizer, ctx.group_rank());
        ASSERT_EQ(state.size(), 6u);
        for (size_t i = 0; i < state.size(); ++i) {
          EXPECT_EQ(state[i].name, locals[i].name);
          EXPECT_TRUE(equal(local_tensor(state[i].tensor), detach(locals[i].tensor)));
          EXPECT_FALSE(equal(local_tensor(state[i].tensor), initial[i])) << state[i].name;
        }
        const std::vector<NamedTensor> after = model->state();
        for (size_t i = 0; i < state.size(); ++i)
          EXPECT_TRUE(after[i].tensor.is_same(state[i].tensor)) << state[i].name;
      });
    }
  }
}

// The same where the state is read between passes, while parameters stay gathered: after an
// evaluation, before a backward, and between microbatches.
TEST(ReportedStates, AStateReadWhileParametersAreGatheredIsOfThePiecesToo) {
  for (const bool copies : {false, true}) {
    run_ranks(2, [&](RankContext& ctx) {
      Layers model;
      model.reset_parameters(3);
      fsdp::Options options{.mesh = mesh_of(ctx, {{"fsdp", 2}}), .reshard_after_forward = false};
      if (copies) options.mixed_precision.param_dtype = DType::kBF16;
      fsdp::fully_shard(model.second(), options);
      fsdp::Handle root = fsdp::fully_shard(model, options);
      std::vector<std::vector<NamedTensor>> states;
      {
        const NoGradGuard no_grad;
        model(batch_of(ctx.group_rank()));
        states.push_back(model.state());
      }
      Sgd optimizer(locals_of(model), {.lr = 0.1});
      root.set_requires_gradient_sync(false);
      root.set_reshard_after_backward(false);
      const Tensor output = model(batch_of(ctx.group_rank()));
      states.push_back(model.state());
      backward(sum(to(output, DType::kF32)));
      states.push_back(model.state());
      EXPECT_EQ(root.groups()[0]->state(), fsdp::ParamGroup::State::kUnsharded);
      root.set_requires_gradient_sync(true);
      root.set_reshard_after_backward(true);
      train_step(model, optimizer, ctx.group_rank());
      const std::vector<NamedTensor> locals = locals_of(model);
      for (const std::vector<NamedTensor>& state : states) {
        for (size_t i = 0; i < state.size(); ++i) {
          ASSERT_TRUE(is_dtensor(state[i].tensor)) << state[i].name;
          EXPECT_TRUE(equal(local_tensor(state[i].tensor), detach(locals[i].tensor)));
        }
      }
    });
  }
}

// Bytes that are nan in every dtype, in blocks of all the sizes that small models use.
void poison(Allocator& allocator) {
  std::vector<std::pair<void*, int64_t>> blocks;
  for (int64_t nbytes = 16; nbytes <= 4096; nbytes += nbytes < 512 ? 16 : 512) {
    for (int i = 0; i < 4; ++i) blocks.emplace_back(allocator.allocate(nbytes), nbytes);
  }
  for (const auto& [data, nbytes] : blocks) {
    std::memset(data, 0xff, static_cast<size_t>(nbytes));
    allocator.deallocate(data, nbytes);
  }
}

struct Buffers {
  const char* name;
  fsdp::MixedPrecision precision = {};
  bool has_replicas = false;
  bool accumulates = false;
  int prefetch = 0;
};

// Megatron-LM#4609: gradients began on what gathers had left in their buffer.
TEST(ReportedStates, GradientsDoNotBeginOnLeftoversOfAnyBuffer) {
  for (const bool uses_last : {true, false}) {
    Layers whole(uses_last);
    whole.reset_parameters(3);
    for (int rank = 0; rank < 4; ++rank) backward(div(sum(whole(batch_of(rank))), 4));
    std::map<std::string, Tensor> expected;
    for (const NamedTensor& named : whole.named_parameters())
      expected[named.name] = grad_of(named.tensor);
    for (const Buffers& how :
         {Buffers{"plain"}, Buffers{"copied", {.param_dtype = DType::kBF16}},
          Buffers{"f32 sums", {.param_dtype = DType::kBF16, .reduce_dtype = DType::kF32}},
          Buffers{"replicas", {}, true}, Buffers{"accumulated", {}, true, true},
          Buffers{"ahead", {.param_dtype = DType::kBF16}, false, true, 2}}) {
      SCOPED_TRACE(fmt::format("{}, last {}", how.name, uses_last));
      run_ranks(4, [&](RankContext& ctx) {
        Layers model(uses_last);
        model.reset_parameters(3);
        fsdp::Options options{.mesh = how.has_replicas
                                          ? mesh_of(ctx, {{"replicate", 2}, {"fsdp", 2}})
                                          : mesh_of(ctx, {{"fsdp", 4}})};
        options.mixed_precision = how.precision;
        options.prefetch = how.prefetch;
        fsdp::fully_shard(model.second(), options);
        fsdp::Handle root = fsdp::fully_shard(model, options);
        const int microbatches = how.accumulates ? 2 : 1;
        for (int round = 0; round < 3; ++round) {
          for (int micro = 0; micro < microbatches; ++micro) {
            poison(cpu_allocator());
            poison(ctx.group().communication_allocator());
            root.set_requires_all_reduce(micro + 1 == microbatches);
            const Tensor output = model(batch_of(ctx.group_rank()));
            poison(cpu_allocator());
            poison(ctx.group().communication_allocator());
            backward(div(sum(to(output, DType::kF32)), microbatches));
          }
          for (const fsdp::NamedShard& shard : fsdp::sharded_parameters(model)) {
            const ShardBox& box = shard.param->boxes[0].box;
            const Tensor want = expected.at(shard.name);
            const Tensor got = grad_of(shard.param->local);
            ASSERT_EQ(got.defined(), want.defined()) << shard.name;
            set_grad(shard.param->local, {});
            set_grad(shard.param->sharded, {});
            if (!got.defined() || got.numel() == 0) continue;
            const Tensor rows = narrow(want, 0, box.offsets[0], box.sizes[0]);
            const double tolerance = how.precision.param_dtype ? 3e-2 : 1e-5;
            EXPECT_LT(amax(abs(sub(rows, got))).item(), tolerance * amax(abs(want)).item())
                << shard.name;
          }
        }
      });
    }
  }
}

std::unique_ptr<Gpt> meta_gpt() {
  const DeviceGuard meta(kMetaDevice);
  return std::make_unique<Gpt>(
      GptConfig{.vocab_size = 19, .max_positions = 5, .dim = 6, .layers = 2, .heads = 2});
}

// Megatron-LM#6799: with replicas, and twice, it is what one process begins with.
TEST(ReportedStates, InitialValuesDoNotDependOnTheArrangement) {
  Gpt whole(GptConfig{.vocab_size = 19, .max_positions = 5, .dim = 6, .layers = 2, .heads = 2});
  whole.reset_parameters(11);
  std::map<std::string, Tensor> expected;
  for (const NamedTensor& named : whole.named_parameters())
    expected[named.name] = detach(named.tensor);
  for (const int replicas : {1, 2, 4}) {
    run_ranks(4, [&](RankContext& ctx) {
      const std::unique_ptr<Gpt> model = meta_gpt();
      const MeshRef mesh = mesh_of(ctx, {{"replicate", replicas}, {"fsdp", 4 / replicas}});
      const fsdp::Options options{.mesh = mesh->slice({"replicate", "fsdp"})};
      fsdp::fully_shard(model->module_at("h.1"), options);
      fsdp::fully_shard(*model, options);
      for (int round = 0; round < 2; ++round) {
        fsdp::init_parameters(*model, 11);
        for (const fsdp::NamedShard& shard : fsdp::sharded_parameters(*model)) {
          const ShardBox& box = shard.param->boxes[0].box;
          const Tensor rows =
              contiguous(narrow(expected.at(shard.name), 0, box.offsets[0], box.sizes[0]));
          EXPECT_TRUE(equal(rows, detach(shard.param->local))) << shard.name;
        }
      }
    });
  }
}

// pytorch#104189: a parameter that nobody gave values is named as the whole model knows it.
TEST(ReportedStates, AParameterWithoutValuesDeepInsideIsNamedFromTheRoot) {
  run_ranks(2, [](RankContext& ctx) {
    Sequential model;
    model.append<Linear>(linear_of(3, 3));
    Sequential& inner = model.append<Sequential>();
    inner.append<Linear>(linear_of(3, 3));
    {
      const DeviceGuard meta(kMetaDevice);
      inner.append<Linear>(linear_of(3, 3));
    }
    model.module_at("0").reset_parameters(1);
    inner.module_at("0").reset_parameters(1);
    const fsdp::Options options{.mesh = mesh_of(ctx, {{"fsdp", 2}})};
    for (const char* layer : {"0", "1.0", "1.1"})
      fsdp::fully_shard(model.module_at(layer), options);
    fsdp::fully_shard(model, options);
    EXPECT_ERROR(model(ones({2, 3})), ErrorCode::kFailedPrecondition,
                 HasSubstr("parameter 1.1.weight of group 1.1 was built on the meta device"));
    fsdp::init_parameters(model, 1);
    EXPECT_EQ(model(ones({2, 3})).sizes()[1], 3);
  });
}

// A table that is computed when the module is made.
class WithTable final : public Module {
 public:
  WithTable() : Module("WithTable") {
    register_parameter("weight", weight_, empty({3}), InitSpec::ones());
    register_buffer("table", table_, full({3}, 2.0));
  }
  Tensor& table() { return table_; }

 protected:
  Tensor compute(const Tensor& input) override { return mul(mul(input, weight_), table_); }

 private:
  Tensor weight_, table_;
};

// pytorch#90465: parameters got their values, and what was computed beside them stayed as it was.
TEST(ReportedStates, ABufferThatStayedOnTheMetaDeviceIsNamedFromTheRoot) {
  run_ranks(2, [](RankContext& ctx) {
    Sequential model;
    WithTable* inner = nullptr;
    {
      const DeviceGuard meta(kMetaDevice);
      inner = &model.append<Sequential>().append<WithTable>();
    }
    const fsdp::Options options{.mesh = mesh_of(ctx, {{"fsdp", 2}})};
    fsdp::fully_shard(*inner, options);
    fsdp::fully_shard(model, options);
    fsdp::init_parameters(model, 1);
    EXPECT_ERROR(model(ones({2, 3})), ErrorCode::kFailedPrecondition,
                 HasSubstr("buffer 0.0.table was built on the meta device and has no values"));
    inner->table() = full({3}, 2.0);
    EXPECT_TRUE(equal(detach(model(ones({2, 3}))), full({2, 3}, 2.0)));
  });
}

// Pieces that were replaced by wholes: what was written into these trained nothing.
TEST(ReportedStates, PiecesAreNotReplacedByWholes) {
  run_ranks(2, [](RankContext& ctx) {
    Layers model;
    model.reset_parameters(3);
    const fsdp::Options options{.mesh = mesh_of(ctx, {{"fsdp", 2}})};
    fsdp::fully_shard(model.second(), options);
    for (Module* module : {static_cast<Module*>(&model), static_cast<Module*>(&model.second())}) {
      const std::string why = "is sharded; fsdp::init_parameters() gives it values";
      EXPECT_ERROR(module->to_empty(), ErrorCode::kFailedPrecondition, HasSubstr(why));
      EXPECT_ERROR(module->to(DType::kF64), ErrorCode::kFailedPrecondition, HasSubstr(why));
      EXPECT_ERROR(module->reset_parameters(3), ErrorCode::kFailedPrecondition, HasSubstr(why));
    }
    model.module_at("first").to(DType::kF64);  // not sharded yet
  });
}

// torchtitan#4593: the whole was taken for twice the first piece. Ten rows over tp 2 are five on
// each, and these 3 and 2 over dp.
TEST(ReportedStates, FiveRowsOfATensorParallelPieceAreThreeAndTwo) {
  run_ranks(4, [](RankContext& ctx) {
    const MeshRef mesh = mesh_of(ctx, {{"dp", 2}, {"tp", 2}});
    Linear layer({.in_features = 1, .out_features = 10, .bias = false});
    const Tensor values = view(arange(10, DType::kF32), {10, 1});
    layer.load_state({{"weight", values}});
    parallel::parallelize_module(layer, mesh->slice({"tp"}), {{"", parallel::colwise()}});
    const fsdp::Handle root = fsdp::fully_shard(layer, {.mesh = mesh->slice({"dp"})});
    fsdp::ShardedParam& param = root.group().params()[0];
    const int64_t first = ctx.group_rank() % 2 * 5 + ctx.group_rank() / 2 * 3;
    const int64_t rows = ctx.group_rank() / 2 == 0 ? 3 : 2;
    EXPECT_TRUE(equal(detach(param.local), contiguous(narrow(values, 0, first, rows))));
    EXPECT_EQ(param.gathered_sizes, (DimVector{5, 1}));
    EXPECT_EQ(param.sizes, (DimVector{10, 1}));
    EXPECT_EQ(param.boxes[0].box, (ShardBox{{first, 0}, {rows, 1}}));
    EXPECT_TRUE(equal(full_tensor(detach(param.sharded)), values));
    root.group().unshard();
    EXPECT_TRUE(
        equal(detach(param.unsharded), contiguous(narrow(values, 0, ctx.group_rank() % 2 * 5, 5))));
    root.group().reshard();
  });
}
}  // namespace
}  // namespace muster
