#include "launcher/recipe/recipe.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <string>

#include "core/base/file_system.h"
#include "launcher/recipe/recipe_keys.h"
#include "launcher/recipe/yaml_values.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::ElementsAre;
using testing::FailsWith;
using ::testing::HasSubstr;

// tests/launcher/recipe/recipe_test.cpp is four levels below the root.
std::string source_path(const std::string& path) {
  std::string root = __FILE__;
  for (int level = 0; level < 4; ++level) root = path_parent(root);
  return path_join(root, path);
}

std::string file_text(const std::string& path) {
  return read_text(real_file_system(), source_path(path)).value();
}

Recipe parse(const std::string& lines, const std::vector<std::string>& overrides = {}) {
  return parse_recipe("data: {files: [x.txt]}\n" + lines, "a.yaml", overrides).value();
}

TEST(Recipe, WhatIsPrintedLoadsToAnEqualRecipe) {
  const Recipe plain = parse("");
  const Recipe rich = parse(
      "run: {name: \"a \\\"b\\\": #c\", dir: \"/tmp/x y\"}\n"
      "model: {dropout: 0.1, init_std: 0.012345678901234567}\n"
      "fsdp: {reshard_after_forward: false}\n"
      "optimizer: {lr: 1.2345678901234567e-5, betas: [0.1, 0.3333333333333333], warmup: 1}\n"
      "dist: {timeout: 1234567.891 us}\n",
      {"data.files=[a*b, \"no\", \"\", \"007\", \"~\", \"\\\\\\x01\", \"null\"]",
       "data.seed=9223372036854775807"});
  for (const Recipe& original : {plain, rich}) {
    for (const bool with_origins : {false, true}) {
      const std::string text = to_yaml(original, with_origins);
      const Result<Recipe> again = parse_recipe(text, "b.yaml");
      ASSERT_OK(again) << text;
      EXPECT_THAT(diff(original, *again), ::testing::IsEmpty()) << text;
      EXPECT_EQ(again->data.files, original.data.files);
      EXPECT_EQ(again->optimizer.lr, original.optimizer.lr);
      EXPECT_EQ(again->dist.timeout, original.dist.timeout);
      EXPECT_EQ(again->data.seed, original.data.seed);
      EXPECT_EQ(to_yaml(*again), to_yaml(original));
    }
  }
}

TEST(Recipe, OriginsArePrintedBesideTheirValues) {
  const std::string text = to_yaml(parse("train: {seed: 4}\n", {"train.steps=9"}), true);
  EXPECT_THAT(text, ::testing::ContainsRegex("seed: 4 +# a.yaml:2:15\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("steps: 9 steps +# command line\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("threads: 0 +# default\n"));
}

TEST(Recipe, TheHashFollowsTheNumbersAndNothingElse) {
  const uint64_t hash = recipe_hash(parse(""));
  EXPECT_EQ(recipe_hash(parse("run: {dir: elsewhere}\ndist: {timeout: 1 s}\n")), hash);
  EXPECT_EQ(recipe_hash(parse("checkpoint: {every: 3}\ntrain: {threads: 2}\n")), hash);
  EXPECT_NE(recipe_hash(parse("train: {seed: 1}\n")), hash);
  EXPECT_NE(recipe_hash(parse("optimizer: {lr: 3.0000000000000001e-3}\n")), hash);
}

TEST(Recipe, DiffNamesKeysAndBothValues) {
  const auto differences = diff(parse("train: {seed: 1}\n"), parse("optimizer: {kind: sgd}\n"));
  ASSERT_EQ(differences.size(), 2u);
  EXPECT_EQ(differences[0].key, "optimizer.kind");
  EXPECT_EQ(differences[0].a, "adamw");
  EXPECT_EQ(differences[0].b, "sgd");
  EXPECT_EQ(differences[1].key, "train.seed");
}

TEST(Recipe, CheckpointsLieInTheRunFolderUnlessToldOtherwise) {
  EXPECT_EQ(parse("run: {dir: /r}\n").checkpoint_dir(), "/r/checkpoints");
  EXPECT_EQ(parse("checkpoint: {dir: /c}\n").checkpoint_dir(), "/c");
}

TEST(CheckRecipe, TheMeshMustHoldTheWorld) {
  EXPECT_OK(check_recipe(parse("mesh: {fsdp: 4}\n"), 4));
  EXPECT_OK(check_recipe(parse(""), 3));
  EXPECT_THAT(check_recipe(parse("mesh: {fsdp: 3}\n"), 4),
              FailsWith(ErrorCode::kBadRecipe,
                        HasSubstr("a.yaml:2:14: mesh.fsdp: the product of the axes must be the "
                                  "number of ranks; got 3")));
  EXPECT_THAT(check_recipe(parse("mesh: {fsdp: 3}\n"), 4),
              FailsWith(ErrorCode::kBadRecipe, HasSubstr("world size is 4")));
}

TEST(CheckRecipe, NoMeshIsTooLargeToMultiply) {
  for (const char* mesh : {"{dp_replicate: 4611686018427387904, tp: 4}",
                           "{dp_replicate: 4, fsdp: 4611686018427387905}",
                           "{dp_replicate: 32768, pp: 32768, fsdp: 32769}"}) {
    EXPECT_THAT(parse_recipe(fmt::format("data: {{files: [x]}}\nmesh: {}\n", mesh), "a.yaml"),
                FailsWith(ErrorCode::kBadRecipe, HasSubstr("at most 32768")))
        << mesh;
  }
  const Result<Recipe> largest = parse_recipe(
      "data: {files: [x]}\nmodel: {layers: 1024, heads: 1024, dim: 1024}\n"
      "mesh: {pp: 1024, dp_replicate: 32768, fsdp: 32768, tp: 1024}\n",
      "a.yaml");
  ASSERT_OK(largest);
  EXPECT_THAT(check_recipe(*largest, 4),
              FailsWith(ErrorCode::kBadRecipe, HasSubstr("got 1125899906842624 from")));
}

TEST(CheckRecipe, AnInterleavedScheduleNeedsEvenRounds) {
  const auto check = [](int global_batch) {
    return check_recipe(
        parse_recipe(fmt::format("data: {{files: [x]}}\nmesh: {{pp: 2}}\n"
                                 "pipeline: {{schedule: interleaved_1f1b, stages_per_rank: 2}}\n"
                                 "train: {{global_batch: {}, microbatch: 1}}\n",
                                 global_batch),
                     "a.yaml")
            .value(),
        2);
  };
  for (const int good : {2, 3, 4, 6, 8}) EXPECT_OK(check(good)) << good;
  for (const int bad : {5, 7}) {
    EXPECT_THAT(check(bad), FailsWith(ErrorCode::kBadRecipe,
                                      HasSubstr("train.global_batch: interleaved_1f1b needs")))
        << bad;
  }
}

// torchtitan#775: no schedule needs as many microbatches as it has stages.
TEST(CheckRecipe, APipelineMayHaveFewerMicrobatchesThanStages) {
  for (const char* pipeline : {"{schedule: gpipe}", "{schedule: 1f1b}",
                               "{schedule: interleaved_1f1b, stages_per_rank: 2}"}) {
    for (const int global_batch : {1, 2, 3}) {
      EXPECT_OK(
          check_recipe(parse(fmt::format("model: {{layers: 8}}\nmesh: {{pp: 4}}\npipeline: {}\n"
                                         "train: {{global_batch: {}, microbatch: 1}}\n",
                                         pipeline, global_batch)),
                       4))
          << pipeline << " " << global_batch;
    }
  }
}

TEST(CheckRecipe, EveryRankNeedsASequence) {
  EXPECT_OK(check_recipe(parse("train: {global_batch: 5}\n"), 5));
  EXPECT_THAT(
      check_recipe(parse("", {"train.global_batch=4"}), 5),
      FailsWith(ErrorCode::kBadRecipe,
                HasSubstr("command line: train.global_batch: must hold a sequence for "
                          "every rank that reads data; got 4 for 5 of them, world size is 5")));
}

TEST(CheckRecipe, AllBrokenRulesAreTold) {
  EXPECT_THAT(check_recipe(parse("mesh: {fsdp: 3}\ntrain: {global_batch: 4}\n"), 5),
              FailsWith(ErrorCode::kBadRecipe,
                        ::testing::AllOf(HasSubstr("mesh.fsdp"), HasSubstr("train.global_batch"))));
}

TEST(RecipeKeys, NamesAreUniqueAndSectionsAreContiguous) {
  std::set<std::string> paths;
  for (const RecipeKey& key : recipe_keys()) {
    EXPECT_TRUE(paths.insert(key.path()).second) << key.path();
    EXPECT_EQ(find_recipe_key(key.path()), &key);
    EXPECT_FALSE(key.doc.empty()) << key.path();
  }
  const std::vector<std::string> sections = recipe_sections();
  EXPECT_EQ(std::set<std::string>(sections.begin(), sections.end()).size(), sections.size());
}

TEST(RecipeKeys, EveryKeyHasAFieldOfItsOwn) {
  Recipe recipe;
  std::set<const void*> fields;
  for (const RecipeKey& key : recipe_keys()) {
    const void* field = std::visit(
        [](const auto& ref) -> const void* {
          if constexpr (std::is_same_v<std::decay_t<decltype(ref)>, ChoiceRef>) {
            return ref.field;
          } else {
            return ref;
          }
        },
        key.field(recipe));
    EXPECT_TRUE(fields.insert(field).second) << key.path() << " shares its field";
  }
}

TEST(RecipeKeys, DefaultsObeyTheirOwnLimits) {
  // All defaults, printed and read back, pass the parser's checks.
  EXPECT_OK(parse_recipe(to_yaml(Recipe{}), "defaults", {"data.files=x"}));
}

TEST(RecipeKeys, LimitsSayWhatTheyContain) {
  const Limits limits{.low = 0, .high = 1, .excludes_high = true};
  EXPECT_TRUE(limits.contains(0));
  EXPECT_FALSE(limits.contains(1));
  EXPECT_EQ(limits.text(), "at least 0 and below 1");
  EXPECT_EQ(Limits{}.text(), "");
}

TEST(RecipeKeys, TheDocumentHoldsTheTable) {
  EXPECT_THAT(file_text("docs/recipes.md"), HasSubstr(recipe_keys_markdown()))
      << "regenerate with `muster recipe keys`";
}

TEST(YamlValues, DurationsSurviveTheRoundTrip) {
  for (const Duration duration : {Duration(0), Duration(1), Duration(999), Duration(1500us),
                                  Duration(30s), Duration(90min), Duration(1234567891)}) {
    const std::string text = duration_to_yaml(duration);
    const Result<Duration> again = parse_duration(text);
    ASSERT_OK(again) << text;
    EXPECT_EQ(*again, duration) << text;
  }
  EXPECT_EQ(duration_to_yaml(30s), "30 s");
  EXPECT_EQ(duration_to_yaml(90s), "90 s");
  EXPECT_EQ(duration_to_yaml(2min), "2 min");
}

TEST(DataFiles, GlobsAreSortedDeduplicatedAndExcluded) {
  const TempDirectory folder;
  for (const std::string name : {"b", "a", "a.dat", "c"}) {
    ASSERT_OK(write_file_durably(real_file_system(), folder.file(name), "text"));
  }
  ASSERT_OK(real_file_system().make_directories(folder.file("d")));
  Recipe::Data data;
  data.files = {folder.file("*"), folder.file("a")};
  data.exclude = {folder.file("*.dat")};
  const auto files = expand_data_files(data);
  ASSERT_OK(files);
  EXPECT_THAT(*files, ElementsAre(folder.file("a"), folder.file("b"), folder.file("c")));
}

TEST(DataFiles, AnExcludeWithoutASlashMeansNamesInEveryFolder) {
  const TempDirectory folder;
  ASSERT_OK(real_file_system().make_directories(folder.file("d")));
  for (const std::string name : {"a", "a.dat", "d/b", "d/b.dat"}) {
    ASSERT_OK(write_file_durably(real_file_system(), folder.file(name), "text"));
  }
  Recipe::Data data;
  data.files = {folder.file("*"), folder.file("d/*")};
  data.exclude = {"*.dat"};
  const auto files = expand_data_files(data);
  ASSERT_OK(files);
  EXPECT_THAT(*files, ElementsAre(folder.file("a"), folder.file("d/b")));
}

TEST(DataFiles, AGlobWithoutAMatchIsNamed) {
  const TempDirectory folder;
  Recipe::Data data;
  data.files = {folder.file("*.txt")};
  EXPECT_THAT(expand_data_files(data), FailsWith(ErrorCode::kNotFound, HasSubstr("*.txt")));
  ASSERT_OK(write_file_durably(real_file_system(), folder.file("a.txt"), "text"));
  data.exclude = {folder.file("a*")};
  EXPECT_THAT(expand_data_files(data), FailsWith(ErrorCode::kNotFound, HasSubstr("data.exclude")));
}

TEST(Configs, EveryRecipeInTheTreeIsValid) {
  const auto names = real_file_system().list(source_path("configs/recipes"));
  ASSERT_OK(names);
  EXPECT_GE(names->size(), 2u);
  for (const std::string& name : *names) {
    EXPECT_OK(load_recipe(source_path("configs/recipes/" + name)));
  }
}
}  // namespace
}  // namespace muster
