// `muster recipe check|show|diff|keys`: everything one can learn of a recipe without running it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "core/base/text.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/parse_line.h"
#include "launcher/recipe/recipe.h"
#include "launcher/recipe/recipe_keys.h"

namespace muster {
namespace {
int fail(const Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return exit_status(error.code());
}

struct Arguments {
  std::string file;
  std::string other_file;
  std::vector<std::string> overrides;
  int nproc = 0;
  bool with_origins = false;
};

int check(const Arguments& arguments) {
  const Result<Recipe> recipe = load_recipe(arguments.file, arguments.overrides);
  if (!recipe.ok()) return fail(recipe.error());
  if (arguments.nproc > 0) {
    const Result<void> fits = check_recipe(*recipe, arguments.nproc);
    if (!fits.ok()) return fail(fits.error());
  }
  const Result<std::vector<std::string>> files = expand_data_files(recipe->data);
  if (!files.ok()) return fail(files.error());
  fmt::print("{}: ok; {} of {} keys set, {} data files, hash {}\n", arguments.file,
             recipe->origins.size(), recipe_keys().size(), files->size(),
             hex64(recipe_hash(*recipe)));
  return 0;
}

int show(const Arguments& arguments) {
  const Result<Recipe> recipe = load_recipe(arguments.file, arguments.overrides);
  if (!recipe.ok()) return fail(recipe.error());
  fmt::print("{}", to_yaml(*recipe, arguments.with_origins));
  return 0;
}

int compare(const Arguments& arguments) {
  const Result<Recipe> a = load_recipe(arguments.file);
  if (!a.ok()) return fail(a.error());
  const Result<Recipe> b = load_recipe(arguments.other_file);
  if (!b.ok()) return fail(b.error());
  const std::vector<RecipeDifference> differences = diff(*a, *b);
  for (const RecipeDifference& difference : differences) {
    fmt::print("{}: {} -> {}\n", difference.key, difference.a, difference.b);
  }
  const bool same_numbers = recipe_hash(*a) == recipe_hash(*b);
  fmt::print("{} keys differ; the runs compute {} numbers\n", differences.size(),
             same_numbers ? "the same" : "different");
  return differences.empty() ? 0 : 1;
}

void add_overrides(CLI::App& command, Arguments& arguments) {
  command.add_option("file", arguments.file, "recipe file")->required();
  command.add_option("overrides", arguments.overrides, "section.key=value or ~section.key");
}
}  // namespace

int recipe_command(std::span<char*> args) {
  CLI::App app("Checks, explains and prints recipes; starts nothing.", "muster recipe");
  app.require_subcommand(1);
  Arguments arguments;

  CLI::App* check_app = app.add_subcommand("check", "report everything that is wrong in a recipe");
  add_overrides(*check_app, arguments);
  check_app->add_option("--nproc", arguments.nproc, "check it for this number of ranks, too")
      ->check(CLI::Range(1, 1 << 20));
  CLI::App* show_app = app.add_subcommand("show", "print every value, defaults too");
  add_overrides(*show_app, arguments);
  show_app->add_flag("--origin", arguments.with_origins, "say where each value was set");
  CLI::App* diff_app = app.add_subcommand("diff", "print the values in which two recipes differ");
  diff_app->add_option("a", arguments.file, "recipe file")->required();
  diff_app->add_option("b", arguments.other_file, "recipe file")->required();
  CLI::App* keys_app = app.add_subcommand("keys", "print the table of all keys, as Markdown");

  if (const std::optional<int> status = parse_line(app, args)) return *status;
  if (check_app->parsed()) return check(arguments);
  if (show_app->parsed()) return show(arguments);
  if (diff_app->parsed()) return compare(arguments);
  if (keys_app->parsed()) fmt::print("{}", recipe_keys_markdown());
  return 0;
}
}  // namespace muster
