#include "launcher/drill/compare.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>

#include "core/base/file_system.h"
#include "core/base/text.h"
#include "launcher/drill/progress.h"
#include "launcher/drill/report.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;

StepRecord step(int64_t number, int64_t attempt, double loss) {
  StepRecord record;
  record.step = number;
  record.attempt = attempt;
  record.loss = loss;
  record.loss_hex = hex_float(loss);
  record.grad_norm = loss / 2;
  return record;
}

// Steps 1 to `last` of a run whose loss is 6 / step.
RunRecords calm_run(int64_t last) {
  RunRecords records;
  for (int64_t i = 1; i <= last; ++i)
    records.steps.push_back(step(i, 0, 6.0 / static_cast<double>(i)));
  return records;
}

// The same, killed in step 5 and gone on from the checkpoint of step 2.
RunRecords restarted_run(int64_t last) {
  RunRecords records = calm_run(4);
  for (int64_t i = 3; i <= last; ++i)
    records.steps.push_back(step(i, 1, 6.0 / static_cast<double>(i)));
  read_agent_events(
      "{\"event\":\"job_start\",\"t_ns\":1}\n"
      "{\"event\":\"attempt_start\",\"t_ns\":2,\"attempt\":0}\n"
      "{\"event\":\"worker_exit\",\"t_ns\":1000000000,\"rank\":3,\"signal\":9}\n"
      "{\"event\":\"worker_exit\",\"t_ns\":1100000000,\"rank\":0,\"status\":75}\n"
      "{\"event\":\"attempt_start\",\"t_ns\":1200000000,\"attempt\":1}\n"
      "{\"event\":\"job_end\",\"t_ns\":9000000000,\"exit\":0,\"restarts\":1}\n",
      records);
  read_train_events("{\"event\":\"resumed\",\"from_step\":2,\"attempt\":1}\n", records);
  return records;
}

DrillEvidence evidence_of(RunRecords reference, RunRecords faulted, int64_t steps) {
  DrillEvidence evidence;
  evidence.reference.name = "reference";
  evidence.reference.records = std::move(reference);
  evidence.faulted.name = "faulted";
  evidence.faulted.records = std::move(faulted);
  evidence.faulted.first_step_seen_ns = {{0, 500}, {1, 1'250'000'000}};
  evidence.steps = steps;
  evidence.checkpoints = CheckpointVerdict{true, "step-00000006: equal"};
  return evidence;
}

Drill::Expect all_expected() {
  Drill::Expect expect;
  expect.restarts = 1;
  expect.resumed_from_steps = {2};
  expect.is_bit_identical = true;
  expect.recovery_limit = 1s;
  expect.loss_limit = 1.5;
  return expect;
}

// The names of the checks that do not hold.
std::vector<std::string> failed(const std::vector<Check>& checks) {
  std::vector<std::string> names;
  for (const Check& check : checks) {
    if (!check.ok) names.push_back(check.name);
  }
  return names;
}

TEST(Records, ReadsALineOfMetrics) {
  const auto record = read_step_record(
      R"({"step":7,"loss":2.5,"loss_hex":"0x1.4p+1","grad_norm":0.5,"lr":1e-3,"tokens":2048,)"
      R"("tokens_per_s":1e4,"rss_mb":90,"attempt":2,"generation":3,"t_ns":42})");
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->step, 7);
  EXPECT_EQ(record->attempt, 2);
  EXPECT_EQ(record->loss_hex, "0x1.4p+1");
  EXPECT_EQ(record->loss, 2.5);
  EXPECT_EQ(record->time_ns, 42);
}

TEST(Records, HalfALineIsCountedAndPassedOver) {
  RunRecords records;
  read_metrics(
      "{\"step\":1,\"loss_hex\":\"0x1p+1\"}\n{\"step\":2,\"lo{\"step\":2,\"loss_hex\":\"0x1p+0\"}"
      "\n\n{\"step\":3,\"loss_hex\":\"0x1p+0\"}\n{\"step\":4",
      records);
  ASSERT_EQ(records.steps.size(), 2u);
  EXPECT_EQ(records.steps[1].step, 3);
  EXPECT_EQ(records.damaged_lines, 2);
}

TEST(Records, ReadsSkippedCheckpointsByStepOrByName) {
  RunRecords records;
  read_train_events(
      "{\"event\":\"checkpoint_skipped\",\"step\":40,\"reason\":\"short\",\"attempt\":1}\n"
      "{\"event\":\"checkpoint_skipped\",\"name\":\"step-00000030\",\"reason\":\"r\"}\n"
      "{\"event\":\"something_else\"}\n",
      records);
  ASSERT_EQ(records.skips.size(), 2u);
  EXPECT_EQ(records.skips[0].step, 40);
  EXPECT_EQ(records.skips[0].reason, "short");
  EXPECT_EQ(records.skips[1].step, 30);
  EXPECT_EQ(records.damaged_lines, 0);
}

TEST(Compare, ARestartedRunWithTheSameNumbersHoldsEverywhere) {
  const auto checks = judge(all_expected(), evidence_of(calm_run(6), restarted_run(6), 6));
  EXPECT_THAT(failed(checks), ElementsAre());
  EXPECT_EQ(checks.size(), 11u);
}

TEST(Compare, OneDifferentBitIsFoundAndNamed) {
  RunRecords faulted = restarted_run(6);
  faulted.steps.back().loss_hex = hex_float(std::nextafter(1.0, 2.0));
  const Check check = compare_loss_curves(calm_run(6), faulted, 6);
  EXPECT_FALSE(check.ok);
  EXPECT_THAT(check.detail, HasSubstr("1 of 6 steps differ, first step 6 (attempt 1): loss 0x1p+0 "
                                      "and 0x1.0000000000001p+0"));
}

TEST(Compare, GradientNormAndLearningRateCountToo) {
  RunRecords faulted = calm_run(3);
  faulted.steps[1].grad_norm += 1;
  EXPECT_THAT(compare_loss_curves(calm_run(3), faulted, 3).detail, HasSubstr("grad_norm"));
  faulted = calm_run(3);
  faulted.steps[1].lr += 1;
  EXPECT_THAT(compare_loss_curves(calm_run(3), faulted, 3).detail, HasSubstr("lr 0 and 1"));
}

TEST(Compare, AMissingStepIsADifference) {
  EXPECT_THAT(compare_loss_curves(calm_run(6), calm_run(5), 6).detail,
              HasSubstr("step 6 is missing in the faulted run"));
  EXPECT_FALSE(compare_loss_curves(calm_run(5), calm_run(5), 6).ok);
  EXPECT_FALSE(compare_loss_curves(RunRecords{}, RunRecords{}, 6).ok);
  EXPECT_FALSE(compare_loss_curves(calm_run(6), calm_run(7), 6).ok);
}

TEST(Compare, AReplayThatDiffersIsFoundEvenWhenTheFinalCurveIsRight) {
  RunRecords faulted = restarted_run(6);
  faulted.steps[2].loss_hex = "0x1p+7";  // step 3 of attempt 0, which attempt 1 replaced
  EXPECT_TRUE(compare_loss_curves(calm_run(6), faulted, 6).ok);
  const Check check = compare_replays(faulted);
  EXPECT_FALSE(check.ok);
  EXPECT_THAT(check.detail, HasSubstr("step 3 of attempts 0 and 1"));
}

TEST(Compare, RestartsComeFromTheAgentsLastWordElseFromItsAttempts) {
  EXPECT_EQ(count_restarts(restarted_run(6)), 1);
  RunRecords cut_off = restarted_run(6);
  cut_off.agent_events.pop_back();
  EXPECT_EQ(count_restarts(cut_off), 1);
  EXPECT_EQ(count_restarts(RunRecords{}), 0);
}

TEST(Compare, ResumedStepsComeFromTheTrainerElseFromItsFirstStep) {
  RunRecords records = restarted_run(6);
  EXPECT_THAT(resumed_steps(records), ElementsAre(2));
  records.resumes.clear();
  EXPECT_THAT(resumed_steps(records), ElementsAre(2));
  EXPECT_THAT(resumed_steps(calm_run(6)), ElementsAre());
}

TEST(Compare, RecoveryRunsFromTheFirstExitToTheFirstStepAfterIt) {
  DrillEvidence evidence = evidence_of(calm_run(6), restarted_run(6), 6);
  EXPECT_THAT(recovery_times(evidence.faulted), ElementsAre(Duration(250ms)));
  evidence.faulted.records.steps[4].time_ns = 1'200'000'000;  // the trainer's own time is better
  EXPECT_THAT(recovery_times(evidence.faulted), ElementsAre(Duration(200ms)));
  evidence.faulted.records.steps[4].time_ns.reset();
  evidence.faulted.first_step_seen_ns.clear();
  EXPECT_THAT(recovery_times(evidence.faulted), ElementsAre(std::nullopt));
  EXPECT_THAT(failed(judge(all_expected(), evidence)), ElementsAre("recovery"));
}

TEST(Compare, EveryUnmetExpectationFailsItsOwnCheck) {
  const DrillEvidence good = evidence_of(calm_run(6), restarted_run(6), 6);
  const auto failed_with = [&](auto change) {
    Drill::Expect expect = all_expected();
    change(expect);
    return failed(judge(expect, good));
  };
  EXPECT_THAT(failed_with([](auto& e) { e.restarts = 2; }), ElementsAre("restarts"));
  EXPECT_THAT(failed_with([](auto& e) { e.resumed_from_steps = {3}; }),
              ElementsAre("resumed from step"));
  EXPECT_THAT(failed_with([](auto& e) {
                e.resumed_from_steps = {2, 2};
              }),
              ElementsAre("resumed from step"));
  EXPECT_THAT(failed_with([](auto& e) { e.recovery_limit = 250ms; }), ElementsAre("recovery"));
  EXPECT_THAT(failed_with([](auto& e) { e.loss_limit = 1.0; }), ElementsAre("final loss"));
  EXPECT_THAT(failed_with([](auto& e) { e.skipped_checkpoints = {4}; }),
              ElementsAre("checkpoint skipped"));
}

TEST(Compare, WhatNoDrillMayDoAlwaysFails) {
  const auto failed_with = [](auto change) {
    DrillEvidence evidence = evidence_of(calm_run(6), restarted_run(6), 6);
    change(evidence);
    return failed(judge(Drill::Expect{}, evidence));
  };
  EXPECT_THAT(failed_with([](auto&) {}), ElementsAre());
  EXPECT_THAT(failed_with([](auto& e) { e.reference.exit_status = 1; }),
              ElementsAre("reference exit"));
  EXPECT_THAT(failed_with([](auto& e) { e.faulted.timed_out = true; }),
              ElementsAre("faulted exit"));
  EXPECT_THAT(failed_with([](auto& e) { e.faulted.leftovers = {"pid 1 x"}; }),
              ElementsAre("faulted leftovers"));
  EXPECT_THAT(failed_with([](auto& e) { e.checkpoints->ok = false; }),
              ElementsAre("final checkpoint"));
}

TEST(Compare, ASkippedCheckpointMustGiveItsReason) {
  Drill::Expect expect;
  expect.skipped_checkpoints = {4};
  DrillEvidence evidence = evidence_of(calm_run(6), restarted_run(6), 6);
  evidence.faulted.records.skips = {{4, 1, "checksum of chunk 0 differs"}};
  EXPECT_THAT(failed(judge(expect, evidence)), ElementsAre());
  evidence.faulted.records.skips[0].reason.clear();
  EXPECT_THAT(failed(judge(expect, evidence)), ElementsAre("checkpoint skipped"));
}

TEST(Compare, ALossThatIsNoNumberIsNotBelowAnything) {
  RunRecords records;
  read_metrics("{\"step\":1,\"loss\":null,\"loss_hex\":\"nan\"}\n", records);
  ASSERT_EQ(records.steps.size(), 1u);
  Drill::Expect expect;
  expect.loss_limit = 100;
  EXPECT_THAT(failed(judge(expect, evidence_of(records, records, 1))), ElementsAre("final loss"));
  EXPECT_TRUE(compare_loss_curves(records, records, 1).ok);
}

TEST(Report, TheTableShowsEachCheckAndTheVerdict) {
  DrillReport report;
  report.drill = "d.yaml";
  report.checks = {{"restarts", true, "1; expected 1"}, {"loss curve", false, "step 3"}};
  EXPECT_EQ(report_table(report),
            "ok    restarts    1; expected 1\n"
            "FAIL  loss curve  step 3\n"
            "drill d.yaml: FAILED, 1 of 2 checks do not hold\n");
  EXPECT_FALSE(report.ok());
  report.checks.pop_back();
  EXPECT_TRUE(report.ok());
  EXPECT_FALSE(DrillReport{}.ok());  // nothing checked is not a success
}

TEST(Report, TheJsonHoldsWhatProgramsNeed) {
  DrillReport report;
  report.drill = "d.yaml";
  report.evidence = evidence_of(calm_run(6), restarted_run(6), 6);
  report.evidence.faulted.directory = "/x/faulted";
  report.checks = judge(all_expected(), report.evidence);
  const nlohmann::json json = nlohmann::json::parse(report_json(report));
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["restarts"], 1);
  EXPECT_EQ(json["resumed_from_step"], 2);
  EXPECT_EQ(json["recovery_ms"], nlohmann::json::array({250.0}));
  EXPECT_EQ(json["leftovers"], 0);
  EXPECT_EQ(json["checks"].size(), report.checks.size());
  EXPECT_EQ(json["runs"]["faulted"]["dir"], "/x/faulted");
}

TEST(ProgressMeter, SaysWhereTheRunStandsAndWhenItEnds) {
  ProgressMeter meter("faulted", 11);
  EXPECT_EQ(meter.line(), "faulted: starting");
  StepRecord record = step(1, 0, 2.5);
  record.tokens_per_s = 54'100;
  meter.saw(record, 1'000'000'000);
  EXPECT_EQ(meter.line(), "faulted: step 1 of 11, loss 2.5000, 54.1 k tokens/s");
  record.step = 3;
  meter.saw(record, 5'000'000'000);  // 2 s a step, 8 steps left
  EXPECT_EQ(meter.line(), "faulted: step 3 of 11, loss 2.5000, 54.1 k tokens/s, 16 s left");
  record.attempt = 1;
  meter.saw(record, 50'000'000'000);  // a new attempt starts a new estimate
  EXPECT_EQ(meter.line(), "faulted: step 3 of 11, loss 2.5000, 54.1 k tokens/s, attempt 1");
  EXPECT_EQ(meter.first_step_seen_ns().at(0), 1'000'000'000);
  EXPECT_EQ(meter.first_step_seen_ns().at(1), 50'000'000'000);
}

TEST(MetricsFollower, GivesEachLineOnceAndWaitsForItsEnd) {
  const TempDirectory folder;
  const std::string path = folder.file("metrics.jsonl");
  MetricsFollower follower(path);
  EXPECT_TRUE(follower.read_new().empty());
  std::FILE* file = std::fopen(path.c_str(), "w");
  ASSERT_NE(file, nullptr);
  const auto append = [&](const char* text) {
    std::fputs(text, file);
    std::fflush(file);
  };
  append("{\"step\":1,\"loss_hex\":\"0x1p+0\"}\n{\"step\":2,\"loss");
  ASSERT_EQ(follower.read_new().size(), 1u);
  EXPECT_TRUE(follower.read_new().empty());
  append("_hex\":\"0x1p+0\"}\n");
  const auto records = follower.read_new();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].step, 2);
  std::fclose(file);
}

// An incident of attempt 0 in which these ranks left these errors.
std::string incident(const std::vector<std::pair<int, std::string>>& errors) {
  nlohmann::json json{{"attempt", 0}, {"ranks", nlohmann::json::array()}};
  for (const auto& [global_rank, message] : errors) {
    json["ranks"].push_back({{"global_rank", global_rank}, {"error", {{"message", message}}}});
  }
  return json.dump();
}

TEST(Judge, ARankIsNamedOnlyIfEveryOtherErrorNamesIt) {
  RunRecords faulted = calm_run(4);
  for (StepRecord& record : faulted.steps) record.time_ns = record.step * 100'000'000;
  read_agent_events(
      "{\"event\":\"attempt_start\",\"t_ns\":2,\"attempt\":0}\n"
      "{\"event\":\"worker_exit\",\"t_ns\":900000000,\"status\":75}\n",
      faulted);
  read_incident(incident({{0, "group rank 2 (global 2) has not arrived"},
                          {1, "group rank 2 (global 2) has not arrived"},
                          {2, "what the culprit says does not count"}}),
                faulted);
  Drill::Expect expect;
  expect.exit_status = 75;
  expect.named = Drill::Named{.global_rank = 2, .limit = 1s};
  DrillEvidence evidence = evidence_of(calm_run(6), faulted, 6);
  evidence.checkpoints.reset();
  evidence.faulted.exit_status = 75;
  EXPECT_THAT(failed(judge(expect, evidence)), ElementsAre());

  expect.named->limit = 400ms;  // 0.5 s passed since step 4
  EXPECT_THAT(failed(judge(expect, evidence)), ElementsAre("named in time"));
  expect.named->limit.reset();
  expect.named->by = 3;
  EXPECT_THAT(failed(judge(expect, evidence)), ElementsAre("rank named"));
  expect.named->by = 1;
  read_incident(incident({{3, "something else"}}), evidence.faulted.records);
  EXPECT_THAT(failed(judge(expect, evidence)), ElementsAre("rank named"));
  expect.exit_status = 0;
  EXPECT_THAT(failed(judge(expect, evidence)), ElementsAre("faulted exit", "rank named"));
}

TEST(Judge, TheSlowRankMustBeTheOneThatWasExpected) {
  RunRecords faulted = calm_run(6);
  Drill::Expect expect;
  expect.slow_rank = 3;
  DrillEvidence evidence = evidence_of(calm_run(6), faulted, 6);
  EXPECT_THAT(failed(judge(expect, evidence)), ElementsAre("slow rank named"));
  read_train_events("{\"event\":\"slow_rank\",\"global_rank\":3,\"text\":\"all_reduce\"}\n",
                    evidence.faulted.records);
  EXPECT_THAT(failed(judge(expect, evidence)), ElementsAre());
  read_train_events("{\"event\":\"slow_rank\",\"global_rank\":1,\"text\":\"all_reduce\"}\n",
                    evidence.faulted.records);
  EXPECT_THAT(failed(judge(expect, evidence)), ElementsAre("slow rank named"));
}

TEST(Judge, AResizedRunLoadsWhatWasSavedAndReachesTheEnd) {
  RunRecords faulted = calm_run(5);
  read_train_events(
      "{\"event\":\"saved\",\"step\":4,\"digest\":\"aa\"}\n"
      "{\"event\":\"resumed\",\"from_step\":4,\"digest\":\"ab\",\"attempt\":0}\n",
      faulted);
  Drill::Expect expect;
  expect.resumed_from_steps = {4};
  DrillEvidence evidence = evidence_of(calm_run(6), faulted, 6);
  evidence.is_resized = true;
  EXPECT_THAT(failed(judge(expect, evidence)), ElementsAre("resize", "goes on"));
  evidence.faulted.records = calm_run(6);
  read_train_events(
      "{\"event\":\"saved\",\"step\":4,\"digest\":\"aa\"}\n"
      "{\"event\":\"resumed\",\"from_step\":4,\"digest\":\"aa\",\"attempt\":0}\n",
      evidence.faulted.records);
  EXPECT_THAT(failed(judge(expect, evidence)), ElementsAre());
}
}  // namespace
}  // namespace muster
