#include "train/ckpt_command.h"

#include <nlohmann/json.hpp>

#include "tests/checkpoint/small_model.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using namespace checkpoint;  // NOLINT
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

CommandOutput run(std::vector<std::string> arguments) { return run_ckpt_command(arguments); }

class CkptCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    FileSystem& fs = real_file_system();
    for (const int64_t step : {1, 2}) save_model(fs, a_, step, 2)[0].value();
    save_model(fs, b_, 2, 3)[0].value();
  }
  void damage(const std::string& path) {
    FileSystem& fs = real_file_system();
    std::vector<std::byte> bytes = fs.read(path).value();
    bytes.back() ^= std::byte{1};
    const auto file = fs.create(path).value();
    file->append(bytes).value();
    file->close().value();
  }
  TempDirectory dir_;
  std::string a_ = dir_.file("a");
  std::string b_ = dir_.file("b");
};

TEST_F(CkptCommand, LsListsNewestFirst) {
  const CommandOutput output = run({"ls", a_});
  EXPECT_EQ(output.status, 0);
  EXPECT_THAT(output.out, MatchesRegex("step-00000002 .* 2 ranks  10 tensors .* digest [0-9a-f]+\n"
                                       "step-00000001 .*\n"));
  const json object = json::parse(run({"ls", a_, "--json"}).out);
  EXPECT_EQ(object["checkpoints"][0]["step"], 2);
  EXPECT_EQ(object["checkpoints"][1]["ok"], true);
}

TEST_F(CkptCommand, JsonHoldsNamesOfAnyBytes) {
  const CommandOutput output = run({"ls", dir_.file("none\xff"), "--json"});
  EXPECT_EQ(output.status, 66);
  EXPECT_EQ(json::parse(output.out)["ok"], false);
}

TEST_F(CkptCommand, VerifyNamesTheDamageAndFails) {
  EXPECT_EQ(run({"verify", a_}).status, 0);
  damage(a_ + "/step-00000002/rank-00001.safetensors");
  const CommandOutput output = run({"verify", a_});
  EXPECT_EQ(output.status, 66);
  EXPECT_THAT(output.out, HasSubstr("step-00000002  damaged in 1 place\n  tensor \""));
  EXPECT_THAT(output.out, HasSubstr("of rank-00001.safetensors must have checksum"));
  EXPECT_THAT(output.out, HasSubstr("step-00000001  ok"));
  const CommandOutput as_json = run({"verify", "--json", a_ + "/step-00000002"});
  EXPECT_EQ(as_json.status, 66);
  EXPECT_EQ(json::parse(as_json.out)["checkpoints"][0]["damages"][0]["file"],
            "rank-00001.safetensors");
}

TEST_F(CkptCommand, DigestIsTheSameForEveryLayout) {
  const CommandOutput of_a = run({"digest", a_});
  EXPECT_EQ(of_a.status, 0);
  EXPECT_EQ(of_a.out, run({"digest", b_}).out);
  EXPECT_THAT(of_a.out, HasSubstr("embed.weight       bf16  [37, 8] "));
  EXPECT_THAT(of_a.out, HasSubstr("all of step 2: "));
  EXPECT_NE(of_a.out, run({"digest", a_ + "/step-00000001"}).out);
  EXPECT_EQ(json::parse(run({"digest", a_, "--json"}).out)["tensors"].size(), 10u);
}

TEST_F(CkptCommand, DiffTellsEqualFromDifferent) {
  const CommandOutput equal = run({"diff", a_ + "/step-00000001", a_ + "/step-00000001"});
  EXPECT_EQ(equal.status, 0);
  EXPECT_EQ(equal.out, "equal: 10 tensors and all state\n");
  const CommandOutput different = run({"diff", a_ + "/step-00000001", a_});
  EXPECT_EQ(different.status, 1);
  EXPECT_THAT(different.out, HasSubstr("layer.0.weight: values: 384 of 384 elements differ"));
  EXPECT_THAT(different.out, HasSubstr("train/step: 1 -> 2\n"));
  const json object = json::parse(run({"diff", a_, b_, "--json"}).out);
  EXPECT_EQ(object["tensors"].size(), 0u);
  EXPECT_EQ(object["state"][0]["path"], "rank/2");
}

TEST_F(CkptCommand, ErrorsHaveTheirExitStatus) {
  EXPECT_EQ(run({}).status, 64);
  EXPECT_EQ(run({"frobnicate"}).status, 64);
  EXPECT_EQ(run({"ls"}).status, 64);
  EXPECT_EQ(run({"diff", a_}).status, 64);
  EXPECT_EQ(run({"ls", "--nope", a_}).status, 64);
  EXPECT_EQ(run({"--help"}).status, 0);
  EXPECT_EQ(run({"ls", dir_.file("none")}).status, 66);
  damage(a_ + "/step-00000002/manifest.json");
  const CommandOutput output = run({"digest", a_ + "/step-00000002", "--json"});
  EXPECT_EQ(output.status, 66);
  EXPECT_THAT(output.err, HasSubstr("muster-tools ckpt: manifest: the last line"));
  EXPECT_EQ(json::parse(output.out)["code"], "Corruption");
}
}  // namespace
}  // namespace muster
