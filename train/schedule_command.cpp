#include "train/schedule_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/file_system.h"
#include "core/base/text.h"
#include "pipeline/schedule/generate.h"
#include "pipeline/schedule/lower.h"
#include "pipeline/schedule/render.h"
#include "pipeline/schedule/simulate.h"
#include "pipeline/schedule/validate.h"

namespace muster {
namespace {
using namespace pipeline;  // NOLINT
using nlohmann::json;

constexpr int kUsage = 64;
constexpr int kRefused = 65;

struct Arguments {
  std::string name;                // show, validate: a generator's name or a file
  std::vector<std::string> names;  // compare
  int stages = 0;
  int ranks = 0;
  int microbatches = 0;
  int stages_per_rank = 2;
  std::vector<double> costs = {1, 1, 1};
  std::string transport = "auto";
  bool match_by_order = false;
  bool lowered = false;
  bool as_csv = false;
  bool as_json = false;
  std::vector<int> max_live;

  [[nodiscard]] Costs cost_table() const {
    return {.forward = costs[0],
            .backward = costs[1] + costs[2],
            .input = costs[1],
            .weight = costs[2]};
  }
};

bool is_file(const std::string& name) { return name.ends_with(".csv"); }

Result<Schedule> read_file(const Arguments& arguments) {
  const std::vector<std::byte> bytes = MUSTER_TRY(real_file_system().read(arguments.name));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return parse_csv(text, arguments.name, arguments.stages, arguments.microbatches);
}

CommandOutput refused(const Arguments& arguments, const Error& error) {
  const bool is_bad_schedule = error.code() == ErrorCode::kInvalidArgument;
  std::string out;
  if (arguments.as_json) {
    out =
        json{{"ok", false}, {"code", std::string(to_string(error.code()))}, {"error", error.what()}}
            .dump(2, ' ', false, json::error_handler_t::replace) +
        "\n";
  }
  return {is_bad_schedule ? kRefused : exit_status(error.code()), out,
          fmt::format("muster-tools schedule: {}\n", error.what())};
}

json timeline_json(const Schedule& schedule, const Timeline& timeline) {
  return {{"schedule", schedule.name},     {"stages", schedule.num_stages},
          {"ranks", schedule.num_ranks()}, {"microbatches", schedule.num_microbatches},
          {"makespan", timeline.makespan}, {"bubble_fraction", timeline.bubble_fraction()},
          {"idle", timeline.idle},         {"peak_live", timeline.peak_live}};
}

std::string timeline_text(const Timeline& timeline) {
  return fmt::format("makespan {:g}  bubble {:.1f} %  idle {}  peak live {}\n", timeline.makespan,
                     100 * timeline.bubble_fraction(), fmt::join(timeline.idle, " "),
                     fmt::join(timeline.peak_live, " "));
}

CommandOutput show(const Arguments& arguments) {
  Result<Schedule> made =
      is_file(arguments.name)
          ? read_file(arguments)
          : make_schedule(arguments.name,
                          {arguments.stages, arguments.microbatches, arguments.ranks});
  if (!made.ok()) return refused(arguments, made.error());
  const Result<void> sound = validate(*made, {.transport = Transport::kBuffered});
  if (!sound.ok()) return refused(arguments, sound.error());
  if (arguments.lowered && !made->has_messages()) made = lower(*made);
  if (!made.ok()) return refused(arguments, made.error());
  const Result<Timeline> timeline = simulate(*made, arguments.cost_table());
  if (!timeline.ok()) return refused(arguments, timeline.error());
  if (arguments.as_json) {
    json object = timeline_json(*made, *timeline);
    object["drawing"] = split(trim(render(*made)), '\n');
    object["csv"] = to_csv(*made);
    return {0, object.dump(2, ' ', false, json::error_handler_t::replace) + "\n", ""};
  }
  if (arguments.as_csv || arguments.lowered) return {0, to_csv(*made), ""};
  return {0, render(*made).substr(1) + timeline_text(*timeline), ""};
}

json fault_json(const Fault& fault) {
  return {{"rank", fault.rank},
          {"position", fault.position},
          {"action", fault.action},
          {"reason", fault.reason}};
}

// Faults of the file, then what muster's own transport forgives.
CommandOutput check(const Arguments& arguments) {
  const Result<Schedule> read = read_file(arguments);
  if (!read.ok()) return refused(arguments, read.error());
  ValidateOptions options{.num_ranks = arguments.ranks,
                          .match_by_order = arguments.match_by_order,
                          .max_live = arguments.max_live};
  const bool is_plan = arguments.transport == "auto" && is_executable_plan(*read);
  if (arguments.transport == "buffered" || is_plan) options.transport = Transport::kBuffered;
  if (options.max_live.size() == 1) options.max_live.resize(read->rows.size(), options.max_live[0]);
  const std::vector<Fault> faults = find_faults(*read, options);
  if (!faults.empty()) {
    json list = json::array();
    std::string text;
    for (const Fault& fault : faults) {
      list.push_back(fault_json(fault));
      text += fmt::format("{}: {}\n", arguments.name, to_string(fault));
      const std::string near = render_near(*read, fault.rank, fault.position);
      if (!near.empty()) text += fmt::format("  rank {}: {}\n", fault.rank, near);
    }
    if (options.transport == Transport::kRendezvous && faults.size() == 1 &&
        find_faults(*read, {.transport = Transport::kBuffered}).empty()) {
      text += "  muster's sends are buffered: with --transport buffered it is accepted\n";
    }
    const json object = {{"ok", false}, {"schedule", arguments.name}, {"faults", list}};
    return {
        kRefused,
        arguments.as_json ? object.dump(2, ' ', false, json::error_handler_t::replace) + "\n" : "",
        text};
  }
  const Result<Timeline> timeline = simulate(*read, arguments.cost_table());
  if (!timeline.ok()) return refused(arguments, timeline.error());
  const std::vector<Fault> order =
      find_faults(*read, {.transport = options.transport, .match_by_order = true});
  json object = timeline_json(*read, *timeline);
  object["ok"] = true;
  object["lowered"] = read->has_messages();
  object["order_matches"] = order.empty();
  if (arguments.as_json)
    return {0, object.dump(2, ' ', false, json::error_handler_t::replace) + "\n", ""};
  std::string text =
      fmt::format("{}: ok, {} ranks, {} stages, {} microbatches{}\n{}", arguments.name,
                  read->num_ranks(), read->num_stages, read->num_microbatches,
                  read->has_messages() ? ", with messages" : "", timeline_text(*timeline));
  if (is_plan && !find_faults(*read, {.transport = Transport::kRendezvous}).empty()) {
    text +=
        "note: its receives are deferred to where they are needed: it needs sends that do not "
        "wait, "
        "as muster's (--transport rendezvous refuses it)\n";
  }
  if (!order.empty()) {
    text += fmt::format("note: only where messages have tags, as muster's do: {}\n",
                        to_string(order.front()));
  }
  return {0, text, ""};
}

struct Row {
  std::string name;
  int stages_per_rank = 1;
  Result<Schedule> schedule;
};

std::vector<Row> rows_to_compare(const Arguments& arguments) {
  std::vector<Row> rows;
  const auto add = [&](std::string_view name, int per_rank) {
    rows.push_back({std::string(name), per_rank,
                    make_schedule(name, {arguments.ranks * per_rank, arguments.microbatches,
                                         arguments.ranks})});
  };
  std::vector<std::string> names = arguments.names;
  if (names.empty()) {
    for (const Generator& generator : generators()) names.emplace_back(generator.name);
  }
  for (const std::string& name : names) {
    const Result<const Generator*> generator = find_generator(name);
    if (!generator.ok()) {
      rows.push_back({name, 0, generator.error()});
      continue;
    }
    const int fixed = (*generator)->stages_per_rank;
    add((*generator)->name, fixed > 0 ? fixed : arguments.stages_per_rank);
  }
  return rows;
}

// A virtual stage costs its share of a rank's layers, so that all rows do the same work.
CommandOutput compare(const Arguments& arguments) {
  json list = json::array();
  std::string text = fmt::format("{:<22} {:>6} {:>9} {:>8}  {}\n", "schedule", "stages", "makespan",
                                 "bubble", "peak live, in stages of a rank's layers");
  for (const Row& row : rows_to_compare(arguments)) {
    if (!row.schedule.ok()) {
      if (row.stages_per_rank == 0) return refused(arguments, row.schedule.error());
      text += fmt::format("{:<22} {}\n", row.name, row.schedule.error().message());
      list.push_back({{"schedule", row.name}, {"refused", row.schedule.error().message()}});
      continue;
    }
    const double share = row.stages_per_rank;
    Costs costs = arguments.cost_table();
    for (double* cost : {&costs.forward, &costs.backward, &costs.input, &costs.weight}) {
      *cost /= share;
    }
    const Result<Timeline> timeline = simulate(*row.schedule, costs);
    if (!timeline.ok()) return refused(arguments, timeline.error());
    std::vector<double> peak;
    for (const int live : timeline->peak_live) peak.push_back(live / share);
    text +=
        fmt::format("{:<22} {:>6} {:>9g} {:>6.1f} %  {:g}\n", row.name, row.schedule->num_stages,
                    timeline->makespan, 100 * timeline->bubble_fraction(), fmt::join(peak, " "));
    json object = timeline_json(*row.schedule, *timeline);
    object["peak_live"] = peak;
    list.push_back(object);
  }
  if (!arguments.as_json) return {0, text, ""};
  return {0, json{{"schedules", list}}.dump(2, ' ', false, json::error_handler_t::replace) + "\n",
          ""};
}

// Also refuses nan, which is in every range.
std::string is_time(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool is_fine = end != text.c_str() && *end == '\0' && value >= 0 && value <= 1e12;
  return is_fine ? "" : fmt::format("a time must be a number from 0 to 1e12; got {}", text);
}

// So many would take minutes and gigabytes, and no eye sees them.
Result<void> check_size(const Arguments& arguments) {
  constexpr int64_t kMost = 4'000'000;
  const int64_t stages = std::max(arguments.stages, arguments.ranks * arguments.stages_per_rank);
  if (stages * arguments.microbatches <= kMost) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "stages times microbatches must be at most {}; got {} x {}", kMost, stages,
                    arguments.microbatches);
}

void add_options(CLI::App& app, Arguments& arguments) {
  app.require_subcommand(1);
  const auto common = [&](CLI::App* verb) {
    verb->add_option("--microbatches", arguments.microbatches, "microbatches a step")
        ->required()
        ->check(CLI::Range(1, 999999));
    verb->add_option("--costs", arguments.costs, "F,I,W: times of forward and the two backwards")
        ->delimiter(',')
        ->expected(3)
        ->check(is_time);
    verb->add_flag("--json", arguments.as_json, "print one JSON object");
    return verb;
  };
  const CLI::Range some(1, 9999);
  std::string names;
  for (const Generator& generator : generators()) {
    names += fmt::format("\n  {:<16} {}", generator.alias, generator.summary);
  }
  CLI::App* show = common(app.add_subcommand("show", "draw a schedule; names:" + names));
  show->add_option("name", arguments.name, "a name, or a file that ends in .csv")->required();
  show->add_option("--stages", arguments.stages, "stages of the model")->required()->check(some);
  show->add_option("--ranks", arguments.ranks, "ranks; default: one stage (V schedules: two) each")
      ->check(some);
  show->add_flag("--csv", arguments.as_csv, "print it as CSV");
  show->add_flag("--lowered", arguments.lowered, "with messages, as CSV");
  CLI::App* check = common(app.add_subcommand("validate", "prove that a CSV file can be run"));
  check->add_option("file", arguments.name, "one row a rank, blank cells idle")->required();
  check->add_option("--stages", arguments.stages, "stages of the model")->required()->check(some);
  check->add_option("--ranks", arguments.ranks, "ranks that there must be; default: the rows")
      ->check(some);
  check
      ->add_option(
          "--transport", arguments.transport,
          "rendezvous: a send waits for its receive; buffered: it does not; auto (default): "
          "buffered for plans with REDUCE_GRAD, which PyTorch runs so, else rendezvous")
      ->check(CLI::IsMember({"auto", "rendezvous", "buffered"}));
  check->add_flag("--match-by-order", arguments.match_by_order,
                  "refuse receives in another order than the sends");
  check
      ->add_option("--max-live", arguments.max_live,
                   "most live microbatches: one number, or one a rank")
      ->delimiter(',')
      ->check(CLI::Range(0, 999999));
  CLI::App* compare = common(app.add_subcommand("compare", "a table of schedules"));
  compare->add_option("names", arguments.names, "names; default: all");
  compare->add_option("--ranks", arguments.ranks, "ranks")->required()->check(some);
  compare
      ->add_option("--stages-per-rank", arguments.stages_per_rank,
                   "where the schedule leaves it open; default 2")
      ->check(CLI::Range(1, 64));
}
}  // namespace

CommandOutput run_schedule_command(std::span<const std::string> arguments) {
  CLI::App app{"draw, prove and compare pipeline schedules", "muster-tools schedule"};
  Arguments values;
  add_options(app, values);
  // CLI11 takes the arguments last first.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    return {0, app.help("", CLI::AppFormatMode::All), ""};
  } catch (const CLI::ParseError& error) {
    return {kUsage, "", fmt::format("muster-tools schedule: {}\n{}", error.what(), app.help())};
  }
  if (const Result<void> fits = check_size(values); !fits.ok()) {
    return {kUsage, "", fmt::format("muster-tools schedule: {}\n", fits.error().what())};
  }
  if (app.got_subcommand("show")) return show(values);
  if (app.got_subcommand("validate")) return check(values);
  return compare(values);
}
}  // namespace muster
