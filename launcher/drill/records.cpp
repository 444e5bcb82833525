#include "launcher/drill/records.h"

#include <nlohmann/json.hpp>

#include "core/base/json_lines.h"
#include "core/base/text.h"

namespace muster {
namespace {
using Json = nlohmann::json;

std::optional<double> number_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

}  // namespace

std::optional<StepRecord> read_step_record(std::string_view line) {
  const std::optional<Json> json = parse_json_object(line);
  if (!json) return std::nullopt;
  const std::optional<int64_t> step = int_field(*json, "step");
  StepRecord record;
  record.loss_hex = text_field(*json, "loss_hex");
  if (!step || record.loss_hex.empty()) return std::nullopt;
  record.step = *step;
  record.attempt = int_field(*json, "attempt").value_or(0);
  // A loss that is no number is written as null; its bits are in loss_hex all the same.
  record.loss = number_of(*json, "loss").value_or(std::numeric_limits<double>::quiet_NaN());
  record.grad_norm = number_of(*json, "grad_norm").value_or(0);
  record.lr = number_of(*json, "lr").value_or(0);
  record.tokens_per_s = number_of(*json, "tokens_per_s").value_or(0);
  record.time_ns = int_field(*json, "t_ns");
  return record;
}

void read_metrics(std::string_view text, RunRecords& records) {
  records.damaged_lines += for_each_line(text, [&](std::string_view line) {
    std::optional<StepRecord> record = read_step_record(line);
    if (record) records.steps.push_back(std::move(*record));
    return record.has_value();
  });
}

void read_train_events(std::string_view text, RunRecords& records) {
  records.damaged_lines += for_each_line(text, [&](std::string_view line) {
    const std::optional<Json> json = parse_json_object(line);
    if (!json) return false;
    const std::string event = text_field(*json, "event");
    const int64_t attempt = int_field(*json, "attempt").value_or(0);
    if (event == "resumed") {
      const std::optional<int64_t> step = int_field(*json, "from_step");
      if (!step) return false;
      records.resumes.push_back({*step, attempt, text_field(*json, "digest")});
    } else if (event == "saved") {
      const std::optional<int64_t> step = int_field(*json, "step");
      if (!step) return false;
      records.saves.push_back({*step, text_field(*json, "digest")});
    } else if (event == "slow_rank") {
      const std::optional<int64_t> rank = int_field(*json, "global_rank");
      if (!rank) return false;
      records.slow_ranks.push_back({*rank, text_field(*json, "text")});
    } else if (event == "checkpoint_skipped") {
      std::optional<int64_t> step = int_field(*json, "step");
      if (!step) step = step_of_checkpoint_name(text_field(*json, "name"));
      if (!step) return false;
      records.skips.push_back({*step, attempt, text_field(*json, "reason")});
    }
    return true;
  });
}

void read_incident(std::string_view text, RunRecords& records) {
  const std::optional<Json> json = parse_json_object(text);
  if (!json || !json->contains("ranks") || !json->at("ranks").is_array()) {
    ++records.damaged_lines;
    return;
  }
  const int64_t attempt = int_field(*json, "attempt").value_or(0);
  std::vector<Json> ranks(json->at("ranks").begin(), json->at("ranks").end());
  if (json->contains("cause")) ranks.push_back(json->at("cause"));
  for (const Json& rank : ranks) {
    if (!rank.is_object() || !rank.contains("error") || !rank.at("error").is_object()) continue;
    records.errors.push_back({int_field(rank, "global_rank").value_or(-1), attempt,
                              text_field(rank.at("error"), "message")});
  }
}

void read_agent_events(std::string_view text, RunRecords& records) {
  int64_t attempt = 0;
  records.damaged_lines += for_each_line(text, [&](std::string_view line) {
    const std::optional<Json> json = parse_json_object(line);
    if (!json) return false;
    AgentEvent event;
    event.name = text_field(*json, "event");
    if (event.name.empty()) return false;
    if (event.name == "attempt_start") attempt = int_field(*json, "attempt").value_or(attempt);
    event.attempt = attempt;
    event.time_ns = int_field(*json, "t_ns").value_or(0);
    event.exit = int_field(*json, "exit");
    event.restarts = int_field(*json, "restarts");
    records.agent_events.push_back(std::move(event));
    return true;
  });
}
}  // namespace muster
