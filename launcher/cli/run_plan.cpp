#include "launcher/cli/run_plan.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/base/file_system.h"
#include "core/base/text.h"
#include "launcher/agent/job_plan.h"
#include "launcher/cli/option_values.h"
#include "launcher/cli/rendezvous_options.h"
#include "launcher/recipe/recipe.h"

namespace muster {
namespace {
namespace stdfs = std::filesystem;

constexpr auto wrong = wrong_option;
constexpr auto parse_int = parse_int_option;

int count_gpus() {
  int count = 0;
  std::error_code error;
  for (const auto& entry : stdfs::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename().string();
    if (name.size() > 6 && name.starts_with("nvidia") &&
        std::all_of(name.begin() + 6, name.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      ++count;
    }
  }
  return count;
}

Result<int> parse_nproc(std::string_view text) {
  constexpr std::string_view kOption = "nproc-per-node";
  if (text == "cpu") return allowed_cores();
  if (text == "auto" || text == "gpu") {
    const int gpus = count_gpus();
    if (gpus > 0) return gpus;
    if (text == "gpu") return wrong(kOption, "possible here, and there is no GPU", text);
    return allowed_cores();
  }
  return parse_int(kOption, text, 1, 1 << 20, "a number above 0, auto, gpu or cpu");
}

Result<void> take_placement(const RunArguments& arguments, const Environment& environment,
                            JobSpec& spec) {
  if (const auto text = arguments.value("local-addr")) spec.master_addr = *text;
  if (const auto text = arguments.value("master-addr")) spec.master_addr = *text;
  if (const auto text = arguments.value("master-port")) {
    spec.master_port =
        MUSTER_TRY(parse_int("master-port", *text, 0, kMaxPort, "a port from 0 to 65535"));
  }
  spec.role = arguments.value("role").value_or("default");
  spec.virtual_local_rank = arguments.flag("virtual-local-rank");
  return take_nodes(arguments, environment, spec);
}

Result<void> take_signals(const RunArguments& arguments, JobSpec& spec) {
  spec.signals_to_handle =
      arguments.value("signals-to-handle").value_or("SIGTERM,SIGINT,SIGHUP,SIGQUIT");
  for (const std::string& part : split(spec.signals_to_handle, ',')) {
    const std::string_view name = trim(part);
    if (name.empty()) continue;
    const int number = name.starts_with("SIG") ? signal_number(name) : 0;
    if (number == 0 || number == SIGKILL || number == SIGSTOP || number == SIGCHLD) {
      return wrong("signals-to-handle", "names such as SIGTERM,SIGUSR1 that can be handled", part);
    }
    // Started by nohup: the terminal's end is no reason to stop.
    struct sigaction current {};
    if (number == SIGHUP && ::sigaction(SIGHUP, nullptr, &current) == 0 &&
        current.sa_handler == SIG_IGN) {
      continue;
    }
    spec.stop_signals.push_back(number);
  }
  return {};
}

Result<void> take_policy(const RunArguments& arguments, const Environment& environment,
                         JobSpec& spec) {
  if (const auto text = arguments.value("max-restarts")) {
    spec.policy.max_restarts =
        MUSTER_TRY(parse_int("max-restarts", *text, 0, kAnyInt, "a number from 0"));
  }
  const auto variable = environment.find("TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
  std::string grace = variable == environment.end() ? "30" : variable->second;
  grace = arguments.value("shutdown-timeout").value_or(grace);
  spec.policy.grace = std::chrono::seconds(
      MUSTER_TRY(parse_int("shutdown-timeout", grace, 0, kAnyInt, "seconds from 0")));
  spec.policy.crash_grace = spec.policy.grace;
  if (const auto text = arguments.value("monitor-interval")) {
    char* end = nullptr;
    if (std::strtod(text->c_str(), &end) <= 0 || *end != '\0') {
      return wrong("monitor-interval", "seconds above 0", *text);
    }
  }
  const std::string method = arguments.value("start-method").value_or("spawn");
  if (method != "spawn" && method != "fork" && method != "forkserver") {
    return wrong("start-method", "spawn, fork or forkserver", method);
  }
  return take_signals(arguments, spec);
}

Result<void> take_logs(const RunArguments& arguments, const Environment& environment,
                       JobSpec& spec) {
  LogOptions& logs = spec.logs;
  logs.dir = arguments.value("log-dir").value_or("");
  logs.none = logs.dir == "/dev/null";
  logs.redirects =
      MUSTER_TRY(parse_stream_selection("redirects", arguments.value("redirects").value_or("0")));
  logs.tee = MUSTER_TRY(parse_stream_selection("tee", arguments.value("tee").value_or("0")));
  const std::string filter = arguments.value("local-ranks-filter").value_or("");
  if (!filter.empty()) {
    logs.console_ranks.emplace();
    for (const std::string& rank : split(filter, ',')) {
      logs.console_ranks->insert(MUSTER_TRY(
          parse_int("local-ranks-filter", rank, 0, kAnyInt, "local ranks, such as 0,1,2")));
    }
  }
  const auto prefix = environment.find("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
  if (prefix != environment.end()) logs.prefix_template = prefix->second;
  const auto events = environment.find("MUSTER_EVENTS");
  if (events != environment.end()) spec.events_path = events->second;
  spec.events_path = arguments.value("events").value_or(spec.events_path);
  return {};
}

bool is_recipe_name(std::string_view name) {
  return name.ends_with(".yaml") || name.ends_with(".yml");
}

Result<void> take_recipe(const RunArguments& arguments, JobSpec& spec) {
  const std::string& path = arguments.rest.front();
  const std::vector<std::string> overrides(arguments.rest.begin() + 1, arguments.rest.end());
  const Recipe recipe = MUSTER_TRY(load_recipe(path, overrides));
  const auto& mesh = recipe.mesh;
  const int64_t product = mesh.pp * mesh.dp_replicate * mesh.tp * std::max<int64_t>(mesh.fsdp, 1);
  const NodesPolicy& nodes = spec.policy.nodes;
  if (!arguments.value("nproc-per-node")) {
    spec.local_world_size =
        MUSTER_TRY(parse_int("nproc-per-node", std::to_string(product / nodes.max_nodes), 1,
                             1 << 20, "given: the mesh does not tell it"));
  }
  for (const int count : {nodes.min_nodes, nodes.max_nodes}) {
    MUSTER_TRY(check_recipe(recipe, spec.local_world_size * count));
  }
  spec.job = fmt::format("a recipe with numbers {}", hex64(recipe_hash(recipe)));
  const std::string worker = path_join(own_directory(), "muster-train");
  if (::access(worker.c_str(), X_OK) != 0) {
    return make_error(ErrorCode::kNotFound, "run {}: the worker must lie beside muster; no {}",
                      path, worker);
  }
  spec.command = {worker};
  spec.command.insert(spec.command.end(), arguments.rest.begin(), arguments.rest.end());
  spec.is_recipe = true;
  spec.run_dir = recipe.run.dir;
  spec.policy.crash_grace = 0s;  // checkpoints are committed by a rename: nothing to wait for
  spec.title = path;
  return {};
}

bool is_native_executable(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, 4> magic{};
  file.read(magic.data(), magic.size());
  return file && std::string_view(magic.data(), 4) ==
                     "\x7f"
                     "ELF";
}

Result<void> take_program(const RunArguments& arguments, const Environment& environment,
                          JobSpec& spec) {
  const std::string& name = arguments.rest.front();
  const bool is_module = arguments.flag("module");
  const bool is_plain = arguments.flag("no-python") ||
                        (arguments.after_double_dash && !is_module && !name.ends_with(".py"));
  if (is_module && arguments.flag("no-python")) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--no-python: cannot go together with --module; got both");
  }
  // "muster run -- sh -c 'echo $$'" is no form of torchrun's: there the dollars are the shell's.
  const bool is_own_form = is_plain && !arguments.flag("no-python");
  spec.substitution =
      is_own_form ? JobSpec::Substitution::kLocalRank : JobSpec::Substitution::kTemplate;
  spec.title = name;
  spec.job = stdfs::path(name).filename().string();
  if (!is_plain) {
    const auto python = environment.find("PYTHON_EXEC");
    spec.command = {python == environment.end() ? "python3" : python->second, "-u"};
    if (is_module) spec.command.emplace_back("-m");
    if (!is_module && !MUSTER_TRY(real_file_system().info(name)).exists) {
      return make_error(ErrorCode::kNotFound, "run {}: no such script", name);
    }
    if (!is_module && is_native_executable(name)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "run {}: a Python script is expected here and this is a native program; "
                        "write: muster run -- {}",
                        name, name);
    }
  }
  spec.command.insert(spec.command.end(), arguments.rest.begin(), arguments.rest.end());
  return {};
}
}  // namespace

Result<StreamSelection> parse_stream_selection(std::string_view option, std::string_view text) {
  constexpr std::string_view kForm = "0, 1, 2 or 3, or such as 0:3,1:1";
  StreamSelection selection;
  if (text.find(':') == std::string_view::npos) {
    selection.all = MUSTER_TRY(parse_int(option, text, 0, 3, kForm));
    return selection;
  }
  for (const std::string& part : split(text, ',')) {
    const size_t colon = part.find(':');
    if (colon == std::string::npos || part.find(' ') != std::string::npos) {
      return wrong(option, kForm, text);
    }
    const int rank = MUSTER_TRY(parse_int(option, part.substr(0, colon), 0, kAnyInt, kForm));
    selection.by_rank[rank] = MUSTER_TRY(parse_int(option, part.substr(colon + 1), 0, 3, kForm));
  }
  return selection;
}

std::string own_directory() {
  std::error_code error;
  const stdfs::path self = stdfs::read_symlink("/proc/self/exe", error);
  return self.parent_path().string();
}

Result<JobSpec> plan_run(const RunArguments& arguments, const Environment& environment) {
  if (arguments.rest.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "run: needs a recipe, a script or, after --, a program; got nothing");
  }
  JobSpec spec;
  MUSTER_TRY(take_placement(arguments, environment, spec));
  MUSTER_TRY(take_policy(arguments, environment, spec));
  MUSTER_TRY(take_logs(arguments, environment, spec));
  if (const auto text = arguments.value("nproc-per-node")) {
    spec.local_world_size = MUSTER_TRY(parse_nproc(*text));
  }
  const bool is_recipe = is_recipe_name(arguments.rest.front()) && !arguments.after_double_dash &&
                         !arguments.flag("module") && !arguments.flag("no-python");
  if (is_recipe) {
    MUSTER_TRY(take_recipe(arguments, spec));
  } else {
    MUSTER_TRY(take_program(arguments, environment, spec));
  }
  return spec;
}

}  // namespace muster
