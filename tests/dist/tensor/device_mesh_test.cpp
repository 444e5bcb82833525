#include "dist/mesh/device_mesh.h"

#include "dist/backend/fake/fake_backend.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
std::shared_ptr<ProcessGroup> fake_world(int rank, int size) {
  ProcessGroup::Options options;
  options.group_rank = rank;
  for (int r = 0; r < size; ++r) options.global_ranks.push_back(r);
  return std::make_shared<ProcessGroup>(options, std::make_unique<FakeBackend>(rank, size));
}

TEST(DeviceMesh, FillsRowMajorAndGroupsRanksAlongEachAxis) {
  const MeshRef mesh =
      DeviceMesh::open(fake_world(5, 8), {{"pp", 2}, {"fsdp", 2}, {"tp", 2}}, Deadline::never())
          .value();
  EXPECT_EQ(mesh->coordinate(), (std::vector<int>{1, 0, 1}));
  EXPECT_EQ(mesh->group("pp")->global_ranks(), (std::vector<int>{1, 5}));
  EXPECT_EQ(mesh->group("fsdp")->global_ranks(), (std::vector<int>{5, 7}));
  EXPECT_EQ(mesh->group("tp")->global_ranks(), (std::vector<int>{4, 5}));
  EXPECT_EQ(mesh->group("tp")->group_rank(), 1);
}

TEST(DeviceMesh, SlicesShareGroupsAndMayReorderAxes) {
  const MeshRef mesh =
      DeviceMesh::open(fake_world(0, 8), {{"dp", 2}, {"pp", 2}, {"cp", 2}}, Deadline::never())
          .value();
  const MeshRef slice = mesh->slice({"cp", "dp"});
  EXPECT_EQ(slice->global_ranks(), (std::vector<int>{0, 4, 1, 5}));
  EXPECT_EQ(slice->group("dp"), mesh->group("dp"));
  EXPECT_EQ(slice->describe(), "mesh [cp=2, dp=2]");
}

TEST(DeviceMesh, AnAxisThatSpansTheWorldUsesItsGroup) {
  const auto world = fake_world(1, 4);
  const MeshRef mesh = DeviceMesh::open(world, {{"fsdp", 4}}, Deadline::never()).value();
  EXPECT_EQ(mesh->group(0), world);
}

TEST(DeviceMesh, RefusesWrongSizesAndNames) {
  const auto open = [](std::vector<DeviceMesh::Axis> axes) {
    return DeviceMesh::open(fake_world(0, 4), std::move(axes), Deadline::never());
  };
  EXPECT_THAT(open({{"fsdp", 2}, {"tp", 3}}),
              testing::FailsWith(
                  ErrorCode::kInvalidArgument,
                  ::testing::HasSubstr("6 ranks asked for, world size is 4; axes fsdp=2, tp=3")));
  EXPECT_THAT(
      open({{"a", 2}, {"a", 2}}),
      testing::FailsWith(ErrorCode::kInvalidArgument, ::testing::HasSubstr("distinct names")));
  const MeshRef mesh = open({{"fsdp", 4}}).value();
  EXPECT_ERROR(static_cast<void>(mesh->group("tp")), ErrorCode::kNotFound,
               ::testing::HasSubstr("the axes are fsdp=4"));
}

TEST(DeviceMesh, AxesOfRealRanksReduceOnTheirOwn) {
  testing::run_ranks(4, [](testing::RankContext& ctx) {
    const MeshRef mesh = testing::mesh_of(ctx, {{"dp", 2}, {"tp", 2}});
    const Tensor x = empty_from_spec(TensorSpec::contiguous({1}, DType::kI64));
    *x.data<int64_t>() = ctx.group_rank();
    mesh->group("tp")->run(mesh->group("tp")->all_reduce(x));
    EXPECT_EQ(x.item_int(), ctx.group_rank() < 2 ? 1 : 5);
    mesh->group("dp")->run(mesh->group("dp")->all_reduce(x));
    EXPECT_EQ(x.item_int(), 6);
  });
}
}  // namespace
}  // namespace muster
