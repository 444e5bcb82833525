// Where results lie and what an operator communicates, against PyTorch's table. Every difference is
// in known_layouts.txt, which is judged as a whole: see docs/deviations.md.
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "core/ops/ops.h"
#include "dist/tensor/redistribute.h"
#include "tests/dist/tensor/golden_op_calls.h"
#include "tests/support/golden_case.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using Json = nlohmann::json;

// all_reduce, all_gather, reduce_scatter, all_to_all
using Counts = std::array<uint64_t, 4>;

Counts counts_of(const ProcessGroup& group) {
  return {group.num_launched(CollectiveKind::kAllReduce),
          group.num_launched(CollectiveKind::kAllGather),
          group.num_launched(CollectiveKind::kReduceScatter),
          group.num_launched(CollectiveKind::kAllToAll)};
}

std::string text_of(const Counts& counts) {
  constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"};
  std::string text;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    if (!text.empty()) text += " + ";
    text += counts[i] == 1 ? kNames[i] : fmt::format("{} {}", counts[i], kNames[i]);
  }
  return text.empty() ? "nothing" : text;
}

Counts recorded(const Json& comm) {
  const auto count = [&](const char* name) { return comm.value(name, uint64_t{0}); };
  return {count("all_reduce"), count("all_gather_into_tensor"), count("reduce_scatter_tensor"), 0};
}

// "MaskPartial(sum)" is an open sum whose shares are rows of zeros elsewhere. What muster has no
// word for (norms of open powers, strided shards) stays as it is.
std::string placement_text(const std::string& recorded) {
  if (recorded == "MaskPartial(sum)") return "P";
  const auto placement = parse_placement(recorded);
  return placement.ok() ? to_string(placement.value()) : recorded;
}

struct Row {
  std::string theirs, ours;
  int cost = 0;  // ours less theirs, in elements sent relative to an all_gather
};

// A reduction moves everything twice, a gather or a reduction to shards once, an exchange half.
int cost_of(const Counts& counts) {
  return static_cast<int>(4 * counts[0] + 2 * counts[1] + 2 * counts[2] + counts[3]);
}

Row run_row(const Json& golden, const Json& row, const testing::DTensorCall& call,
            const MeshRef& mesh) {
  const auto& file = testing::GoldenFile::load("parallel/dtensor_ops");
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < golden["inputs"].size(); ++i) {
    const Placement placement = parse_placement(row["in"][i].get<std::string>()).value();
    inputs.push_back(testing::golden_placed(file.tensor(golden["inputs"][i]), mesh, placement));
  }
  const ProcessGroup& group = *mesh->group(0);
  const Counts before = counts_of(group);
  const std::vector<Tensor> outs = call(inputs);
  Counts counts = counts_of(group);
  for (size_t i = 0; i < counts.size(); ++i) counts[i] -= before[i];
  Row result;
  for (size_t i = 0; i < outs.size(); ++i) {
    result.ours += to_string(dtensor_spec(outs[i]).placements[0]) + " ";
    // The parts of a list lie alike: one is recorded.
    const Json& out = row["out"][std::min(i, row["out"].size() - 1)];
    result.theirs += placement_text(out.get<std::string>()) + " ";
  }
  const Counts theirs = recorded(row["comm"]);
  result.ours += "by " + text_of(counts);
  result.theirs += "by " + text_of(theirs);
  result.cost = cost_of(counts) - cost_of(theirs);
  return result;
}

struct Tally {
  int rows = 0;
  std::set<std::string> differences;
};

void run_case(const Json& golden, const MeshRef& mesh, Tally& tally) {
  const auto call = testing::golden_calls().find(testing::golden_call_name(golden));
  if (call == testing::golden_calls().end()) return;
  for (const Json& row : golden["table"]) {
    if (!row.contains("out")) continue;  // refused there
    const std::string what = golden["id"].get<std::string>() + " " + row["in"].dump();
    Row result;
    try {
      result = run_row(golden, row, call->second, mesh);
    } catch (const Error& error) {
      // An open sum written in place is refused: see golden_ops_test.cpp.
      const std::string text = error.what();
      if (text.find("no sharding rule lets it write") == std::string::npos) {
        tally.differences.insert(what + ": " + text);
      }
      continue;
    }
    ++tally.rows;
    if (result.ours == result.theirs) continue;
    tally.differences.insert(
        fmt::format("{:+} {}: {}; there {}", result.cost, what, result.ours, result.theirs));
  }
}

std::set<std::string> known_differences() {
  std::ifstream file(std::string(MUSTER_SOURCE_DIR) + "/tests/dist/tensor/known_layouts.txt");
  std::set<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') lines.insert(line);
  }
  return lines;
}

TEST(DTensorGolden, ResultsLieAndCommunicateAsRecordedOrAsKnown) {
  std::vector<Tally> tallies(2);
  testing::run_ranks(
      2,
      [&](testing::RankContext& ctx) {
        const MeshRef mesh = testing::mesh_of(ctx, {{"x", 2}});
        Tally& tally = tallies[static_cast<size_t>(ctx.group_rank())];
        for (const Json& golden : testing::GoldenFile::load("parallel/dtensor_ops").cases()) {
          if (golden.contains("table")) run_case(golden, mesh, tally);
        }
      },
      240s);
  EXPECT_GT(tallies[0].rows, 1100);
  EXPECT_EQ(tallies[0].differences, tallies[1].differences);
  const std::set<std::string> known = known_differences();
  for (const std::string& line : tallies[0].differences) {
    if (!known.contains(line)) ADD_FAILURE() << "not known: " << line;
  }
  for (const std::string& line : known) {
    if (!tallies[0].differences.contains(line)) ADD_FAILURE() << "no longer so: " << line;
  }
}
}  // namespace
}  // namespace muster
