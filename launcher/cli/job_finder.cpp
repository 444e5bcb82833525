#include "launcher/cli/job_finder.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "core/base/file_system.h"
#include "core/base/text.h"
#include "launcher/agent/runtime_folder.h"
#include "launcher/agent/status_socket.h"

namespace muster {
namespace {
using nlohmann::ordered_json;
namespace stdfs = std::filesystem;

constexpr std::streamoff kTailNbytes = 64 << 10;
constexpr size_t kRateSteps = 20;  // the rate is over this many steps

bool is_meant(const std::string& name, const ordered_json& status) {
  if (name.empty()) return true;
  const std::string run_id = status["run_id"];
  const std::string id = status["id"];
  const std::string title = status["job"];
  const std::string run_dir = status["run_dir"];
  std::error_code error;
  return run_id.starts_with(name) || id.starts_with(name) || title == name ||
         stdfs::path(title).filename() == name ||
         (!run_dir.empty() && stdfs::equivalent(name, run_dir, error));
}

std::string end_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const std::streamoff size = file.tellg();
  const std::streamoff begin = std::max<std::streamoff>(0, size - kTailNbytes);
  std::string text(static_cast<size_t>(size - begin), '\0');
  file.seekg(begin);
  file.read(text.data(), size - begin);
  text.resize(static_cast<size_t>(std::max<std::streamsize>(0, file.gcount())));
  return text;
}
}  // namespace

std::optional<JobProgress> read_progress(std::string_view metrics) {
  struct Point {
    int64_t step;
    int64_t time_ns;
  };
  std::vector<Point> points;
  JobProgress progress;
  std::vector<std::string> lines = split(metrics, '\n');
  lines.pop_back();  // what follows the last line end is half a line, or nothing
  for (auto line = lines.rbegin(); line != lines.rend() && points.size() <= kRateSteps; ++line) {
    const ordered_json json = ordered_json::parse(*line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) continue;
    const auto number = [&](const char* name) {
      return json.contains(name) && json[name].is_number() ? json[name].get<double>() : 0.0;
    };
    const int64_t step = json["step"];
    if (points.empty()) {
      progress.step = step;
      progress.loss = number("loss");
      progress.tokens_per_s = number("tokens_per_s");
    } else if (step >= points.back().step) {
      break;  // of an earlier attempt, which went further
    }
    points.push_back({step, static_cast<int64_t>(number("t_ns"))});
  }
  if (points.empty()) return std::nullopt;
  const int64_t elapsed = points.front().time_ns - points.back().time_ns;
  if (elapsed > 0) {
    progress.steps_per_s = static_cast<double>(points.front().step - points.back().step) * 1e9 /
                           static_cast<double>(elapsed);
  }
  return progress;
}

Result<std::vector<FoundJob>> find_jobs(const std::string& name) {
  const std::string folder = MUSTER_TRY(runtime_folder());
  std::vector<FoundJob> jobs;
  for (const std::string& file : MUSTER_TRY(real_file_system().list(folder))) {
    if (!file.ends_with(".sock")) continue;
    const std::string path = path_join(folder, file);
    const Result<std::string> text = read_status(path);
    if (!text.ok()) {
      if (text.error().code() == ErrorCode::kNotFound) ::unlink(path.c_str());
      continue;
    }
    ordered_json status = ordered_json::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (!status.is_object() || !is_meant(name, status)) continue;
    FoundJob& job = jobs.emplace_back();
    job.status = std::move(status);
    const std::string run_dir = job.status["run_dir"];
    if (!run_dir.empty()) {
      job.progress = read_progress(end_of_file(path_join(run_dir, "metrics.jsonl")));
    }
  }
  if (jobs.empty() && !name.empty()) {
    return make_error(ErrorCode::kNotFound, "job \"{}\": must be one that runs now; got none{}",
                      name, "\n  fix: muster status lists those that do");
  }
  std::stable_sort(jobs.begin(), jobs.end(), [](const FoundJob& a, const FoundJob& b) {
    if (a.status["run_id"] != b.status["run_id"]) return a.status["run_id"] < b.status["run_id"];
    return a.status["role"] != "node" && b.status["role"] == "node";
  });
  return jobs;
}

}  // namespace muster
