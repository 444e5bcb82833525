// The command `muster`: its own verbs, and programs named muster-<verb> beside it for the rest.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/base/file_system.h"
#include "core/base/text.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/run_plan.h"

namespace muster {
namespace {
constexpr const char* kVersion = "0.1.0";
constexpr int kUnknownVerbStatus = 64;  // EX_USAGE

struct Verb {
  const char* name;
  const char* help;
  int (*run)(std::span<char*>);  // null: a verb of muster-tools
};

constexpr std::array kVerbs = {
    Verb{"run", "start a recipe or a program on this machine and keep it running", run_command},
    Verb{"status", "show the jobs that run on this machine", status_command},
    Verb{"top", "the same, kept up to date", top_command},
    Verb{"logs", "print what the ranks of a job have written", logs_command},
    Verb{"recipe", "check, explain and print recipes", recipe_command},
    Verb{"drill", "run a recipe under injected faults and check the recovery", drill_command},
    Verb{"report", "write one HTML file that shows a run", report_command},
    Verb{"ckpt", "list, verify, digest and compare checkpoints", nullptr},
    Verb{"generate", "continue a prompt with a Hugging Face model", nullptr},
    Verb{"logits", "write the logits of such a model into a file", nullptr},
    Verb{"ops", "list operators and what is stated of each", nullptr},
    Verb{"schedule", "draw, prove and compare pipeline schedules", nullptr},
};

void print_help(std::FILE* to) {
  std::fputs("usage: muster VERB [argument ...]\n\n", to);
  for (const Verb& verb : kVerbs) std::fprintf(to, "  %-10s %s\n", verb.name, verb.help);
  std::fputs(
      "\nA first run: muster run configs/recipes/gpt_text_single.yaml train.steps=20\n"
      "\nmuster VERB --help tells more. Any other verb runs the program muster-VERB that lies\n"
      "beside this one. muster --version prints the version.\n",
      to);
}

// Becomes another program; returns the exit status when that is not possible.
int become(const std::string& program, std::vector<char*> args) {
  args.insert(args.begin(), const_cast<char*>(program.c_str()));
  args.push_back(nullptr);
  ::execv(program.c_str(), args.data());
  std::fprintf(stderr, "muster: %s: %s\n", program.c_str(), std::strerror(errno));
  return exit_status(ErrorCode::kNotFound);
}

int run_beside(const std::string& verb, std::span<char*> args) {
  const std::string own = path_join(own_directory(), "muster-" + verb);
  if (::access(own.c_str(), X_OK) == 0) return become(own, {args.begin(), args.end()});
  const auto is_verb = [&](const Verb& candidate) { return verb == candidate.name; };
  if (std::any_of(kVerbs.begin(), kVerbs.end(), is_verb)) {
    std::vector<char*> all(args.begin(), args.end());
    all.insert(all.begin(), const_cast<char*>(verb.c_str()));
    return become(path_join(own_directory(), "muster-tools"), std::move(all));
  }
  std::vector<std::string> names;
  for (const Verb& candidate : kVerbs) names.emplace_back(candidate.name);
  const std::string nearest = nearest_name(verb, names);
  std::fprintf(stderr, "muster: no verb \"%s\" and no program %s%s\n", verb.c_str(), own.c_str(),
               nearest.empty() ? "" : ("; did you mean \"" + nearest + "\"?").c_str());
  return kUnknownVerbStatus;
}

int run(std::span<char*> args) {
  if (args.empty()) {
    print_help(stderr);
    return kUnknownVerbStatus;
  }
  const std::string verb = args.front();
  const bool asks_about_verb = verb == "help" && args.size() > 1;
  if ((verb == "help" && !asks_about_verb) || verb == "--help" || verb == "-h") {
    print_help(stdout);
    return 0;
  }
  if (verb == "--version") {
    std::printf("muster %s\n", kVersion);
    return 0;
  }
  std::string help = "--help";
  std::array<char*, 1> help_args = {help.data()};
  const std::string name = asks_about_verb ? args[1] : verb;
  const std::span<char*> rest = asks_about_verb ? std::span<char*>(help_args) : args.subspan(1);
  for (const Verb& candidate : kVerbs) {
    if (name == candidate.name && candidate.run != nullptr) return candidate.run(rest);
  }
  return run_beside(name, rest);
}
}  // namespace
}  // namespace muster

// What a verb prints may wait in a buffer: only its end tells whether all of it was written.
int main(int argc, char** argv) {
  int status = 0;
  try {
    status =
        muster::run(std::span<char*>(argv, static_cast<size_t>(argc)).subspan(argc > 0 ? 1 : 0));
  } catch (const std::system_error& error) {  // of fmt::print
    std::fprintf(stderr, "muster: stdout: %s\n", error.what());
    return muster::exit_status(muster::ErrorCode::kIo);
  }
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  std::fprintf(stderr, "muster: stdout: %s\n", std::strerror(errno));
  return status != 0 ? status : muster::exit_status(muster::ErrorCode::kIo);
}
