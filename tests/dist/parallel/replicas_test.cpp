#include "fsdp/replicas.h"

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "dist/parallel/models.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using testing::RankContext;
using testing::run_ranks;

struct Job {
  MeshRef mesh;
  std::unique_ptr<Gpt> model;
  std::vector<fsdp::NamedShard> shards;
};

Job open_job(RankContext& ctx, bool sequence) {
  Job job;
  const auto world = testing::world_of(ctx);
  job.mesh = DeviceMesh::open(world, {{"fsdp", 2}, {"tp", 2}}, ctx.deadline()).value();
  job.model = std::make_unique<Gpt>(
      GptConfig{.vocab_size = 11, .max_positions = 4, .dim = 8, .layers = 1, .heads = 2});
  job.model->reset_parameters(1);
  parallel::parallelize(*job.model, job.mesh->slice({"tp"}), {.sequence_parallel = sequence});
  fsdp::Options options;
  options.mesh = job.mesh->slice({"fsdp"});
  fsdp::fully_shard(*job.model, options);
  job.shards = fsdp::sharded_parameters(*job.model);
  return job;
}

void step(Job& job) {
  const int64_t row = job.mesh->coordinate()[0];
  const Tensor tokens = remainder(add(view(arange(8), {2, 4}), row), 11);
  backward(job.model->loss(tokens, tokens).sum);
}

TEST(ReplicaFaults, ACleanRunHasNone) {
  for (const bool sequence : {false, true}) {
    run_ranks(4, [&](RankContext& ctx) {
      Job job = open_job(ctx, sequence);
      EXPECT_TRUE(fsdp::find_replica_faults(job.shards).empty());
      step(job);
      EXPECT_TRUE(fsdp::find_replica_faults(job.shards).empty());
    });
  }
}

// D17, G4: each rank has seen its own tokens only, and nobody added the gradients up.
TEST(ReplicaFaults, AMissingReductionIsNamedWithItsAxisAndSize) {
  run_ranks(4, [](RankContext& ctx) {
    Job job = open_job(ctx, false);
    step(job);
    for (const fsdp::NamedShard& shard : job.shards) {
      if (shard.name != "h.0.ln_1.weight") continue;
      const Tensor share = clone(grad_of(shard.param->local));
      add_(share, 0.5 * job.mesh->coordinate()[1]);
      set_grad(shard.param->local, share);
    }
    const std::vector<fsdp::ReplicaFault> faults = fsdp::find_replica_faults(job.shards);
    ASSERT_EQ(faults.size(), 1u);
    EXPECT_EQ(faults[0].name, "h.0.ln_1.weight");
    EXPECT_EQ(faults[0].what, "gradient");
    EXPECT_EQ(faults[0].axis, "tp");
    EXPECT_NEAR(faults[0].max_difference, 0.5, 1e-6);
    EXPECT_NE(faults[0].describe().find("gradient differs along axis tp"), std::string::npos);
  });
}

TEST(ReplicaFaults, AWeightThatDriftedOnOneRankIsFound) {
  run_ranks(4, [](RankContext& ctx) {
    Job job = open_job(ctx, false);
    const NoGradGuard no_grad;
    for (const fsdp::NamedShard& shard : job.shards) {
      if (shard.name == "ln_f.bias" && job.mesh->coordinate()[1] == 1) {
        add_(shallow_detach(shard.param->local), 0x1p-20);
      }
    }
    const std::vector<fsdp::ReplicaFault> faults = fsdp::find_replica_faults(job.shards);
    ASSERT_EQ(faults.size(), 1u);
    EXPECT_EQ(faults[0].describe(),
              fmt::format("ln_f.bias: value differs along axis tp by up to {}", 0x1p-20));
  });
}
}  // namespace
}  // namespace muster
