#include "launcher/drill/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/base/text.h"

namespace muster {
namespace {
bool is_same_number(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// What differs between two records of one step, or "".
std::string step_difference(const StepRecord& a, const StepRecord& b) {
  if (a.loss_hex != b.loss_hex) return fmt::format("loss {} and {}", a.loss_hex, b.loss_hex);
  if (!is_same_number(a.grad_norm, b.grad_norm)) {
    return fmt::format("grad_norm {} and {}", a.grad_norm, b.grad_norm);
  }
  if (!is_same_number(a.lr, b.lr)) return fmt::format("lr {} and {}", a.lr, b.lr);
  return "";
}

std::string steps_text(const std::vector<int64_t>& steps) {
  return steps.empty() ? "none" : fmt::format("{}", fmt::join(steps, ", "));
}

// The attempts that the run recorded, ascending.
std::set<int64_t> attempts_of(const RunRecords& records) {
  std::set<int64_t> attempts;
  for (const StepRecord& step : records.steps) attempts.insert(step.attempt);
  for (const AgentEvent& event : records.agent_events) {
    if (event.name == "attempt_start") attempts.insert(event.attempt);
  }
  for (const ResumeRecord& resume : records.resumes) attempts.insert(resume.attempt);
  return attempts;
}

std::optional<int64_t> first_step_ns(const RunFacts& run, int64_t attempt) {
  for (const StepRecord& step : run.records.steps) {
    if (step.attempt == attempt && step.time_ns) return step.time_ns;
  }
  const auto seen = run.first_step_seen_ns.find(attempt);
  if (seen == run.first_step_seen_ns.end()) return std::nullopt;
  return seen->second;
}

// An exit on another node may be told after later ones on the host's own.
std::optional<int64_t> first_exit_ns(const RunRecords& records, int64_t attempt) {
  std::optional<int64_t> first;
  for (const AgentEvent& event : records.agent_events) {
    if (event.name != "worker_exit" || event.attempt != attempt) continue;
    first = std::min(first.value_or(event.time_ns), event.time_ns);
  }
  return first;
}

Check check_exit(const RunFacts& run, int64_t expected) {
  const std::string name = run.name + " exit";
  if (run.timed_out) return {name, false, "ran past launch.limit and was ended"};
  std::string detail = fmt::format("status {}", run.exit_status);
  if (expected != 0) detail += fmt::format("; expected {}", expected);
  return {name, run.exit_status == expected, detail};
}

Check check_fired(const DrillEvidence& evidence) {
  const std::vector<std::string>& missed = evidence.missed_faults;
  if (missed.empty()) return {"faults fired", true, fmt::format("all {}", evidence.num_faults)};
  return {"faults fired", false,
          fmt::format("{} of {} never did: {}", missed.size(), evidence.num_faults, join(missed))};
}

// The culprit stands in the errors as "(global 2)"; the culprit itself may say anything.
Check check_named(const Drill::Named& expected, const RunRecords& faulted) {
  const std::string wanted = fmt::format("(global {})", expected.global_rank);
  std::set<int64_t> saying, silent;
  for (const RankError& error : faulted.errors) {
    if (error.global_rank == expected.global_rank) continue;
    const bool names = error.message.find(wanted) != std::string::npos;
    (names ? saying : silent).insert(error.global_rank);
  }
  std::string detail =
      fmt::format("global rank {} is named by the errors of {} ranks, missing in {}",
                  expected.global_rank, saying.size(), silent.size());
  if (expected.by > 1) detail += fmt::format("; expected by {}", expected.by);
  const bool enough = static_cast<int64_t>(saying.size()) >= expected.by;
  return {"rank named", enough && silent.empty(), detail};
}

// From the last step that the first attempt completed to the first exit: more than the time that
// the fault itself took to be named.
Check check_naming_time(Duration limit, const RunRecords& faulted) {
  std::optional<int64_t> last_step_ns;
  for (const StepRecord& step : faulted.steps) {
    if (step.attempt == 0 && step.time_ns) last_step_ns = step.time_ns;
  }
  const std::optional<int64_t> exit_ns = first_exit_ns(faulted, 0);
  if (!last_step_ns || !exit_ns) return {"named in time", false, "not recorded"};
  const Duration took(*exit_ns - *last_step_ns);
  return {"named in time", took < limit,
          fmt::format("{}; limit {}", format_duration(took), format_duration(limit))};
}

Check check_slow_rank(int64_t expected, const RunRecords& faulted) {
  std::set<int64_t> seen;
  for (const SlowRecord& slow : faulted.slow_ranks) seen.insert(slow.global_rank);
  std::vector<int64_t> list(seen.begin(), seen.end());
  return {"slow rank named", seen == std::set<int64_t>{expected},
          fmt::format("{}; expected {}", steps_text(list), expected)};
}

// What the run went on from with another number of workers is what it had saved, to the last bit.
Check check_resize(const RunRecords& faulted) {
  if (faulted.resumes.empty()) return {"resize", false, "the second launch resumed nothing"};
  const ResumeRecord& resume = faulted.resumes.back();
  for (const SaveRecord& save : faulted.saves) {
    if (save.step != resume.from_step) continue;
    return {"resize", !save.digest.empty() && save.digest == resume.digest,
            fmt::format("step {} was saved with digest {}, loaded with {}", save.step, save.digest,
                        resume.digest)};
  }
  return {"resize", false, fmt::format("step {} was never saved", resume.from_step)};
}

Check check_reaches_the_end(const RunRecords& faulted, int64_t steps) {
  const auto curve = final_curve(faulted.steps);
  const int64_t last = curve.empty() ? 0 : curve.rbegin()->first;
  return {"goes on", last == steps, fmt::format("step {} of {}", last, steps)};
}

Check check_leftovers(const RunFacts& run) {
  if (run.leftovers.empty()) return {run.name + " leftovers", true, "no process left"};
  return {run.name + " leftovers", false,
          fmt::format("{} left: {}", run.leftovers.size(), join(run.leftovers))};
}

Check check_resumed(const std::vector<int64_t>& expected, const RunRecords& faulted) {
  const std::vector<int64_t> seen = resumed_steps(faulted);
  return {"resumed from step", seen == expected,
          fmt::format("{}; expected {}", steps_text(seen), steps_text(expected))};
}

Check check_skipped(const std::vector<int64_t>& expected, const RunRecords& faulted) {
  std::vector<int64_t> seen;
  std::vector<std::string> reasons;
  bool all_explained = true;
  for (const SkipRecord& skip : faulted.skips) {
    seen.push_back(skip.step);
    all_explained = all_explained && !skip.reason.empty();
    reasons.push_back(fmt::format("step {}: {}", skip.step,
                                  skip.reason.empty() ? "no reason given" : skip.reason));
  }
  std::string detail = fmt::format("{}; expected {}", steps_text(seen), steps_text(expected));
  if (!reasons.empty()) detail += fmt::format(" ({})", join(reasons));
  return {"checkpoint skipped", seen == expected && all_explained, detail};
}

Check check_recovery(Duration limit, const RunFacts& faulted) {
  const std::vector<std::optional<Duration>> times = recovery_times(faulted);
  if (times.empty()) return {"recovery", false, "no restart happened"};
  bool ok = true;
  std::vector<std::string> texts;
  for (const std::optional<Duration>& time : times) {
    ok = ok && time && *time < limit;
    texts.push_back(time ? format_duration(*time) : "not recorded");
  }
  return {"recovery", ok, fmt::format("{}; limit {}", join(texts), format_duration(limit))};
}

Check check_loss(double limit, const RunRecords& faulted) {
  const auto curve = final_curve(faulted.steps);
  if (curve.empty()) return {"final loss", false, "no step recorded"};
  const StepRecord& last = curve.rbegin()->second;
  return {"final loss", last.loss < limit,
          fmt::format("{:.4f} at step {}; expected below {}", last.loss, last.step, limit)};
}
}  // namespace

std::map<int64_t, StepRecord> final_curve(const std::vector<StepRecord>& steps) {
  std::map<int64_t, StepRecord> curve;
  for (const StepRecord& step : steps) curve[step.step] = step;
  return curve;
}

Check compare_loss_curves(const RunRecords& reference, const RunRecords& faulted, int64_t steps) {
  const std::string name = "loss curve";
  const auto expected = final_curve(reference.steps);
  const auto seen = final_curve(faulted.steps);
  int64_t differing = 0;
  std::string first_difference;
  for (int64_t step = 1; step <= steps; ++step) {
    const auto a = expected.find(step);
    const auto b = seen.find(step);
    if (a == expected.end() || b == seen.end()) {
      return {name, false,
              fmt::format("step {} is missing in the {} run", step,
                          a == expected.end() ? "reference" : "faulted")};
    }
    const std::string difference = step_difference(a->second, b->second);
    if (difference.empty()) continue;
    ++differing;
    if (first_difference.empty()) {
      first_difference =
          fmt::format("step {} (attempt {}): {}", step, b->second.attempt, difference);
    }
  }
  if (differing > 0) {
    return {name, false,
            fmt::format("{} of {} steps differ, first {}", differing, steps, first_difference)};
  }
  if (expected.size() != seen.size()) {
    return {name, false,
            fmt::format("{} steps in the reference run, {} in the faulted run", expected.size(),
                        seen.size())};
  }
  return {name, true, fmt::format("{} steps, bit-identical", steps)};
}

Check compare_replays(const RunRecords& faulted) {
  std::map<int64_t, const StepRecord*> first;
  int64_t replays = 0;
  for (const StepRecord& step : faulted.steps) {
    const auto [earlier, is_new] = first.emplace(step.step, &step);
    if (is_new) continue;
    ++replays;
    const std::string difference = step_difference(*earlier->second, step);
    if (difference.empty()) continue;
    return {"replayed steps", false,
            fmt::format("step {} of attempts {} and {}: {}", step.step, earlier->second->attempt,
                        step.attempt, difference)};
  }
  return {"replayed steps", true, fmt::format("{} ran again with equal results", replays)};
}

int64_t count_restarts(const RunRecords& records) {
  int64_t starts = 0;
  std::optional<int64_t> said;
  for (const AgentEvent& event : records.agent_events) {
    if (event.name == "attempt_start") ++starts;
    if (event.name == "job_end") said = event.restarts;
  }
  return said.value_or(std::max<int64_t>(0, starts - 1));
}

std::vector<int64_t> resumed_steps(const RunRecords& records) {
  std::vector<int64_t> resumed;
  for (const int64_t attempt : attempts_of(records)) {
    const auto told =
        std::find_if(records.resumes.begin(), records.resumes.end(),
                     [&](const ResumeRecord& resume) { return resume.attempt == attempt; });
    if (told != records.resumes.end()) {
      resumed.push_back(told->from_step);
      continue;
    }
    if (attempt == 0) continue;  // it began from nothing
    const auto step = std::find_if(records.steps.begin(), records.steps.end(),
                                   [&](const StepRecord& s) { return s.attempt == attempt; });
    if (step != records.steps.end()) resumed.push_back(step->step - 1);
  }
  return resumed;
}

std::vector<std::optional<Duration>> recovery_times(const RunFacts& faulted) {
  std::vector<std::optional<Duration>> times;
  for (const int64_t attempt : attempts_of(faulted.records)) {
    if (attempt == 0) continue;
    const std::optional<int64_t> death = first_exit_ns(faulted.records, attempt - 1);
    const std::optional<int64_t> step = first_step_ns(faulted, attempt);
    if (death && step && *step >= *death) {
      times.emplace_back(Duration(*step - *death));
    } else {
      times.emplace_back(std::nullopt);
    }
  }
  return times;
}

Check check_agents(const std::string& name, const AgentPoolFacts& agents, int64_t expected_kills,
                   int64_t expected_exit) {
  std::string detail = fmt::format("{} started beside the first, {} killed; expected {}",
                                   agents.started, agents.killed, expected_kills);
  const std::vector<int>& failures = agents.other_failures;
  if (!failures.empty()) detail += fmt::format("; others exited {}", fmt::join(failures, ", "));
  if (expected_exit != 0) detail += fmt::format("; expected {}", expected_exit);
  const auto others = static_cast<size_t>(agents.started - agents.killed);
  const bool as_expected =
      expected_exit == 0
          ? failures.empty()
          : failures.size() == others &&
                std::all_of(failures.begin(), failures.end(),
                            [expected_exit](int status) { return status == expected_exit; });
  return {name, agents.killed == expected_kills && as_expected, detail};
}

// The second launch, with other workers, has no faults.
void check_all_agents(const RunFacts& run, int64_t expected_kills, int64_t expected_exit,
                      std::vector<Check>& checks) {
  for (size_t launch = 0; launch < run.agents.size(); ++launch) {
    const bool is_first = launch == 0;
    checks.push_back(check_agents(run.name + (is_first ? " agents" : " agents, resized"),
                                  run.agents[launch], is_first ? expected_kills : 0,
                                  is_first ? expected_exit : 0));
  }
}

std::vector<Check> judge(const Drill::Expect& expect, const DrillEvidence& evidence) {
  const RunRecords& faulted = evidence.faulted.records;
  std::vector<Check> checks = {check_exit(evidence.reference, 0),
                               check_exit(evidence.faulted, expect.exit_status)};
  if (evidence.num_faults > 0) checks.push_back(check_fired(evidence));
  check_all_agents(evidence.reference, 0, 0, checks);
  check_all_agents(evidence.faulted, evidence.killed_agents, expect.agents_exit.value_or(0),
                   checks);
  if (expect.named) {
    checks.push_back(check_named(*expect.named, faulted));
    if (expect.named->limit) checks.push_back(check_naming_time(*expect.named->limit, faulted));
  }
  if (expect.slow_rank) checks.push_back(check_slow_rank(*expect.slow_rank, faulted));
  if (evidence.is_resized) {
    checks.push_back(check_resize(faulted));
    checks.push_back(check_reaches_the_end(faulted, evidence.steps));
  }
  if (expect.restarts) {
    const int64_t restarts = count_restarts(faulted);
    checks.push_back({"restarts", restarts == *expect.restarts,
                      fmt::format("{}; expected {}", restarts, *expect.restarts)});
  }
  if (!expect.resumed_from_steps.empty()) {
    checks.push_back(check_resumed(expect.resumed_from_steps, faulted));
  }
  if (!expect.skipped_checkpoints.empty()) {
    checks.push_back(check_skipped(expect.skipped_checkpoints, faulted));
  }
  if (expect.is_bit_identical) {
    checks.push_back(compare_loss_curves(evidence.reference.records, faulted, evidence.steps));
    checks.push_back(compare_replays(faulted));
  }
  if (evidence.checkpoints) {
    checks.push_back({"final checkpoint", evidence.checkpoints->ok, evidence.checkpoints->detail});
  }
  if (expect.loss_limit) checks.push_back(check_loss(*expect.loss_limit, faulted));
  if (expect.recovery_limit)
    checks.push_back(check_recovery(*expect.recovery_limit, evidence.faulted));
  checks.push_back(check_leftovers(evidence.reference));
  checks.push_back(check_leftovers(evidence.faulted));
  return checks;
}
}  // namespace muster
