#include "launcher/report/timeline.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster {
namespace {
// A stretch of metrics.jsonl that one attempt wrote.
struct Stretch {
  int64_t first_row = 0;
  int64_t last_row = 0;
};

std::vector<Stretch> stretches_of(const MetricTable& metrics) {
  std::vector<Stretch> stretches;
  for (size_t row = 0; row < metrics.rows(); ++row) {
    const bool continues = row > 0 && metrics.attempt[row] == metrics.attempt[row - 1] &&
                           metrics.generation[row] == metrics.generation[row - 1];
    const auto number = static_cast<int64_t>(row);
    if (continues) {
      stretches.back().last_row = number;
    } else {
      stretches.push_back({number, number});
    }
  }
  return stretches;
}

// The attempts that events.jsonl knows, in order.
std::vector<Attempt> attempts_of_events(const std::vector<RunEvent>& events) {
  std::vector<Attempt> attempts;
  for (const RunEvent& event : events) {
    const bool starts = event.event == "group_ready";
    if (starts || attempts.empty() || attempts.back().attempt != event.attempt) {
      attempts.emplace_back().attempt = event.attempt;
      if (starts) attempts.back().ready_ns = event.time_ns;
    }
    if (event.event == "resumed") attempts.back().resumed_from = event.step;
    if (event.event == "finished") {
      attempts.back().is_finished = true;
      attempts.back().ended = fmt::format("finished at step {}", event.step.value_or(0));
    }
  }
  return attempts;
}

// Adds what the launcher alone knows: generations, and attempts that ended before their ranks met.
void add_attempts_of_agent(const std::vector<AgentRecord>& records, std::vector<Attempt>& starts) {
  std::vector<AgentRecord> begun;
  for (const AgentRecord& record : records) {
    if (record.event == "attempt_start") begun.push_back(record);
  }
  size_t at = 0;
  for (size_t i = 0; i < begun.size(); ++i) {
    const bool is_followed = i + 1 < begun.size() && begun[i + 1].time_ns > begun[i].time_ns;
    const int64_t end_ns = is_followed ? begun[i + 1].time_ns : INT64_MAX;
    const auto from = starts.begin() + static_cast<int64_t>(at);
    auto place = std::find_if(from, starts.end(), [&](const Attempt& start) {
      const int64_t ready_ns = start.ready_ns.value_or(begun[i].time_ns);
      return start.attempt == begun[i].attempt && ready_ns >= begun[i].time_ns && ready_ns < end_ns;
    });
    if (place == starts.end()) {
      place = std::find_if(from, starts.end(), [&](const Attempt& start) {
        return start.ready_ns.value_or(0) >= begun[i].time_ns;
      });
      place = starts.insert(place, Attempt());
      place->attempt = begun[i].attempt;
    }
    place->generation = begun[i].generation;
    at = static_cast<size_t>(place - starts.begin()) + 1;
  }
}

// May this attempt have written rows that begin at `time_ns`? `next` is the start after it.
bool may_have_written(const Attempt& start, const Attempt* next, int64_t attempt,
                      std::optional<int64_t> generation, std::optional<int64_t> time_ns) {
  if (start.attempt != attempt) return false;
  if (start.generation && generation) return *start.generation == *generation;
  if (!time_ns) return true;
  if (start.ready_ns && *start.ready_ns > *time_ns) return false;
  const bool next_was_earlier = next != nullptr && next->attempt == attempt && next->ready_ns &&
                                *next->ready_ns <= *time_ns &&
                                next->ready_ns >= start.ready_ns.value_or(0);
  return !next_was_earlier;
}

// Joins both views of the attempts. Either may miss some: a start without a step, torn lines.
std::vector<Attempt> join_attempts(const std::vector<Attempt>& starts, const MetricTable& metrics) {
  std::vector<Attempt> joined;
  size_t next_start = 0;
  for (const Stretch& stretch : stretches_of(metrics)) {
    const auto row = static_cast<size_t>(stretch.first_row);
    size_t match = next_start;
    while (match < starts.size() &&
           !may_have_written(starts[match],
                             match + 1 < starts.size() ? &starts[match + 1] : nullptr,
                             metrics.attempt[row], metrics.generation[row], metrics.time_ns[row])) {
      ++match;
    }
    Attempt attempt;
    attempt.attempt = metrics.attempt[row];
    if (match < starts.size()) {
      joined.insert(joined.end(), starts.begin() + static_cast<int64_t>(next_start),
                    starts.begin() + static_cast<int64_t>(match));
      attempt = starts[match];
      next_start = match + 1;
    }
    if (metrics.generation[row]) attempt.generation = metrics.generation[row];
    attempt.first_row = stretch.first_row;
    attempt.last_row = stretch.last_row;
    joined.push_back(std::move(attempt));
  }
  joined.insert(joined.end(), starts.begin() + static_cast<int64_t>(next_start), starts.end());
  return joined;
}

// Gives each incident's reason to the attempt that it ended.
void add_incidents(const std::vector<IncidentRecord>& incidents, std::vector<Attempt>& attempts) {
  size_t from = 0;
  for (const IncidentRecord& incident : incidents) {
    if (incident.is_damaged) continue;
    for (size_t at = from; at < attempts.size(); ++at) {
      Attempt& attempt = attempts[at];
      const bool other_generation =
          attempt.generation && incident.generation && *attempt.generation != *incident.generation;
      if (attempt.attempt != incident.attempt || other_generation) continue;
      if (!attempt.generation) attempt.generation = incident.generation;
      attempt.ended = incident.reason;
      from = at + 1;
      break;
    }
  }
  for (size_t at = 0; at < attempts.size(); ++at) {
    if (!attempts[at].ended.empty()) continue;
    attempts[at].ended = at + 1 < attempts.size() ? "ended without a record"
                                                  : "no end recorded: it runs, or it was killed";
  }
}

// When the workers of `attempt` began to end, by the agent's clock.
std::optional<int64_t> failure_time(const std::vector<AgentRecord>& records, int64_t attempt,
                                    int64_t not_before) {
  std::optional<int64_t> failed_ns;
  for (const AgentRecord& record : records) {
    if (failed_ns && record.event == "attempt_start") break;  // a later job in the same folder
    const bool exited = record.event == "worker_exit" && record.attempt == attempt;
    if (!exited || record.time_ns < not_before) continue;
    failed_ns = std::min(failed_ns.value_or(record.time_ns), record.time_ns);
  }
  return failed_ns;
}

void add_recovery_times(const RunFolder& run, std::vector<Attempt>& attempts) {
  std::optional<int64_t> last_ns;
  for (size_t at = 0; at < attempts.size(); ++at) {
    Attempt& attempt = attempts[at];
    if (!attempt.first_row) continue;
    const auto first_ns = run.metrics.time_ns[static_cast<size_t>(*attempt.first_row)];
    if (at > 0 && attempt.attempt > attempts[at - 1].attempt && last_ns && first_ns) {
      const auto failed_ns =
          failure_time(run.agent_records, attempts[at - 1].attempt, *last_ns).value_or(*last_ns);
      if (*first_ns >= failed_ns) {
        attempt.recovery_s = static_cast<double>(*first_ns - failed_ns) * 1e-9;
      }
    }
    last_ns = run.metrics.time_ns[static_cast<size_t>(*attempt.last_row)];
  }
}

void add_seconds(const MetricTable& metrics, Timeline& timeline) {
  std::optional<int64_t> before;
  if (!timeline.attempts.empty()) before = timeline.attempts.front().ready_ns;
  double seconds = 0;
  for (const std::optional<int64_t>& time_ns : metrics.time_ns) {
    if (!time_ns) {
      timeline.seconds.emplace_back();
      continue;
    }
    if (before && *time_ns >= *before) {
      seconds += static_cast<double>(*time_ns - *before) * 1e-9;
    } else if (before) {
      ++timeline.clock_restarts;
    }
    before = time_ns;
    timeline.seconds.emplace_back(seconds);
  }
}
}  // namespace

Timeline make_timeline(const RunFolder& run) {
  Timeline timeline;
  std::vector<Attempt> starts = attempts_of_events(run.events);
  add_attempts_of_agent(run.agent_records, starts);
  timeline.attempts = join_attempts(starts, run.metrics);
  add_incidents(run.incidents, timeline.attempts);
  add_recovery_times(run, timeline.attempts);
  add_seconds(run.metrics, timeline);
  return timeline;
}

std::vector<MeshAxis> mesh_axes(const RunFolder& run) {
  if (!run.recipe) return {};
  const Recipe::Mesh& mesh = run.recipe->mesh;
  const int64_t others = mesh.pp * mesh.dp_replicate * mesh.tp;
  int64_t fsdp = mesh.fsdp;
  if (fsdp < 0) {
    const int64_t world_size = run.world_size.value_or(0);
    fsdp = others > 0 && world_size % others == 0 ? world_size / others : 0;
  }
  return {{"pp", mesh.pp}, {"dp_replicate", mesh.dp_replicate}, {"fsdp", fsdp}, {"tp", mesh.tp}};
}
}  // namespace muster
