// PyTorch's DeviceMesh, script by script and rank by rank, on a backend without peers.
#include <nlohmann/json.hpp>
#include <set>

#include "dist/backend/fake/fake_backend.h"
#include "dist/mesh/device_mesh.h"
#include "tests/support/golden_case.h"
#include "tests/support/matchers.h"

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
    EXPECT_EQ(mesh.group(axis)->global_ranks(),
              of_rank(result, "groups", rank)[i].get<std::vector<int>>());
    EXPECT_EQ(mesh.group(axis)->group_rank(), of_rank(result, "local_ranks", rank)[i].get<int>());
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

  // Null for steps that muster has no call for.
  MeshRef make(const Json& step) {
    const auto kind = step[1].get<std::string>();
    const Deadline deadline = Deadline::after(10s);
    if (kind == "init") {
      if (step[3].is_null() || step[2].size() != step[3].size()) return nullptr;
      std::vector<DeviceMesh::Axis> axes;
      for (size_t i = 0; i < step[2].size(); ++i) {
        axes.push_back({step[3][i].get<std::string>(), step[2][i].get<int>()});
      }
      return DeviceMesh::open(world_, axes, deadline).value();
    }
    if (kind == "slice") {
      const MeshRef from = find(step[2]);
      const auto names = step[3].get<std::vector<std::string>>();
      // There a slice by the name of a flattened mesh finds that one.
      for (const std::string& one : names) flat_names_used_ |= flat_.contains(one);
      if (!from || names.empty() || flat_names_used_) return flat_names_used_ = false, nullptr;
      return from->slice(names);
    }
    if (kind == "flatten") {
      const MeshRef from = find(step[2]);
      if (!from) return nullptr;
      const auto name = step[3].is_null() ? std::string() : step[3].get<std::string>();
      MeshRef flat = from->flatten(name, deadline).value();
      flat_.insert(flat->axes()[0].name);
      return flat;
    }
    if (kind == "concatenate") {
      std::vector<MeshRef> slices;
      for (const Json& one : step[2]) slices.push_back(find(one));
      return DeviceMesh::concatenate(slices);
    }
    return nullptr;
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
  bool flat_names_used_ = false;
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
