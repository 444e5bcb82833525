#include "train/ops_command.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/matchers.h"

namespace muster {
namespace {
using nlohmann::json;
using ::testing::HasSubstr;

CommandOutput run(std::vector<std::string> arguments) { return run_ops_command(arguments); }

TEST(OpsCommand, ListsEveryOperatorByItsSchema) {
  const CommandOutput listed = run({});
  EXPECT_EQ(listed.status, 0);
  EXPECT_THAT(listed.out, HasSubstr("rms_norm(Tensor"));
  const json all = json::parse(run({"--json"}).out);
  EXPECT_GT(all.size(), 100u);
  for (const json& op : all) {
    // What is missing of an operator is stated with a reason.
    if (!op.at("differentiable").get<bool>()) {
      EXPECT_NE(op.at("not_differentiable_because"), "") << op.at("name");
    }
    EXPECT_THAT(listed.out, HasSubstr(op.at("schema").get<std::string>()));
  }
}

TEST(OpsCommand, TellsWhatIsStatedOfOne) {
  const json mm = json::parse(run({"mm", "--json"}).out);
  EXPECT_EQ(mm.at("autocast"), "lower");
  EXPECT_EQ(mm.at("differentiable"), true);
  EXPECT_GE(mm.at("shard_rules").size(), 3u);
  EXPECT_THAT(run({"mm"}).out, HasSubstr("schema"));
}

TEST(OpsCommand, AnUnknownOperatorExits66WithTheNearestName) {
  const CommandOutput output = run({"rms_nrom"});
  EXPECT_EQ(output.status, 66);
  EXPECT_THAT(output.err, HasSubstr("did you mean \"rms_norm\"?"));
  EXPECT_EQ(run({"--verbose"}).status, 64);
}
}  // namespace
}  // namespace muster
