// PyTorch's DeviceMesh, script by script and rank by rank, on a backend without peers.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "dist/backend/fake/fake_backend.h"
#include "dist/mesh/device_mesh.h"
#include "tests/support/golden_case.h"
#include "tests/support/matchers.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using Json = nlohmann::json;

std::shared_ptr<ProcessGroup> fake_world(int rank, int world) {
  ProcessGroup::Options options;
  options.group_rank = rank;
  for (int i = 0; i < world; ++i) options.global_ranks.push_back(i);
  return std::make_shared<ProcessGroup>(std::move(options),
                                        std::make_unique<FakeBackend>(rank, world));
}

Tensor full_of(int64_t value) {
  Tensor x = empty_from_spec(TensorSpec::contiguous(DimVector{1}, DType::kI64));
  *x.data<int64_t>() = value;
  return x;
}

void flatten_ranks(const Json& ranks, std::vector<int>& out) {
  if (ranks.is_number()) return out.push_back(ranks.get<int>());
  for (const Json& part : ranks) flatten_ranks(part, out);
}

// A value that all ranks share, or one for each.
const Json& of_rank(const Json& result, const char* key, int rank) {
  return result[key][static_cast<size_t>(rank)];
}

void check_mesh(const DeviceMesh& mesh, const Json& result, int rank) {
  ASSERT_EQ(result["shape"].size(), static_cast<size_t>(mesh.num_axes()));
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const auto i = static_cast<size_t>(axis);
    EXPECT_EQ(mesh.axes()[i].size, result["shape"][i].get<int>());
    EXPECT_EQ(mesh.axes()[i].name, result["names"][i].get<std::string>());
    // There a group is in ascending order whatever the mesh says; here in the order of the mesh.
    std::vector<int> members = mesh.group(axis)->global_ranks();
    EXPECT_EQ(mesh.group(axis)->group_rank(), mesh.coordinate()[i]);
    EXPECT_EQ(members[static_cast<size_t>(mesh.coordinate()[i])], rank);
    std::sort(members.begin(), members.end());
    EXPECT_EQ(members, of_rank(result, "groups", rank)[i].get<std::vector<int>>());
  }
  EXPECT_EQ(mesh.coordinate(), of_rank(result, "coordinate", rank).get<std::vector<int>>());
  std::vector<int> ranks;
  flatten_ranks(of_rank(result, "ranks", rank), ranks);
  EXPECT_EQ(mesh.global_ranks(), ranks);
}

class Script {
 public:
  Script(const Json& golden, int rank)
      : golden_(golden), rank_(rank), world_(fake_world(rank, golden["world"].get<int>())) {}

  // The number of steps that were compared.
  int run() {
    for (const Json& step : golden_["steps"]) {
      SCOPED_TRACE(step.dump());
      const auto name = step[0].get<std::string>();
      const Result<void> made = testing::thrown_by([&] { meshes_[name] = make(step); });
      if (made.ok() && !meshes_[name]) {
        meshes_.erase(name);  // another kind of step, or one upon it
        continue;
      }
      compare(name, made);
      ++compared_;
    }
    return compared_;
  }

 private:
  MeshRef find(const Json& name) const {
    const auto at = meshes_.find(name.get<std::string>());
    return at == meshes_.end() ? nullptr : at->second;
  }

  // Null for steps that muster has no call for, or that this rank has no part in.
  MeshRef make(const Json& step) {
    const auto kind = step[1].get<std::string>();
    if (kind == "init" || kind == "mesh") return make_root(step, kind == "mesh");
    if (kind == "concatenate") {
      std::vector<MeshRef> slices;
      for (const Json& one : step[2]) slices.push_back(find(one));
      return DeviceMesh::concatenate(slices);
    }
    if (kind != "slice" && kind != "flatten" && kind != "unflatten" && kind != "from_group") {
      return nullptr;
    }
    const MeshRef from = find(step[2]);
    return from ? make_from(step, kind, *from) : nullptr;
  }

  // Over all ranks, or over a tensor of ranks: a group in that order, arranged.
  MeshRef make_root(const Json& step, bool is_told_ranks) {
    if (step[3].is_null()) return nullptr;
    std::vector<int> sizes, members;
    if (is_told_ranks) {
      flatten_ranks(step[2], members);
      for (const Json* level = &step[2]; level->is_array(); level = &level->front()) {
        sizes.push_back(static_cast<int>(level->size()));
      }
      if (std::find(members.begin(), members.end(), rank_) == members.end()) return nullptr;
    } else {
      sizes = step[2].get<std::vector<int>>();
    }
    if (sizes.size() != step[3].size()) return nullptr;
    std::vector<DeviceMesh::Axis> axes;
    for (size_t i = 0; i < sizes.size(); ++i) {
      axes.push_back({step[3][i].get<std::string>(), sizes[i]});
    }
    std::shared_ptr<ProcessGroup> ranks = world_;
    if (is_told_ranks) {
      ranks = world_->subgroup(step[0].get<std::string>(), members, deadline_).value();
    }
    return DeviceMesh::open(ranks, axes, deadline_).value();
  }

  MeshRef make_from(const Json& step, const std::string& kind, const DeviceMesh& from) {
    if (kind == "slice") {
      const auto names = step[3].get<std::vector<std::string>>();
      // There a slice by the name of a flattened mesh finds that one.
      const bool is_flat = std::any_of(names.begin(), names.end(),
                                       [&](const auto& name) { return flat_.contains(name); });
      return names.empty() || is_flat ? nullptr : from.slice(names);
    }
    if (kind == "flatten") {
      const auto name = step[3].is_null() ? std::string() : step[3].get<std::string>();
      MeshRef flat = from.flatten(name, deadline_).value();
      flat_.insert(flat->axes()[0].name);
      return flat;
    }
    if (kind == "from_group") {
      const auto axis = step[3].get<std::string>();
      const auto& group = from.group(axis);
      return DeviceMesh::open(group, {{axis, group->world_size()}}, deadline_).value();
    }
    std::vector<DeviceMesh::Axis> parts;
    for (size_t i = 0; i < step[4].size(); ++i) {
      parts.push_back({step[5][i].get<std::string>(), step[4][i].get<int>()});
    }
    const std::string axis =
        step[3].is_string() ? step[3].get<std::string>() : from.axes()[step[3].get<size_t>()].name;
    return from.unflatten(axis, parts, deadline_).value();
  }

  void compare(const std::string& name, const Result<void>& made) {
    const Json& result = golden_["results"][name];
    if (!result.contains("error")) {
      ASSERT_OK(made);
      return check_mesh(*meshes_.at(name), result, rank_);
    }
    const auto says = result["says"].get<std::string>();
    // Axes in another order are a mesh here, with the right groups (checked below); and two
    // flattened meshes may have one name, as nothing is looked up by it.
    const bool is_allowed = says.find("ascending order") != std::string::npos ||
                            says.find("has been created before") != std::string::npos ||
                            says.starts_with("'");
    EXPECT_EQ(made.ok(), is_allowed) << says;
  }

  const Json& golden_;
  int rank_;
  std::shared_ptr<ProcessGroup> world_;
  std::map<std::string, MeshRef> meshes_;
  std::set<std::string> flat_;
  const Deadline deadline_ = Deadline::after(10s);
  int compared_ = 0;
};

TEST(DeviceMesh, AgreesWithGoldenScriptsOnEveryRank) {
  int compared = 0;
  for (const Json& golden : testing::GoldenFile::load("parallel/mesh").cases()) {
    for (int rank = 0; rank < golden["world"].get<int>(); ++rank) {
      SCOPED_TRACE(fmt::format("{} rank {}", golden["id"].get<std::string>(), rank));
      compared += Script(golden, rank).run();
    }
  }
  EXPECT_GT(compared, 300);
}

// What PyTorch's own text shows and its code refuses.
TEST(DeviceMesh, SlicesInAnyOrder) {
  for (const int rank : {0, 1, 4, 5}) {
    const MeshRef root = DeviceMesh::open(fake_world(rank, 8), {{"dp", 2}, {"pp", 2}, {"cp", 2}},
                                          Deadline::after(10s))
                             .value();
    const MeshRef turned = root->slice({"cp", "dp"});
    EXPECT_EQ(turned->global_ranks(), (std::vector<int>{0, 4, 1, 5}));
    EXPECT_EQ(turned->coordinate(), (std::vector<int>{rank % 2, rank / 4}));
    EXPECT_EQ(turned->group(0), root->group("cp"));
    EXPECT_EQ(turned->group(1), root->group("dp"));
    // The group of a flattened mesh is in the order of the mesh.
    const MeshRef flat = turned->flatten("", Deadline::after(10s)).value();
    EXPECT_EQ(flat->axes()[0].name, "cp_dp");
    EXPECT_EQ(flat->group(0)->global_ranks(), (std::vector<int>{0, 4, 1, 5}));
    EXPECT_EQ(flat->group(0)->group_rank(), flat->coordinate()[0]);
  }
}

TEST(DeviceMesh, UnflattenRefusesWrongSizesAndNamesTwice) {
  const MeshRef root =
      DeviceMesh::open(fake_world(5, 8), {{"pp", 2}, {"rest", 4}}, Deadline::after(10s)).value();
  const auto refused = [&](std::vector<DeviceMesh::Axis> parts, const char* fact) {
    EXPECT_THAT(root->unflatten("rest", std::move(parts), Deadline::after(10s)),
                testing::FailsWith(ErrorCode::kInvalidArgument, ::testing::HasSubstr(fact)));
  };
  refused({{"a", 3}, {"b", 2}}, "multiply to rest=4; got a=3, b=2");
  refused({}, "multiply to rest=4; got");
  refused({{"pp", 2}, {"b", 2}}, "distinct names");
  EXPECT_ERROR(static_cast<void>(root->unflatten("x", {{"a", 4}}, Deadline::after(10s))),
               ErrorCode::kNotFound, ::testing::HasSubstr("the axes are pp=2, rest=4"));
  // A part that spans the axis has its group; so have the other axes.
  const MeshRef same =
      root->unflatten("rest", {{"dp", 4}, {"tp", 1}}, Deadline::after(10s)).value();
  EXPECT_EQ(same->group("dp"), root->group("rest"));
  EXPECT_EQ(same->group("pp"), root->group("pp"));
  EXPECT_EQ(same->coordinate(), (std::vector<int>{1, 1, 0}));
}

// Two views of one world, as experts beside data and tensor parallel axes are laid out.
TEST(DeviceMesh, ViewsOfOneWorldReduceOnTheirOwnAxes) {
  testing::run_ranks(4, [](testing::RankContext& ctx) {
    const auto world = testing::world_of(ctx);
    const MeshRef root = DeviceMesh::open(world, {{"world", 4}}, ctx.deadline()).value();
    const MeshRef dense = root->unflatten("world", {{"dp", 2}, {"tp", 2}}, ctx.deadline()).value();
    const MeshRef experts = root->unflatten("world", {{"ep", 4}}, ctx.deadline()).value();
    EXPECT_EQ(experts->group("ep"), world);
    EXPECT_EQ(dense->group("dp")->global_ranks(),
              (std::vector<int>{ctx.group_rank() % 2, ctx.group_rank() % 2 + 2}));
    const MeshRef both = DeviceMesh::concatenate({dense->slice({"tp"}), dense->slice({"dp"})});
    EXPECT_EQ(both->global_ranks(), (std::vector<int>{0, 2, 1, 3}));
    for (const auto& [axis, total] :
         {std::pair{"dp", 2 + 2 * (ctx.group_rank() % 2)}, {"tp", ctx.group_rank() < 2 ? 1 : 5}}) {
      const Tensor x = full_of(ctx.group_rank());
      dense->group(axis)->run(dense->group(axis)->all_reduce(x));
      EXPECT_EQ(x.item_int(), total) << axis;
    }
  });
}

TEST(DeviceMesh, SlicesOfDifferentRootsAreNotJoined) {
  const auto open = [](const char* name) {
    return DeviceMesh::open(fake_world(0, 2), {{name, 2}}, Deadline::after(10s)).value();
  };
  const MeshRef a = open("a"), b = open("b");
  EXPECT_ERROR(DeviceMesh::concatenate({a, b}), ErrorCode::kInvalidArgument,
               ::testing::HasSubstr("slices of one root"));
  EXPECT_EQ(*DeviceMesh::concatenate({a->slice({"a"})}), *a);
}
}  // namespace
}  // namespace muster
