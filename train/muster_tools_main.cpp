// muster-tools: verbs that need tensors. `muster VERB ...` runs it for the verbs in this table.
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "train/ckpt_command.h"
#include "train/generate_command.h"
#include "train/logits_command.h"
#include "train/ops_command.h"
#include "train/schedule_command.h"

namespace {
using Arguments = std::span<const std::string>;

struct Verb {
  const char* name;
  const char* summary;
  muster::CommandOutput (*run)(Arguments arguments);
};

constexpr Verb kVerbs[] = {
    {"ckpt", "list, verify, digest and compare checkpoints", muster::run_ckpt_command},
    {"generate", "continue a prompt with the model of a Hugging Face folder",
     muster::run_generate_command},
    {"logits", "write the logits of such a model into a file", muster::run_logits_command},
    {"ops", "list operators and what is stated of each", muster::run_ops_command},
    {"schedule", "draw, prove and compare pipeline schedules", muster::run_schedule_command},
};

constexpr int kUsage = 64;
constexpr int kNotPrinted = 74;  // as an Io error

void print_usage(std::FILE* stream) {
  std::fputs("usage: muster-tools VERB [ARGUMENT]...\n\n", stream);
  for (const Verb& verb : kVerbs) std::fprintf(stream, "  %-10s %s\n", verb.name, verb.summary);
  std::fputs("\nmuster-tools VERB --help tells more.\n", stream);
}
}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    print_usage(stderr);
    return kUsage;
  }
  const std::string name = argv[1];
  if (name == "--help" || name == "-h" || name == "help") {
    print_usage(stdout);
    return 0;
  }
  const std::vector<std::string> arguments(argv + 2, argv + argc);
  for (const Verb& verb : kVerbs) {
    if (name != verb.name) continue;
    const muster::CommandOutput output = verb.run(arguments);
    std::fputs(output.out.c_str(), stdout);
    const bool is_printed = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
    if (!is_printed) std::perror("muster-tools: stdout");
    std::fputs(output.err.c_str(), stderr);
    return is_printed || output.status != 0 ? output.status : kNotPrinted;
  }
  std::fprintf(stderr, "muster-tools: unknown verb \"%s\"\n", name.c_str());
  print_usage(stderr);
  return kUsage;
}
