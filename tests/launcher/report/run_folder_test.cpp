// What a report makes of the files of a run, whole or torn.
#include "launcher/report/run_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cmath>

#include "core/base/file_system.h"
#include "launcher/report/pipeline_drawing.h"
#include "launcher/report/rank_logs.h"
#include "launcher/report/timeline.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string step_line(int64_t step, int64_t attempt, int64_t generation, int64_t t_ns) {
  return fmt::format(
      R"({{"step":{},"loss":1.5,"loss_hex":"0x1.8p+0","attempt":{},"generation":{},"t_ns":{}}})"
      "\n",
      step, attempt, generation, t_ns);
}

RunFolder folder_of(std::string_view metrics, std::string_view events) {
  RunFolder run;
  EXPECT_EQ(read_metric_lines(metrics, run.metrics), 0);
  EXPECT_EQ(read_event_lines(events, run.events), 0);
  return run;
}

TEST(MetricTable, CountsTornLinesAndKeepsTheRest) {
  MetricTable table;
  const int64_t damaged = read_metric_lines(
      "{\"step\":1,\"loss\":2.5,\"t_ns\":7}\n{\"step\":2,\"lo\n\n[1]\n{\"loss\":1}\n{\"step\":3}",
      table);
  EXPECT_EQ(damaged, 3);
  EXPECT_THAT(table.step, ElementsAre(1, 3));
  EXPECT_EQ(table.time_ns[0], 7);
  EXPECT_EQ(table.time_ns[1], std::nullopt);
  EXPECT_EQ(table.columns.at("loss")[0], 2.5);
  EXPECT_TRUE(std::isnan(table.columns.at("loss")[1]));
}

TEST(MetricTable, KeepsEveryNumericFieldAndTheBitsOfALossThatIsNone) {
  MetricTable table;
  EXPECT_EQ(read_metric_lines("{\"step\":1,\"loss\":null,\"loss_hex\":\"nan\",\"x\":\"text\"}\n"
                              "{\"step\":2,\"loss_scale\":65536}\n",
                              table),
            0);
  EXPECT_THAT(table.loss_hex, ElementsAre("nan", ""));
  EXPECT_EQ(table.columns.size(), 1U);
  EXPECT_TRUE(std::isnan(table.columns.at("loss_scale")[0]));
  EXPECT_EQ(table.columns.at("loss_scale")[1], 65536);
}

TEST(RunEvent, KeepsWhatItDoesNotKnow) {
  std::vector<RunEvent> events;
  EXPECT_EQ(
      read_event_lines("{\"event\":\"saved\",\"step\":5,\"digest\":\"ab\",\"attempt\":1}\n"
                       "{\"event\":\"checkpoint_skipped\",\"name\":\"step-00000020\",\"reason\":"
                       "\"torn\"}\n{\"event\":\"new\",\"a\":1}\n{\"event\":",
                       events),
      1);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].step, 5);
  EXPECT_EQ(events[0].detail, "ab");
  EXPECT_EQ(events[1].step, 20);
  EXPECT_EQ(events[1].detail, "torn");
  EXPECT_EQ(events[2].detail, "a: 1");
}

TEST(Timeline, JoinsRowsEventsAndIncidentsOfEachAttempt) {
  RunFolder run = folder_of(step_line(1, 0, 4, 2'000'000'000) + step_line(2, 0, 4, 3'000'000'000) +
                                step_line(2, 2, 6, 9'000'000'000),
                            "{\"event\":\"group_ready\",\"attempt\":0,\"t_ns\":1000000000}\n"
                            "{\"event\":\"group_ready\",\"attempt\":1,\"t_ns\":5000000000}\n"
                            "{\"event\":\"group_ready\",\"attempt\":2,\"t_ns\":8000000000}\n"
                            "{\"event\":\"resumed\",\"attempt\":2,\"from_step\":1}\n"
                            "{\"event\":\"finished\",\"attempt\":2,\"step\":2}\n");
  run.incidents.push_back(read_incident(
      "incident-0.json",
      R"({"attempt":0,"generation":4,"world_size":2,"decision":{"reason":"first"}})"));
  run.incidents.push_back(read_incident(
      "incident-1.json", R"({"attempt":1,"generation":5,"decision":{"reason":"second"}})"));
  const Timeline timeline = make_timeline(run);
  ASSERT_EQ(timeline.attempts.size(), 3U);
  EXPECT_EQ(timeline.attempts[0].first_row, 0);
  EXPECT_EQ(timeline.attempts[0].last_row, 1);
  EXPECT_EQ(timeline.attempts[0].ended, "first");
  EXPECT_EQ(timeline.attempts[1].first_row, std::nullopt);
  EXPECT_EQ(timeline.attempts[1].generation, 5);
  EXPECT_EQ(timeline.attempts[1].ended, "second");
  EXPECT_EQ(timeline.attempts[2].resumed_from, 1);
  EXPECT_TRUE(timeline.attempts[2].is_finished);
  EXPECT_EQ(timeline.attempts[2].recovery_s, 6.0);  // no agent events: from the last step
  EXPECT_THAT(timeline.seconds, ElementsAre(1.0, 2.0, 8.0));
  EXPECT_EQ(timeline.clock_restarts, 0);
}

TEST(Timeline, MeasuresRecoveryFromTheFailureWhereTheAgentSawIt) {
  RunFolder run =
      folder_of(step_line(1, 0, 1, 1'000'000'000) + step_line(2, 1, 2, 5'000'000'000), "");
  EXPECT_EQ(read_agent_lines("{\"event\":\"attempt_start\",\"t_ns\":1,\"attempt\":0}\n"
                             "{\"event\":\"worker_exit\",\"t_ns\":4500000000,\"rank\":1,"
                             "\"signal\":\"SIGKILL\",\"class\":\"signal\",\"told\":null}\n",
                             run.agent_records),
            0);
  EXPECT_EQ(run.agent_records[1].text, "rank 1: SIGKILL (signal)");
  EXPECT_EQ(make_timeline(run).attempts[1].recovery_s, 0.5);
}

TEST(Timeline, CountsTheExitOfAnotherNodeThatWasToldLater) {
  RunFolder run =
      folder_of(step_line(1, 0, 1, 1'000'000'000) + step_line(2, 1, 2, 5'000'000'000), "");
  EXPECT_EQ(read_agent_lines("{\"event\":\"attempt_start\",\"t_ns\":1,\"attempt\":0}\n"
                             "{\"event\":\"worker_exit\",\"t_ns\":4500000000,\"rank\":0,"
                             "\"status\":75,\"class\":\"peer\",\"told\":null}\n"
                             "{\"event\":\"worker_exit\",\"t_ns\":4000000000,\"rank\":2,"
                             "\"node\":\"b\",\"signal\":\"SIGKILL\",\"class\":\"signal\"}\n"
                             "{\"event\":\"attempt_start\",\"t_ns\":4600000000,\"attempt\":1}\n",
                             run.agent_records),
            0);
  EXPECT_EQ(make_timeline(run).attempts[1].recovery_s, 1.0);
}

// The launcher alone knows of an attempt whose ranks never met, and in which place it was.
TEST(Timeline, HasTheAttemptsOfWhichOnlyTheLauncherKnows) {
  RunFolder run = folder_of(step_line(1, 0, 4, 2'000) + step_line(2, 2, 6, 7'000),
                            "{\"event\":\"group_ready\",\"attempt\":0,\"t_ns\":1500}\n"
                            "{\"event\":\"group_ready\",\"attempt\":2,\"t_ns\":6500}\n"
                            "{\"event\":\"finished\",\"attempt\":2,\"step\":2}\n");
  std::string events;
  for (const int attempt : {0, 1, 2}) {
    events += fmt::format(
        "{{\"event\":\"attempt_start\",\"t_ns\":{},\"attempt\":{},\"generation\":{}}}\n",
        1'000 + 2'500 * attempt, attempt, 4 + attempt);
  }
  EXPECT_EQ(read_agent_lines(events, run.agent_records), 0);
  run.incidents.push_back(read_incident(
      "incident-0.json", R"({"attempt":1,"generation":5,"decision":{"reason":"it died early"}})"));
  const Timeline timeline = make_timeline(run);
  ASSERT_EQ(timeline.attempts.size(), 3U);
  for (const int64_t at : {0, 1, 2}) {
    EXPECT_EQ(timeline.attempts[static_cast<size_t>(at)].attempt, at);
    EXPECT_EQ(timeline.attempts[static_cast<size_t>(at)].generation, 4 + at);
  }
  EXPECT_EQ(timeline.attempts[1].first_row, std::nullopt);
  EXPECT_EQ(timeline.attempts[1].ended, "it died early");
  EXPECT_EQ(timeline.attempts[2].first_row, 1);
}

TEST(RunFolder, AddsTheRanksThatAnotherNodeHasRecorded) {
  const TempDirectory directory;
  const auto write = [&](const std::string& name, const std::string& text) {
    ASSERT_OK(write_file_durably(real_file_system(), directory.file(name), text));
  };
  write("incident-0.json", R"({"attempt":0,"generation":7,"ranks":[{"global_rank":0}]})");
  write("incident-1.json", R"({"attempt":1,"generation":8,"ranks":[]})");
  write("incident-generation7-node1.json", R"({"generation":7,"ranks":[{"global_rank":2}]})");
  write("incident-generation8-node1.json", "{torn");
  const Result<RunFolder> run = read_run_folder(directory.path());
  ASSERT_OK(run);
  ASSERT_EQ(run->incidents.size(), 2U);
  EXPECT_THAT(run->incidents[0].text, HasSubstr("\"global_rank\": 2"));
  EXPECT_THAT(run->incidents[1].text, ::testing::Not(HasSubstr("global_rank")));
}

TEST(RunFolder, ShowsTheLogsOfEveryNodeByGlobalRank) {
  const TempDirectory directory;
  const auto write = [&](const std::string& name, const std::string& text) {
    ASSERT_OK(real_file_system().make_directories(path_parent(directory.file(name))));
    ASSERT_OK(write_file_durably(real_file_system(), directory.file(name), text));
  };
  write("metrics.jsonl", step_line(1, 0, 1, 5));
  const std::string start = R"({"event":"attempt_start","attempt":0,"first_rank":)";
  write("agent_events.jsonl", start + "0}\n");
  write("agent_events.b-2.jsonl", "{torn\n" + start + "2}\n");
  write("logs/b-2/attempt_0/0/stderr.log", "third\n");
  write("logs/b-2/attempt_0/1/stderr.log", "fourth\n");
  write("logs/a-1/attempt_0/0/stdout.log", "first\n");
  write("logs/a-1/attempt_0/1/stderr.log", "second\n");
  const Result<RunFolder> run = read_run_folder(directory.path());
  ASSERT_OK(run);
  std::vector<std::string> seen;
  for (const LogTail& tail : run->logs)
    seen.push_back(fmt::format("{} {}", tail.global_rank, tail.lines.at(0)));
  EXPECT_THAT(seen, ElementsAre("0 first", "1 second", "2 third", "3 fourth"));
  EXPECT_EQ(run->world_size, 4);
}

TEST(RankLogs, TheAttemptThatWasWrittenLastCounts) {
  const TempDirectory directory;
  const auto write = [&](const std::string& name, int64_t seconds) {
    const std::string path = directory.file(name);
    ASSERT_OK(real_file_system().make_directories(path_parent(path)));
    ASSERT_OK(write_file_durably(real_file_system(), path, "x\n"));
    const timespec at{.tv_sec = seconds, .tv_nsec = 0};
    const timespec times[] = {at, at};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  };
  write("logs/attempt_0/0/stdout.log", 100);
  write("logs/attempt_1/0/stdout.log", 200);
  EXPECT_EQ(find_rank_logs(directory.path()).at(0).attempt, 1);
  write("logs/attempt_0/0/stdout.log", 300);  // the job was started anew
  EXPECT_EQ(find_rank_logs(directory.path()).at(0).attempt, 0);
  EXPECT_EQ(find_rank_logs(directory.file("logs")).at(0).attempt, 0);
  EXPECT_TRUE(find_rank_logs(directory.file("nothing")).empty());
}

TEST(Timeline, GivesAJobStartedAnewInTheSameFolderItsOwnAttempts) {
  const RunFolder run = folder_of(step_line(1, 0, 1, 2'000) + step_line(2, 0, 2, 9'000),
                                  "{\"event\":\"group_ready\",\"attempt\":0,\"t_ns\":1000}\n"
                                  "{\"event\":\"group_ready\",\"attempt\":0,\"t_ns\":5000}\n"
                                  "{\"event\":\"resumed\",\"attempt\":0,\"from_step\":1}\n"
                                  "{\"event\":\"group_ready\",\"attempt\":0,\"t_ns\":8000}\n");
  const Timeline timeline = make_timeline(run);
  ASSERT_EQ(timeline.attempts.size(), 3U);
  EXPECT_EQ(timeline.attempts[1].first_row, std::nullopt);
  EXPECT_EQ(timeline.attempts[1].ended, "ended without a record");
  EXPECT_EQ(timeline.attempts[2].generation, 2);
  EXPECT_EQ(timeline.attempts[2].recovery_s, std::nullopt);  // nothing failed
  EXPECT_THAT(timeline.attempts[2].ended, HasSubstr("no end recorded"));
}

TEST(Timeline, NeverRunsBackwardsWhenTheClockBeganAnew) {
  const RunFolder run = folder_of(step_line(1, 0, 1, 5'000'000'000) +
                                      step_line(2, 0, 1, 6'000'000'000) + step_line(3, 0, 2, 100),
                                  "");
  const Timeline timeline = make_timeline(run);
  EXPECT_THAT(timeline.seconds, ElementsAre(0.0, 1.0, 1.0));
  EXPECT_EQ(timeline.clock_restarts, 1);
}

RunFolder with_recipe(const std::string& mesh, std::optional<int64_t> world_size) {
  RunFolder run;
  Result<Recipe> recipe =
      parse_recipe("recipe: 1\nmodel: {layers: 4}\ndata: {files: [a]}\nmesh: " + mesh +
                       "\ntrain: {global_batch: 16, microbatch: 2}\n",
                   "test.yaml");
  EXPECT_OK(recipe);
  if (recipe.ok()) run.recipe = *recipe;
  run.world_size = world_size;
  return run;
}

TEST(MeshAxes, ResolveWhatIsLeftByTheNumberOfRanks) {
  const std::vector<MeshAxis> axes = mesh_axes(with_recipe("{fsdp: -1}", 4));
  ASSERT_EQ(axes.size(), 4U);
  EXPECT_EQ(axes[2].name, "fsdp");
  EXPECT_EQ(axes[2].size, 4);
  EXPECT_EQ(mesh_axes(with_recipe("{fsdp: -1}", std::nullopt))[2].size, 0);
  EXPECT_TRUE(mesh_axes(RunFolder()).empty());
}

TEST(PipelineDrawing, DrawsTheScheduleOfTheRecipe) {
  const auto drawing = draw_pipeline(with_recipe("{pp: 2, fsdp: -1}", 4));
  ASSERT_TRUE(drawing.has_value());
  EXPECT_THAT(drawing->title, HasSubstr("1F1B, 2 stages on 2 ranks, 4 microbatches a step"));
  EXPECT_EQ(drawing->drawing,
            "stage 0 | F0 F1 .  B0 F2 B1 F3 B2 .  B3\n"
            "stage 1 | .  F0 B0 F1 B1 F2 B2 F3 B3 .\n");
  EXPECT_FALSE(draw_pipeline(with_recipe("{fsdp: -1}", 4)).has_value());
  EXPECT_THAT(draw_pipeline(with_recipe("{pp: 2, fsdp: -1}", std::nullopt))->drawing,
              HasSubstr("not known"));
}

TEST(RunFolder, SaysWhatAFolderMustHold) {
  const TempDirectory directory;
  EXPECT_THAT(read_run_folder(directory.path()),
              testing::FailsWith(ErrorCode::kNotFound, HasSubstr("must hold metrics.jsonl")));
  EXPECT_THAT(read_run_folder(directory.file("none")),
              testing::FailsWith(ErrorCode::kNotFound, HasSubstr("must be the folder of a run")));
}
}  // namespace
}  // namespace muster
