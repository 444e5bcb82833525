#include "launcher/drill/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace muster {
namespace {
using OrderedJson = nlohmann::ordered_json;

OrderedJson run_json(const RunFacts& run) {
  OrderedJson json;
  json["dir"] = run.directory;
  json["exit"] = run.exit_status;
  json["timed_out"] = run.timed_out;
  json["checkpoint"] =
      run.newest_checkpoint ? OrderedJson(*run.newest_checkpoint) : OrderedJson(nullptr);
  json["step_records"] = run.records.steps.size();
  json["damaged_lines"] = run.records.damaged_lines;
  return json;
}
}  // namespace

bool DrillReport::ok() const {
  return !checks.empty() &&
         std::all_of(checks.begin(), checks.end(), [](const Check& check) { return check.ok; });
}

std::string report_table(const DrillReport& report) {
  size_t width = 0;
  size_t failed = 0;
  for (const Check& check : report.checks) {
    width = std::max(width, check.name.size());
    if (!check.ok) ++failed;
  }
  std::string text;
  for (const Check& check : report.checks) {
    text += fmt::format("{:<4}  {:<{}}  {}\n", check.ok ? "ok" : "FAIL", check.name, width,
                        check.detail);
  }
  text += failed == 0
              ? fmt::format("drill {}: ok, {} checks hold\n", report.drill, report.checks.size())
              : fmt::format("drill {}: FAILED, {} of {} checks do not hold\n", report.drill, failed,
                            report.checks.size());
  return text;
}

std::string report_json(const DrillReport& report) {
  const DrillEvidence& evidence = report.evidence;
  OrderedJson json;
  json["drill"] = report.drill;
  json["ok"] = report.ok();
  json["restarts"] = count_restarts(evidence.faulted.records);
  const std::vector<int64_t> resumed = resumed_steps(evidence.faulted.records);
  json["resumed_from_step"] = resumed.empty() ? OrderedJson(nullptr) : OrderedJson(resumed.back());
  json["resumes"] = resumed;
  json["recovery_ms"] = OrderedJson::array();
  for (const std::optional<Duration>& time : recovery_times(evidence.faulted)) {
    json["recovery_ms"].push_back(time ? OrderedJson(to_seconds(*time) * 1e3)
                                       : OrderedJson(nullptr));
  }
  json["leftovers"] = evidence.reference.leftovers.size() + evidence.faulted.leftovers.size();
  json["checks"] = OrderedJson::array();
  for (const Check& check : report.checks) {
    json["checks"].push_back({{"name", check.name}, {"ok", check.ok}, {"detail", check.detail}});
  }
  json["runs"] = {{"reference", run_json(evidence.reference)},
                  {"faulted", run_json(evidence.faulted)}};
  return json.dump(2, ' ', /*ensure_ascii=*/true, OrderedJson::error_handler_t::replace) + "\n";
}
}  // namespace muster
