#include <cstdio>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "launcher/agent/job.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/run_options.h"
#include "launcher/cli/run_plan.h"

extern char** environ;

namespace muster {
namespace {
constexpr int kUsageStatus = 2;  // as argparse

Environment read_environment() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) environment[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return environment;
}

int report(const Error& error, bool is_usage) {
  std::fprintf(stderr, "muster run: %s\n", error.what());
  if (!is_usage || error.code() != ErrorCode::kInvalidArgument) return exit_status(error.code());
  std::fprintf(stderr, "muster run --help lists the options\n");
  return kUsageStatus;
}
}  // namespace

int run_command(std::span<char*> args) {
  const std::vector<std::string> words(args.begin(), args.end());
  const Environment environment = read_environment();
  try {
    const Result<RunArguments> arguments = parse_run_arguments(words, environment);
    if (!arguments.ok()) return report(arguments.error(), true);
    if (arguments->help) {
      std::fputs(run_help().c_str(), stdout);
      return 0;
    }
    const Result<JobSpec> spec = plan_run(*arguments, environment);
    if (!spec.ok()) return report(spec.error(), true);
    const Result<int> status = run_job(*spec);
    return status.ok() ? *status : report(status.error(), false);
  } catch (const Error& error) {
    return report(error, false);
  }
}

}  // namespace muster
