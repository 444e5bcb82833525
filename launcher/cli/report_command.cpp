// `muster report`: one HTML file that shows a run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/base/file_system.h"
#include "core/base/units.h"
#include "launcher/cli/commands.h"
#include "launcher/cli/parse_line.h"
#include "launcher/cli/write_output.h"
#include "launcher/report/page.h"

namespace muster {
namespace {
struct Arguments {
  std::string directory;
  std::string output;
  std::string agent_events;
  bool as_json = false;
};

Result<void> run(const Arguments& arguments) {
  const RunFolder folder = MUSTER_TRY(read_run_folder(arguments.directory, arguments.agent_events));
  const std::string text = arguments.as_json ? report_data(folder) + "\n" : report_page(folder);
  if (arguments.output == "-") {
    fmt::print("{}", text);
    return {};
  }
  const std::string path =
      !arguments.output.empty()
          ? arguments.output
          : path_join(arguments.directory, arguments.as_json ? "report.json" : "report.html");
  MUSTER_TRY(write_output(path, text));
  int64_t damaged = 0;
  for (const DamagedFile& file : folder.damaged) damaged += file.lines;
  fmt::print("{}: {}, {} steps, {} incident{}{}\n", path,
             format_bytes({static_cast<int64_t>(text.size())}), folder.metrics.rows(),
             folder.incidents.size(), folder.incidents.size() == 1 ? "" : "s",
             damaged > 0
                 ? fmt::format(", {} damaged line{} passed over", damaged, damaged == 1 ? "" : "s")
                 : "");
  return {};
}
}  // namespace

int report_command(std::span<char*> args) {
  CLI::App app("Writes one HTML file that shows a run: curves, attempts, checkpoints, incidents.",
               "muster report");
  Arguments arguments;
  app.add_option("run_dir", arguments.directory, "folder of a run (run.dir of its recipe)")
      ->required()
      ->type_name("DIR");
  app.add_option("-o,--output", arguments.output,
                 "file to write, \"-\" for stdout; run_dir/report.html when not given")
      ->type_name("FILE");
  app.add_option("--events", arguments.agent_events,
                 "the launcher's events, where `muster run --events` put them elsewhere than "
                 "run_dir/agent_events.jsonl")
      ->type_name("FILE");
  app.add_flag("--json", arguments.as_json,
               "write the page's data only, to run_dir/report.json when -o is not given");
  app.footer("The page is complete in itself, and can be made while the run goes.");
  if (const std::optional<int> status = parse_line(app, args)) return *status;
  const Result<void> done = run(arguments);
  if (done.ok()) return 0;
  fmt::print(stderr, "{}\n", done.error().what());
  return exit_status(done.error().code());
}
}  // namespace muster
