// Random numbers are functions of the seed and the global place: no layout and no number of ranks
// changes them. Reported as pytorch#168058 and #146190.
#include "core/autograd/autograd.h"
#include "core/nn/layers.h"
#include "core/ops/attention/sdpa.h"
#include "core/ops/ops.h"
#include "dist/tensor/redistribute.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using Placements = std::vector<Placement>;
constexpr Placement kR = Placement::replicate();
constexpr Placement s(int32_t dim) { return Placement::shard(dim); }

struct Layout {
  std::vector<DeviceMesh::Axis> axes;
  std::vector<Placements> placements;
};

// Worlds of 1, 2, 3 and 4 ranks, lines and a square.
std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int world : {1, 2, 3, 4}) all.push_back({{{"tp", world}}, {{kR}, {s(0)}, {s(1)}}});
  all.push_back(
      {{{"dp", 2}, {"tp", 2}}, {{s(0), s(0)}, {s(0), s(1)}, {s(1), s(0)}, {kR, s(1)}, {s(0), kR}}});
  const Placement strided[] = {Placement::strided_shard(0, 2), Placement::strided_shard(1, 2)};
  all.push_back(
      {{{"dp", 2}, {"tp", 2}}, {{strided[0], s(0)}, {strided[1], s(1)}, {strided[0], kR}}});
  return all;
}

using Draw = std::function<Tensor(const Tensor& zeros)>;

// `draw` is given zeros of `sizes` under every layout, after the same seed.
void expect_same_in_every_layout(const std::string& name, Dims sizes, DType dtype,
                                 const Draw& draw) {
  manual_seed(11);
  const Tensor expected = detach(draw(zeros(sizes, dtype)));
  for (const Layout& layout : layouts()) {
    int world = 1;
    for (const DeviceMesh::Axis& axis : layout.axes) world *= axis.size;
    testing::run_ranks(world, [&](testing::RankContext& ctx) {
      const MeshRef mesh = testing::mesh_of(ctx, layout.axes);
      for (const Placements& placements : layout.placements) {
        manual_seed(11);
        const Tensor actual =
            full_tensor(draw(distribute_tensor(zeros(sizes, dtype), mesh, placements)));
        ASSERT_EQ(to_vector<double>(to(contiguous(detach(actual)), DType::kF64)),
                  to_vector<double>(to(contiguous(expected), DType::kF64)))
            << name << " on " << mesh->describe() << " as " << to_string(placements);
      }
    });
  }
}

TEST(RandomLayout, FillsAreTheSameGlobalTensor) {
  const std::pair<const char*, Draw> fills[] = {
      {"uniform_", [](const Tensor& x) { return uniform_(x); }},
      {"normal_", [](const Tensor& x) { return normal_(x, 1.0, 2.0); }},
      {"bernoulli_", [](const Tensor& x) { return bernoulli_(x, 0.3); }},
      {"exponential_", [](const Tensor& x) { return exponential_(x); }},
      {"rand_like", [](const Tensor& x) { return rand_like(x); }},
      {"randn_like", [](const Tensor& x) { return randn_like(x); }},
      {"bernoulli", [](const Tensor& x) { return bernoulli(add(x, 0.4)); }},
  };
  for (const auto& [name, fill] : fills) {
    expect_same_in_every_layout(name, {8, 8}, DType::kF32, fill);
    expect_same_in_every_layout(name, {5, 3}, DType::kF32, fill);  // uneven, and empty on 4 ranks
  }
}

// A module whose parameters lie anyhow starts as one process starts it.
TEST(RandomLayout, InitialParametersAreThoseOfOneProcess) {
  Linear whole({.in_features = 3, .out_features = 5});
  whole.reset_parameters(7);
  for (const Layout& layout : layouts()) {
    int world = 1;
    for (const DeviceMesh::Axis& axis : layout.axes) world *= axis.size;
    testing::run_ranks(world, [&](testing::RankContext& ctx) {
      const MeshRef mesh = testing::mesh_of(ctx, layout.axes);
      for (const Placements& placements : layout.placements) {
        Linear cut({.in_features = 3, .out_features = 5});
        for (const TensorSlot& slot : cut.parameter_slots()) {
          Placements fitting = placements;
          for (Placement& p : fitting) {
            if (p.is_shard_of(1) && slot.tensor->ndim() == 1) p = kR;
          }
          *slot.tensor =
              requires_grad_(distribute_tensor(zeros(slot.tensor->sizes()), mesh, fitting));
        }
        cut.reset_parameters(7);
        for (size_t i = 0; i < 2; ++i) {
          EXPECT_EQ(to_vector<float>(full_tensor(detach(cut.parameters()[i]))),
                    to_vector<float>(whole.parameters()[i]))
              << to_string(placements);
        }
      }
    });
  }
}

TEST(RandomLayout, ASecondDrawGoesOnWhereTheFirstEnded) {
  expect_same_in_every_layout("two draws", {5, 3}, DType::kF64, [](const Tensor& x) {
    return add(rand_like(x), mul(randn_like(x), 10));
  });
}

TEST(RandomLayout, DropoutHidesTheSameElementsForwardAndBackward) {
  expect_same_in_every_layout("dropout", {7, 6}, DType::kF64, [](const Tensor& x) {
    const Tensor leaf = requires_grad_(add(x, 1));
    const Tensor y = dropout(leaf, 0.4);
    backward(sum(y));
    return add(detach(y), mul(grad_of(leaf), 100));
  });
}

// Attention draws one number for each query and key of each head.
TEST(RandomLayout, AttentionDropsTheSameWeightsWhateverIsCut) {
  expect_same_in_every_layout("attention", {3, 4, 5, 2}, DType::kF64, [](const Tensor& x) {
    SdpaOptions options;
    options.dropout_p = 0.5;
    const Tensor q = add(x, 1);
    return scaled_dot_product_attention(q, q, q, options);
  });
}
}  // namespace
}  // namespace muster
