#include "launcher/agent/incident.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "core/base/file_system.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "launcher/agent/unique_fd.h"

namespace muster {
namespace {
using nlohmann::ordered_json;

constexpr size_t kLastLines = 50;
constexpr size_t kShownLines = 10;

double milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

const Worker* cause_of(const Incident& incident) {
  if (incident.cause_rank < 0) return nullptr;
  return &(*incident.workers)[static_cast<size_t>(incident.cause_rank)];
}

std::string role_of(const Incident& incident, const Worker& worker) {
  const Worker* cause = cause_of(incident);
  if (&worker == cause) return "cause";
  if (!worker.exit || (worker.exit->succeeded() && worker.told == 0)) return "finished";
  return cause == nullptr && incident.cause_elsewhere < 0 ? "stopped" : "collateral";
}

int64_t global_rank_of(const Incident& incident, const Worker& worker) {
  return incident.info.place.first_rank + worker.local_rank;
}

void put_exit(ordered_json& json, const WorkerExit& exit) {
  if (exit.signal != 0) {
    json["signal"] = signal_name(exit.signal);
  } else {
    json["status"] = exit.status;
  }
  json["class"] = to_string(exit.exit_class());
  if (exit.oom_killed) json["memory_limit"] = true;
}

std::string error_path(const Incident& incident, const Worker& worker) {
  const std::string folder =
      worker_log_dir(*incident.plan, incident.info.attempt, worker.local_rank);
  return folder.empty() ? "" : folder + "/error.json";
}

ordered_json describe_rank(const Incident& incident, const Worker& worker) {
  const Worker* cause = cause_of(incident);
  ordered_json json;
  json["global_rank"] = global_rank_of(incident, worker);
  json["local_rank"] = worker.local_rank;
  json["pid"] = worker.pid;
  json["role"] = role_of(incident, worker);
  if (worker.exit) put_exit(json, *worker.exit);
  if (worker.told != 0) json["told"] = signal_name(worker.told);
  if (cause != nullptr && worker.exit) {
    json["ms_after_cause"] = milliseconds(worker.ended_at - cause->ended_at);
  }
  const ErrorFile error = read_error_file(error_path(incident, worker));
  if (error.found) json["error"] = {{"message", error.message}, {"stack", error.stack}};
  if (&worker == cause || error.found) {
    json["stdout"] = incident.logs->last_lines(worker.local_rank, 0, kLastLines);
    json["stderr"] = incident.logs->last_lines(worker.local_rank, 1, kLastLines);
  }
  return json;
}

ordered_json describe(const Incident& incident) {
  const JobSpec& spec = incident.plan->spec;
  ordered_json json;
  json["format"] = 1;
  json["wall_time"] = wall_time_iso8601();
  json["run_id"] = spec.run_id;
  json["job"] = spec.title;
  json["attempt"] = incident.info.attempt;
  json["generation"] = incident.info.generation;
  json["world_size"] = incident.info.place.world_size;
  json["group_rank"] = incident.info.place.group_rank;
  const Worker* cause = cause_of(incident);
  if (cause != nullptr) {
    json["seconds_into_attempt"] = to_seconds(cause->ended_at - incident.started_at);
    json["cause"] = describe_rank(incident, *cause);
  }
  json["decision"] = {{"action", to_string(incident.decision.action)},
                      {"reason", incident.decision.reason}};
  json["ranks"] = ordered_json::array();
  for (const Worker& worker : *incident.workers) {
    if (&worker != cause) json["ranks"].push_back(describe_rank(incident, worker));
  }
  return json;
}

std::string how_it_ended(const Worker& worker) {
  if (!worker.exit) return "did not start";
  std::string text = worker.exit->text();
  if (worker.told != 0) text += fmt::format(", told {} by muster", signal_name(worker.told));
  return text;
}

std::string record_text(const Incident& incident) {
  return describe(incident).dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

// True where it was written; false where `path` is there already.
Result<bool> write_new_file(const std::string& path, const std::string& text) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd.is_open() && errno == EEXIST) return false;
  if (!fd.is_open() ||
      ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return make_error(ErrorCode::kIo, "incident record {}: {}", path, errno_text(errno));
  }
  return true;
}

void append_last_lines(std::string& text, const Incident& incident, int rank) {
  for (const int stream : {1, 0}) {
    const std::vector<std::string> lines = incident.logs->last_lines(rank, stream, kShownLines);
    if (lines.empty()) continue;
    text += fmt::format("  last lines of {} of global rank {}:\n",
                        stream == 1 ? "stderr" : "stdout", incident.info.place.first_rank + rank);
    for (const std::string& line : lines) text += "    " + line + "\n";
    return;  // stderr says more; stdout only where it is silent
  }
}
}  // namespace

Result<std::string> write_incident(const std::string& directory, const Incident& incident) {
  const std::string text = record_text(incident);
  for (int number = 0;; ++number) {
    const std::string path = fmt::format("{}/incident-{}.json", directory, number);
    if (MUSTER_TRY(write_new_file(path, text))) return path;
  }
}

Result<std::string> write_node_record(const std::string& directory, const Incident& incident) {
  const std::string path = fmt::format("{}/incident-generation{}-node{}.json", directory,
                                       incident.info.generation, incident.info.place.group_rank);
  if (MUSTER_TRY(write_new_file(path, record_text(incident)))) return path;
  return make_error(ErrorCode::kIo, "incident record {}: is there already", path);
}

bool has_error_files(const Incident& incident) {
  return std::any_of(incident.workers->begin(), incident.workers->end(), [&](const Worker& worker) {
    return read_error_file(error_path(incident, worker)).found;
  });
}

std::string incident_summary(const Incident& incident, const std::string& record) {
  const Worker* cause = cause_of(incident);
  std::string text =
      fmt::format("{} {} in attempt {}: {}\n", incident.plan->spec.title,
                  cause == nullptr && incident.cause_elsewhere < 0 ? "ended" : "failed",
                  incident.info.attempt, incident.decision.reason);
  text += fmt::format("  {:>4}  {:>8}  {:>10}  {:<10}  {}\n", "rank", "pid", "when", "", "end");
  for (const Worker& worker : *incident.workers) {
    const std::string when =
        cause == nullptr || !worker.exit
            ? "-"
            : fmt::format("{:+.1f} ms", milliseconds(worker.ended_at - cause->ended_at));
    text += fmt::format("  {:>4}  {:>8}  {:>10}  {:<10}  {}\n", global_rank_of(incident, worker),
                        worker.pid, when, role_of(incident, worker), how_it_ended(worker));
  }
  if (cause != nullptr) {
    const ErrorFile error = read_error_file(error_path(incident, *cause));
    if (error.found) {
      text += fmt::format("  error of global rank {}: {}\n", global_rank_of(incident, *cause),
                          trim(error.message));
      const std::string_view stack = trim(error.stack);
      for (const std::string& line : split(stack, '\n')) {
        if (!stack.empty()) text += "    " + line + "\n";
      }
    } else {
      append_last_lines(text, incident, cause->local_rank);
    }
  }
  if (keeps_logs(*incident.plan)) text += fmt::format("  logs: {}\n", incident.plan->log_dir);
  if (!record.empty()) text += fmt::format("  record: {}\n", record);
  return text;
}

ErrorFile read_error_file(const std::string& path) {
  ErrorFile error;
  if (path.empty()) return error;
  const Result<std::string> text = read_text(real_file_system(), path);
  if (!text.ok() || trim(*text).empty()) return error;
  error.found = true;
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("message")) {
    error.message = *text;
    return error;
  }
  const nlohmann::json& message = json["message"];
  if (!message.is_object()) {
    error.message = message.is_string() ? message.get<std::string>() : message.dump();
    return error;
  }
  const auto text_at = [](const nlohmann::json& object, const char* name) {
    const auto found = object.find(name);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  error.message = text_at(message, "message");
  const auto extra = message.find("extraInfo");
  if (extra != message.end() && extra->is_object()) error.stack = text_at(*extra, "py_callstack");
  return error;
}

void pass_on_error_file(const Incident& incident) {
  const Worker* cause = cause_of(incident);
  constexpr std::string_view kName = "TORCHELASTIC_ERROR_FILE=";
  std::string target;
  for (const std::string& entry : incident.plan->inherited) {
    if (entry.starts_with(kName)) target = entry.substr(kName.size());
  }
  if (cause == nullptr || target.empty()) return;
  const Result<std::string> text = read_text(real_file_system(), error_path(incident, *cause));
  if (!text.ok()) return;
  ordered_json json = ordered_json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) json = {{"message", *text}};
  json["errorCode"] = cause->exit->signal != 0 ? -cause->exit->signal : cause->exit->status;
  const Result<void> written =
      write_file_durably(real_file_system(), target,
                         json.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  if (!written.ok()) MUSTER_LOG(kError, "{}", written.error().what());
}

}  // namespace muster
