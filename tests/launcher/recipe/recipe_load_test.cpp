#include <fmt/format.h>
#include <gmock/gmock.h>

#include <string>

#include "core/base/file_system.h"
#include "core/base/text.h"
#include "launcher/recipe/recipe.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::AllOf;
using testing::FailsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr ErrorCode kBad = ErrorCode::kBadRecipe;

Result<Recipe> parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_recipe(text, "a.yaml", overrides);
}

// A recipe with the one required key and the given lines after it.
Result<Recipe> with(const std::string& lines, const std::vector<std::string>& overrides = {}) {
  return parse("data: {files: [x.txt]}\n" + lines, overrides);
}

// How many lines the error has: one a fault.
size_t fault_count(const Result<Recipe>& recipe) {
  return recipe.ok() ? 0 : split(recipe.error().what(), '\n').size();
}

TEST(LoadRecipe, ReadsEveryKindOfValue) {
  const Result<Recipe> recipe = with(R"(
model: {layers: 6, dropout: 0.1, tie_embeddings: false}
fsdp: {reshard_after_forward: true, param_dtype: bf16}
optimizer: {kind: sgd, lr: 2e-5, betas: [0.9, 0.95], warmup: 10 steps, momentum: 0.9}
train: {steps: 50}
checkpoint: {every: 10 steps}
dist: {timeout: 1.5 s, backend: gloo}
)");
  ASSERT_OK(recipe);
  EXPECT_EQ(recipe->data.files, std::vector<std::string>{"x.txt"});
  EXPECT_EQ(recipe->model.layers, 6);
  EXPECT_DOUBLE_EQ(recipe->model.dropout, 0.1);
  EXPECT_FALSE(recipe->model.tie_embeddings);
  EXPECT_EQ(recipe->fsdp.reshard_after_forward, Recipe::Fsdp::Reshard::kTrue);
  EXPECT_EQ(recipe->fsdp.param_dtype, "bf16");
  EXPECT_EQ(recipe->optimizer.kind, Recipe::Optimizer::Kind::kSgd);
  EXPECT_EQ(recipe->optimizer.lr, 2e-5);
  EXPECT_EQ(recipe->optimizer.betas, (std::vector<double>{0.9, 0.95}));
  EXPECT_EQ(recipe->optimizer.warmup_steps, 10);
  EXPECT_EQ(recipe->train.steps, 50);
  EXPECT_EQ(recipe->checkpoint.every_steps, 10);
  EXPECT_EQ(recipe->dist.timeout, 1500ms);
  EXPECT_EQ(recipe->dist.backend, Recipe::Dist::Backend::kGloo);
}

TEST(LoadRecipe, AnAbsentFileIsNotFound) {
  EXPECT_THAT(load_recipe("/nonexistent/a.yaml"),
              FailsWith(ErrorCode::kNotFound, HasSubstr("/nonexistent/a.yaml")));
}

TEST(LoadRecipe, ReadsAFileFromDisk) {
  const TempDirectory folder;
  const std::string path = folder.file("b.yaml");
  ASSERT_OK(write_file_durably(real_file_system(), path, "data: {files: [x]}\ntrain: {seed: 3}\n"));
  const Result<Recipe> recipe = load_recipe(path);
  ASSERT_OK(recipe);
  EXPECT_EQ(recipe->train.seed, 3);
  EXPECT_EQ(recipe->source, path);
  EXPECT_EQ(recipe->origin_of("train.seed").text(), path + ":2:15");
}

TEST(LoadRecipe, AMissingRequiredKeyIsNamed) {
  EXPECT_THAT(parse(""), FailsWith(kBad, HasSubstr("a.yaml:1:1: data.files: must name")));
  EXPECT_THAT(parse("train: {seed: 1}\ndata: {seed: 2}\n"),
              FailsWith(kBad, HasSubstr("a.yaml:2:1: data.files")));
}

TEST(LoadRecipe, AnUnknownKeyIsRefusedWithASuggestion) {
  EXPECT_THAT(with("optimiser: {lr: 1}\n"),
              FailsWith(kBad, HasSubstr("a.yaml:2:1: unknown key \"optimiser\"; did you mean "
                                        "\"optimizer\"? [BadRecipe]")));
  EXPECT_THAT(with("model: {layrs: 2}\n"),
              FailsWith(kBad, HasSubstr("a.yaml:2:9: unknown key \"model.layrs\"; did you mean "
                                        "\"model.layers\"?")));
}

TEST(LoadRecipe, AKeyInTheWrongSectionIsSentToItsOwn) {
  EXPECT_THAT(with("train: {max_grad_norm: 1}\n"),
              FailsWith(kBad, HasSubstr("did you mean \"optimizer.max_grad_norm\"?")));
}

TEST(LoadRecipe, AllFaultsAreToldAtOnceInFileOrder) {
  const Result<Recipe> recipe = with(R"(model: {dim: wide, heads: 0}
optimizer:
  lr: -1
  kind: adam
  speed: 3
train: {deterministic: yes}
)",
                                     {"train.steps=ten", "nonsense", "~train.nothing"});
  ASSERT_FALSE(recipe.ok());
  const std::vector<std::string> lines = split(recipe.error().what(), '\n');
  ASSERT_EQ(lines.size(), 9u) << recipe.error().what();
  EXPECT_EQ(lines[0], "a.yaml:2:14: model.dim: must be a whole number; got \"wide\" [BadRecipe]");
  EXPECT_EQ(lines[1],
            "a.yaml:2:27: model.heads: must be at least 1 and at most 1024; got 0 [BadRecipe]");
  EXPECT_EQ(lines[2], "a.yaml:4:7: optimizer.lr: must be above 0; got -1 [BadRecipe]");
  EXPECT_EQ(lines[3],
            "a.yaml:5:9: optimizer.kind: must be one of adamw, sgd; got \"adam\"; did you mean "
            "\"adamw\"? [BadRecipe]");
  EXPECT_THAT(lines[4], HasSubstr("a.yaml:6:3: unknown key \"optimizer.speed\""));
  EXPECT_EQ(lines[5],
            "a.yaml:7:24: train.deterministic: must be true or false; got \"yes\" [BadRecipe]");
  EXPECT_THAT(lines[6], HasSubstr("command line: an override must be section.key=value"));
  EXPECT_THAT(lines[7], HasSubstr("command line: unknown key \"~train.nothing\""));
  EXPECT_THAT(lines[8], HasSubstr("command line: train.steps: must be a number of steps"));
}

TEST(LoadRecipe, DuplicateKeysAreErrorsAtBothLevels) {
  EXPECT_THAT(with("train: {seed: 1, seed: 2}\n"),
              FailsWith(kBad, HasSubstr("a.yaml:2:18: duplicate key \"seed\"; first set at line 2, "
                                        "column 9")));
  EXPECT_THAT(with("train: {seed: 1}\ntrain: {steps: 2}\n"),
              FailsWith(kBad, HasSubstr("a.yaml:3:1: duplicate key \"train\"")));
}

TEST(LoadRecipe, YamlHazardsOfNumbers) {
  EXPECT_EQ(with("optimizer: {lr: 2e-5}\n")->optimizer.lr, 2e-5);
  EXPECT_EQ(with("optimizer: {lr: 1}\n")->optimizer.lr, 1.0);
  EXPECT_THAT(with("train: {steps: 1_000}\n"), FailsWith(kBad, HasSubstr("got \"1_000\"")));
  EXPECT_THAT(with("model: {dim: 1_024}\n"), FailsWith(kBad, HasSubstr("write 1024")));
  EXPECT_THAT(with("model: {dim: 1e3}\n"), FailsWith(kBad, HasSubstr("write 1000")));
  EXPECT_THAT(with("model: {dim: 0128}\n"), FailsWith(kBad, HasSubstr("leading zeros")));
  EXPECT_THAT(with("model: {dim: 0x80}\n"), FailsWith(kBad, HasSubstr("whole number")));
  EXPECT_THAT(with("model: {dim: \"128\"}\n"), FailsWith(kBad, HasSubstr("quoted text \"128\"")));
  EXPECT_THAT(with("optimizer: {lr: .nan}\n"), FailsWith(kBad, HasSubstr("must be a number")));
  EXPECT_THAT(with("optimizer: {lr: .inf}\n"), FailsWith(kBad, HasSubstr("must be a number")));
  EXPECT_THAT(with("optimizer: {lr: inf}\n"), FailsWith(kBad, HasSubstr("must be a number")));
  EXPECT_THAT(with("train: {seed: 99999999999999999999}\n"),
              FailsWith(kBad, HasSubstr("whole number")));
}

TEST(LoadRecipe, OnlyTrueAndFalseAreBooleans) {
  for (const std::string word : {"yes", "no", "on", "off", "True", "1", "\"true\""}) {
    EXPECT_THAT(with("train: {deterministic: " + word + "}\n"),
                FailsWith(kBad, HasSubstr("must be true or false")))
        << word;
  }
}

TEST(LoadRecipe, WordsThatLookLikeBooleansAreTextsWhereTextIsAskedFor) {
  EXPECT_EQ(with("run: {name: no}\n")->run.name, "no");
  EXPECT_EQ(with("run: {name: 007}\n")->run.name, "007");
}

TEST(LoadRecipe, TabsMustNotIndent) {
  EXPECT_THAT(with("train:\n\tseed: 1\n"), FailsWith(kBad, HasSubstr("a.yaml:3:1: a tab")));
  EXPECT_THAT(with("train:\n  \tseed: 1\n"), FailsWith(kBad, HasSubstr("a.yaml:3:3: a tab")));
  EXPECT_THAT(with("train:\n  seed: 1\n \t\n"), FailsWith(kBad, HasSubstr("a.yaml:4:2: a tab")));
  EXPECT_OK(with("train:\n  seed:\t1\n"));
}

TEST(LoadRecipe, AnchorsAndAliasesShareAValue) {
  const Result<Recipe> recipe = with("model: {dim: &width 64, heads: 4}\ntrain: {steps: *width}\n");
  ASSERT_OK(recipe);
  EXPECT_EQ(recipe->train.steps, 64);
  EXPECT_EQ(recipe->origin_of("train.steps").text(), "a.yaml:3:16");
}

TEST(LoadRecipe, AnAliasInsideOfItselfIsAnErrorAndDoesNotHang) {
  EXPECT_THAT(parse("data: &d {files: [*d]}\n"), FailsWith(kBad, HasSubstr("alias")));
}

TEST(LoadRecipe, AliasesCannotBlowUp) {
  std::string text = "data: {files: [x]}\na0: &a0 [x, x]\n";
  for (int i = 1; i < 64; ++i) {
    text += fmt::format("a{}: &a{} [*a{}, *a{}]\n", i, i, i - 1, i - 1);
  }
  EXPECT_EQ(fault_count(parse(text)), 64u);  // one unknown section each, and it ends
}

TEST(LoadRecipe, MergeKeysTagsAndSecondDocumentsAreRefused) {
  EXPECT_THAT(with("train: {<<: {seed: 1}}\n"), FailsWith(kBad, HasSubstr("merge keys")));
  EXPECT_THAT(with("train: {seed: !!int 1}\n"), FailsWith(kBad, HasSubstr("tags")));
  EXPECT_THAT(with("---\ntrain: {seed: 1}\n"), FailsWith(kBad, HasSubstr("one document")));
}

TEST(LoadRecipe, BrokenYamlSaysWhere) {
  EXPECT_THAT(with("train: {seed: 1\nmodel: 3\n"), FailsWith(kBad, HasSubstr("a.yaml:")));
  EXPECT_THAT(parse("data: {files: [x]\n"), FailsWith(kBad, HasSubstr("a.yaml:2:1: ")));
}

TEST(LoadRecipe, SectionsAndValuesMustHaveTheRightShape) {
  EXPECT_THAT(parse("- a\n- b\n"),
              FailsWith(kBad, HasSubstr("a map of sections; got a list of 2")));
  EXPECT_THAT(with("model: gpt\n"), FailsWith(kBad, HasSubstr("model: must be a map of keys")));
  EXPECT_THAT(with("model: {dim: [1]}\n"), FailsWith(kBad, HasSubstr("got a list of 1")));
  EXPECT_THAT(with("model: {dim: }\n"), FailsWith(kBad, HasSubstr("model.dim: must have a value")));
  EXPECT_THAT(with("model: {dim: ~}\n"), FailsWith(kBad, HasSubstr("got nothing")));
  EXPECT_OK(with("model:\n"));
}

TEST(LoadRecipe, TimesNeedAUnit) {
  EXPECT_THAT(with("dist: {timeout: 30}\n"), FailsWith(kBad, HasSubstr("did you mean \"30 s\"?")));
  EXPECT_THAT(with("dist: {timeout: 30 parsecs}\n"), FailsWith(kBad, HasSubstr("30 parsecs")));
  EXPECT_THAT(with("dist: {timeout: 0 s}\n"), FailsWith(kBad, HasSubstr("above 0 s; got 0 s")));
}

TEST(LoadRecipe, CountsTakeTheirUnitOrNone) {
  EXPECT_EQ(with("train: {steps: 7}\n")->train.steps, 7);
  EXPECT_EQ(with("train: {steps: 7 steps}\n")->train.steps, 7);
  EXPECT_EQ(with("train: {steps: 1 step}\n")->train.steps, 1);
  EXPECT_THAT(with("train: {steps: 7 s}\n"), FailsWith(kBad, HasSubstr("number of steps")));
  EXPECT_THAT(with("train: {steps: 7steps}\n"), FailsWith(kBad, HasSubstr("number of steps")));
}

TEST(LoadRecipe, TheFormatVersionIsChecked) {
  EXPECT_OK(with("recipe: 1\n"));
  EXPECT_THAT(with("recipe: 2\n"), FailsWith(kBad, HasSubstr("format version must be 1; got")));
}

TEST(LoadRecipe, RulesBetweenKeysPointAtTheKeyThatWasSet) {
  EXPECT_THAT(with("model: {heads: 3}\n"),
              FailsWith(kBad, HasSubstr("a.yaml:2:16: model.dim: must be a multiple of "
                                        "model.heads; got dim 128 and heads 3, remainder 2")));
  EXPECT_THAT(with("optimizer: {warmup: 11}\ntrain: {steps: 10}\n"),
              FailsWith(kBad, HasSubstr("a.yaml:2:21: optimizer.warmup: must be at most "
                                        "train.steps; got 11 of 10")));
  EXPECT_THAT(with("model: {vocab: 255}\n"), FailsWith(kBad, HasSubstr("at least 256")));
  EXPECT_THAT(with("optimizer: {betas: [0.9]}\n"), FailsWith(kBad, HasSubstr("two numbers")));
  EXPECT_THAT(with("optimizer: {betas: [0.9, 1]}\n"), FailsWith(kBad, HasSubstr("below 1; got 1")));
  EXPECT_THAT(with("optimizer: {momentum: 0.9}\n"), FailsWith(kBad, HasSubstr("adamw")));
  EXPECT_THAT(with("mesh: {tp: 3}\n"),
              FailsWith(kBad, HasSubstr("must divide the heads; got tp 3")));
  EXPECT_THAT(with("mesh: {pp: 8}\n"),
              FailsWith(kBad, HasSubstr("every stage needs a block; got 4 layers for 8 stages")));
  EXPECT_THAT(with("pipeline: {stages_per_rank: 2}\n"), FailsWith(kBad, HasSubstr("interleaved")));
  EXPECT_THAT(with("model: {kind: llama, kv_heads: 3}\n"),
              FailsWith(kBad, HasSubstr("must divide model.heads; got kv_heads 3 and heads 4")));
  EXPECT_THAT(with("model: {kind: llama, dropout: 0.1}\n"),
              FailsWith(kBad, HasSubstr("must be 0 for model.kind llama; got 0.1")));
  EXPECT_THAT(with("mesh: {fsdp: 0}\n"), FailsWith(kBad, HasSubstr("mesh.fsdp: must be -1")));
  EXPECT_THAT(with("train: {global_batch: 0}\n"), FailsWith(kBad, HasSubstr("global_batch")));
}

TEST(LoadRecipe, ASizeThatTheOtherKindOfModelHasIsRefusedNotIgnored) {
  for (const char* key : {"kv_heads: 2", "mlp_dim: 64", "rope_theta: 5e5"}) {
    EXPECT_THAT(with(fmt::format("model: {{kind: gpt, {}}}\n", key)),
                FailsWith(kBad, HasSubstr("is for model.kind llama only")))
        << key;
    EXPECT_OK(with(fmt::format("model: {{kind: llama, {}}}\n", key))) << key;
  }
  EXPECT_THAT(with("model: {kind: llama, mlp_ratio: 2}\n"),
              FailsWith(kBad, HasSubstr("a.yaml:2:33: model.mlp_ratio: is for model.kind gpt only, "
                                        "llama has mlp_dim; got 2")));
  EXPECT_OK(with("model: {kind: llama, mlp_ratio: 4}\n"));  // as a printed recipe has it
}

TEST(LoadRecipe, TextsMustBeUtf8AsTheCheckpointsThatHoldThem) {
  for (const char* good :
       {"run.name=na\xc3\xafve", "run.name=\xf0\x9f\x90\xa6", "run.dir=\xe0\xa0\x80"})
    EXPECT_OK(with("", {good})) << good;
  for (const char* bad :
       {"run.name=n\xff", "run.dir=\xc3", "data.files=\xc0\x80", "run.name=\xed\xa0\x80",
        "run.name=\xf4\x90\x80\x80", "run.name=\xe0\x80\x80", "run.name=\xc3("})
    EXPECT_THAT(with("", {bad}), FailsWith(kBad, HasSubstr("must be UTF-8"))) << bad;
}

TEST(LoadRecipe, OverridesWinOverTheFileAndTheLastOneOverEarlierOnes) {
  const Result<Recipe> recipe =
      with("train: {seed: 1, steps: 5}\n", {"train.seed=2", "train.seed=3", "run.name=a=b"});
  ASSERT_OK(recipe);
  EXPECT_EQ(recipe->train.seed, 3);
  EXPECT_EQ(recipe->train.steps, 5);
  EXPECT_EQ(recipe->run.name, "a=b");
  EXPECT_EQ(recipe->origin_of("train.seed").text(), "command line");
  EXPECT_EQ(recipe->origin_of("train.steps").text(), "a.yaml:2:25");
  EXPECT_EQ(recipe->origin_of("train.threads").text(), "default");
}

TEST(LoadRecipe, OverridesReadTextRawAndListsEitherWay) {
  const Result<Recipe> recipe =
      with("", {"data.files=/a/*.txt", "data.exclude=[\"/a/b*\", c]", "optimizer.betas=[0.8,0.9]",
                "run.dir=/tmp/x: y#z", "optimizer.warmup=2 steps"});
  ASSERT_OK(recipe);
  EXPECT_EQ(recipe->data.files, std::vector<std::string>{"/a/*.txt"});
  EXPECT_EQ(recipe->data.exclude, (std::vector<std::string>{"/a/b*", "c"}));
  EXPECT_EQ(recipe->optimizer.betas, (std::vector<double>{0.8, 0.9}));
  EXPECT_EQ(recipe->run.dir, "/tmp/x: y#z");
  EXPECT_EQ(recipe->optimizer.warmup_steps, 2);
}

TEST(LoadRecipe, TildeGoesBackToTheDefault) {
  const Result<Recipe> recipe =
      with("train: {seed: 1, steps: 5}\nmodel: {dim: 64}\n", {"~train.seed", "~model"});
  ASSERT_OK(recipe);
  EXPECT_EQ(recipe->train.seed, 0);
  EXPECT_EQ(recipe->train.steps, 5);
  EXPECT_EQ(recipe->model.dim, 128);
  EXPECT_EQ(recipe->origin_of("train.seed").text(), "default");
  EXPECT_THAT(with("", {"~train.seed"}), FailsWith(kBad, HasSubstr("a.yaml does not set it")));
}

TEST(LoadRecipe, AWrongOverrideIsReportedAsTheCommandLine) {
  EXPECT_THAT(with("", {"optimizer.lrr=1"}),
              FailsWith(kBad, HasSubstr("command line: unknown key \"optimizer.lrr\"; did you mean "
                                        "\"optimizer.lr\"?")));
  EXPECT_THAT(with("", {"optimizer.lr="}),
              FailsWith(kBad, HasSubstr("command line: optimizer.lr: must have a value")));
  EXPECT_THAT(with("", {"optimizer.betas=[0.9"}),
              FailsWith(kBad, HasSubstr("command line: optimizer.betas: must be a YAML value")));
  EXPECT_THAT(with("", {"model.heads=3"}),
              FailsWith(kBad, HasSubstr("command line: model.dim: must be a multiple")));
}

TEST(LoadRecipe, AnOverrideRepairsAWrongValueOfTheFile) {
  EXPECT_OK(with("train: {steps: many}\n", {"train.steps=3"}));
  EXPECT_OK(with("train: {steps: many}\n", {"~train.steps"}));
}

TEST(LoadRecipe, NoTextCrashesTheParser) {
  const std::string valid =
      "recipe: 1\ndata: {files: [\"a\", b]}\nmodel:\n  dim: &d 64\ntrain: {steps: *d, seed: 1}\n";
  ASSERT_OK(parse(valid));
  // Every prefix, and every single byte replaced by each of the characters that YAML cares about.
  for (size_t length = 0; length < valid.size(); ++length) {
    static_cast<void>(parse(valid.substr(0, length)).ok());
    for (const char c : std::string("\0\t\n {}[]&*!|>'\"%@`#:-,?~\xff", 25)) {
      std::string broken = valid;
      broken[length] = c;
      const Result<Recipe> result = parse(broken);
      if (!result.ok()) {
        EXPECT_EQ(result.error().code(), kBad) << broken;
      }
    }
  }
  const Result<Recipe> deep = parse("data: " + std::string(100000, '['));
  EXPECT_THAT(deep, FailsWith(kBad, HasSubstr("a.yaml:")));
}
}  // namespace
}  // namespace muster
