// The workers' output: files to the last byte, console by torchrun's rules.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "core/base/text.h"
#include "launcher/agent/console.h"
#include "launcher/agent/log_pump.h"
#include "tests/launcher/agent/run_muster.h"

namespace muster::testing {
namespace {
namespace stdfs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::string text_of(const std::string& path) {
  const Result<std::string> text = read_text(real_file_system(), path);
  return text.ok() ? *text : "cannot read " + path;
}

// The only folder of a job below a --log-dir.
std::string job_folder(const std::string& log_dir) {
  for (const auto& entry : stdfs::directory_iterator(log_dir)) {
    if (entry.is_directory()) return entry.path().string();
  }
  return "";
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines = split(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  std::sort(lines.begin(), lines.end());
  return lines;
}

constexpr const char* kTalk = "echo out $RANK; echo err $RANK >&2";

struct Logged {
  Outcome outcome;
  std::string folder;
  std::string file(int rank, const char* name) const {
    return text_of(folder + "/attempt_0/" + std::to_string(rank) + "/" + name);
  }
};

class Logs : public ::testing::Test {
 protected:
  Logged run(std::vector<std::string> options, const std::string& script = kTalk,
             const std::map<std::string, std::string>& environment = {}) {
    const Outcome outcome = run_muster(
        std::vector<std::string>{"run", "--nproc-per-node", "2", "--log-dir", directory_.path()} +
            options + std::vector<std::string>{"--", "/bin/sh", "-c", script},
        environment);
    return {outcome, job_folder(directory_.path())};
  }
  TempDirectory directory_;
};

TEST_F(Logs, WithoutOptionsGoToTheConsoleAsTheyAreAndToFiles) {
  const Logged logged = run({});
  EXPECT_EQ(logged.outcome.status, 0);
  EXPECT_THAT(sorted_lines(logged.outcome.out), ElementsAre("out 0", "out 1"));
  EXPECT_THAT(logged.outcome.err, HasSubstr("err 0\n"));
  EXPECT_EQ(logged.file(0, "stdout.log"), "out 0\n");
  EXPECT_EQ(logged.file(1, "stderr.log"), "err 1\n");
}

TEST_F(Logs, RedirectsLeaveTheConsoleEmpty) {
  const Logged logged = run({"-r", "3"});
  EXPECT_EQ(logged.outcome.out, "");
  EXPECT_THAT(logged.outcome.err, Not(HasSubstr("err ")));
  EXPECT_EQ(logged.file(1, "stdout.log"), "out 1\n");
  EXPECT_EQ(logged.file(0, "stderr.log"), "err 0\n");
}

TEST_F(Logs, TeePrefixesWithRoleAndLocalRank) {
  const Logged logged = run({"-t", "3", "--role", "trainer"});
  EXPECT_THAT(sorted_lines(logged.outcome.out),
              ElementsAre("[trainer0]:out 0", "[trainer1]:out 1"));
  EXPECT_THAT(logged.outcome.err, HasSubstr("[trainer0]:err 0\n"));
  EXPECT_EQ(logged.file(0, "stdout.log"), "out 0\n");
}

TEST_F(Logs, MapsSelectStreamsByRankAndTakeAnyRankNumber) {
  const Logged logged = run({"-r", "0:1,1:2,17:3"});
  EXPECT_EQ(logged.outcome.out, "out 1\n");
  EXPECT_THAT(logged.outcome.err, HasSubstr("err 0\n"));
  EXPECT_THAT(logged.outcome.err, Not(HasSubstr("err 1\n")));
}

TEST_F(Logs, TheFilterHidesRanksFromTheConsoleOnly) {
  const Logged logged = run({"--local-ranks-filter", "1", "-t", "1"});
  EXPECT_EQ(logged.outcome.out, "[default1]:out 1\n");
  EXPECT_EQ(logged.file(0, "stdout.log"), "out 0\n");
}

TEST_F(Logs, ThePrefixTemplateOfTheEnvironmentIsUsed) {
  const Logged logged = run(
      {"-t", "1", "--local-ranks-filter", "1"}, kTalk,
      {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "<${role_name}|${rank}|${local_rank}|${nope}> "}});
  EXPECT_EQ(logged.outcome.out, "<default|1|1|${nope}> out 1\n");
}

TEST_F(Logs, ALineWrittenInTwoPiecesHasOnePrefix) {
  const Logged logged = run({"-t", "1", "--local-ranks-filter", "0"},
                            "printf 'first half '; sleep 0.1; echo second half; printf end");
  EXPECT_EQ(logged.outcome.out, "[default0]:first half second half\n[default0]:end");
  EXPECT_EQ(logged.file(0, "stdout.log"), "first half second half\nend");
}

TEST_F(Logs, EachAttemptHasItsOwnFolder) {
  const Outcome outcome =
      run_muster({"run", "--max-restarts", "2", "-r", "1", "--log-dir", directory_.path(), "--",
                  "/bin/sh", "-c", "echo $MUSTER_ATTEMPT; [ $MUSTER_ATTEMPT = 2 ]"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const std::string folder = job_folder(directory_.path());
  for (const std::string attempt : {"0", "1", "2"}) {
    EXPECT_EQ(text_of(folder + "/attempt_" + attempt + "/0/stdout.log"), attempt + "\n");
  }
}

TEST_F(Logs, TwoRunsOfOneIdKeepTheirFiles) {
  run({"--rdzv-id", "job5"});
  run({"--rdzv-id", "job5"});
  int folders = 0;
  for (const auto& entry : stdfs::directory_iterator(directory_.path())) {
    EXPECT_TRUE(entry.path().filename().string().starts_with("job5_"));
    EXPECT_EQ(text_of(entry.path().string() + "/attempt_0/1/stdout.log"), "out 1\n");
    ++folders;
  }
  EXPECT_EQ(folders, 2);
}

std::string expected_lines(int rank) {
  std::string text;
  for (int i = 0; i < 100000; ++i) text += fmt::format("line {} of rank {}\n", i, rank);
  return text;
}

TEST_F(Logs, AHundredThousandLinesAndASigkillAreByteExact) {
  MusterProcess muster({.args = std::vector<std::string>{"run", "--nproc-per-node", "2", "-t", "3",
                                                         "--log-dir", directory_.path()} +
                                child_worker("many_lines"),
                        .environment = {},
                        .directory = ""});
  const Outcome outcome = muster.wait();
  EXPECT_EQ(outcome.status, 137);
  const std::string folder = job_folder(directory_.path()) + "/attempt_0/";
  std::map<int, std::string> console;
  for (const std::string& line : split(outcome.out, '\n')) {
    if (line.empty()) continue;
    ASSERT_TRUE(line.starts_with("[default0]:") || line.starts_with("[default1]:")) << line;
    console[line[8] - '0'] += line.substr(11) + "\n";
  }
  bool one_is_complete = false;
  for (const int rank : {0, 1}) {
    const std::string file = text_of(folder + std::to_string(rank) + "/stdout.log");
    EXPECT_EQ(console[rank].substr(0, file.size()), file) << "console and file of rank " << rank;
    // The one that died first is complete; the other was told to stop by that.
    const std::string expected = expected_lines(rank);
    EXPECT_EQ(file, expected.substr(0, file.size()));
    const bool complete = file == expected;
    if (complete) {
      EXPECT_EQ(text_of(folder + std::to_string(rank) + "/stderr.log"), "last words");
    }
    one_is_complete = one_is_complete || complete;
  }
  EXPECT_TRUE(one_is_complete);
}

TEST_F(Logs, AFileInPlaceOfTheFolderStopsBeforeTheStart) {
  const std::string file = directory_.file("file");
  ASSERT_TRUE(write_file_durably(real_file_system(), file, "x").ok());
  for (const std::string& path : {file, file + "/below"}) {
    MusterProcess muster(
        {.args = {"run", "--log-dir", path, "--", "true"}, .environment = {}, .directory = ""});
    const Outcome outcome = muster.wait();
    EXPECT_EQ(outcome.status, 74) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("log folder " + path));
    EXPECT_THAT(muster.events(), IsEmpty());
  }
}

TEST_F(Logs, AFullDiskIsNamedAndTheJobFinishesWithStatus74) {
  const std::string small = directory_.file("small");
  ASSERT_TRUE(real_file_system().make_directories(small).ok());
  if (::mount("none", small.c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "a small file system cannot be mounted here: " << errno_text(errno);
  }
  const TempDirectory elsewhere;
  const std::string done = elsewhere.file("done");
  const Outcome outcome = run_muster({"run", "--log-dir", small, "-r", "1", "--", "/bin/sh", "-c",
                                      "head -c 300000 /dev/zero; echo > " + done});
  ::umount2(small.c_str(), MNT_DETACH);
  EXPECT_EQ(outcome.status, 74);
  EXPECT_THAT(outcome.err, HasSubstr("stdout.log: No space left on device"));
  EXPECT_THAT(outcome.err, HasSubstr("bytes of output are missing in the log files"));
  EXPECT_EQ(text_of(done), "\n") << "a full log disk must not stop the work";
}

TEST_F(Logs, DevNullMeansNoFilesAndNoErrorFile) {
  const Outcome outcome = run_muster({"run", "--log-dir", "/dev/null", "--", "/bin/sh", "-c",
                                      "echo \"file:$TORCHELASTIC_ERROR_FILE.\""});
  EXPECT_EQ(outcome.out, "file:.\n");
  EXPECT_EQ(outcome.status, 0);
}

TEST_F(Logs, TheTemporaryFolderGoesAfterASuccessAndStaysAfterAFailure) {
  const std::map<std::string, std::string> here = {{"TMPDIR", directory_.path()}};
  EXPECT_EQ(run_muster({"run", "--", "true"}, here).status, 0);
  EXPECT_TRUE(stdfs::is_empty(directory_.path()));
  EXPECT_EQ(run_muster({"run", "--", "false"}, here).status, 1);
  ASSERT_FALSE(stdfs::is_empty(directory_.path()));
  const std::string folder = stdfs::directory_iterator(directory_.path())->path().string();
  EXPECT_TRUE(stdfs::exists(folder + "/incident-0.json"));
}

TEST_F(Logs, ASlowConsoleDelaysNeitherFilesNorTheEndOfAFailedJob) {
  // The pipe of stdout is not read before the end, and holds far less than is written.
  MusterProcess muster({.args = {"run", "--log-dir", directory_.path(), "--", "/bin/sh", "-c",
                                 "head -c 700000 /dev/zero | tr '\\0' x; exit 3"},
                        .environment = {},
                        .directory = ""});
  const nlohmann::json exit = muster.await_event("worker_exit");
  ASSERT_FALSE(exit.is_null());
  const Outcome outcome = muster.wait();
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.out.size(), 700000U);
  EXPECT_EQ(text_of(job_folder(directory_.path()) + "/attempt_0/0/stdout.log").size(), 700000U);
}

TEST_F(Logs, AClosedConsoleDoesNotStopTheJob) {
  const std::string command = binary_directory() + "/muster run --log-dir " + directory_.path() +
                              " -- /bin/sh -c 'i=0; while [ $i -lt 5000 ]; do echo line $i; "
                              "i=$((i+1)); done' | head -n 1; exit ${PIPESTATUS[0]}";
  const Outcome outcome = run_muster({"run", "--", "/bin/bash", "-c", command});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const std::string file = text_of(job_folder(directory_.path()) + "/attempt_0/0/stdout.log");
  EXPECT_EQ(std::count(file.begin(), file.end(), '\n'), 5000);
}

TEST(Tail, KeepsTheLastLines) {
  Tail tail;
  EXPECT_THAT(tail.last_lines(3), IsEmpty());
  tail.append("one\ntwo\n\nthr");
  tail.append("ee");
  EXPECT_THAT(tail.last_lines(2), ElementsAre("", "three"));
  EXPECT_THAT(tail.last_lines(50), ElementsAre("one", "two", "", "three"));
  tail.append("\n" + std::string(3 * Tail::kNbytes, 'x') + "\nend\n");
  EXPECT_EQ(tail.last_lines(50).size(), 2U);
  EXPECT_EQ(tail.last_lines(1).front(), "end");
}

// A pump with a console on a pipe, fed by hand.
class PumpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::pipe2(console_.data(), O_CLOEXEC | O_NONBLOCK), 0);
    out_ = std::make_unique<Console>(loop_, console_[1]);
    StreamPlan plan;
    plan.to_console = StreamPlan::ToConsole::kPrefixed;
    std::vector<RankPlan> plans(2);
    for (int rank : {0, 1}) {
      plan.prefix = fmt::format("[{}]", rank);
      plans[static_cast<size_t>(rank)] = {plan, plan};
    }
    Result<std::unique_ptr<LogPump>> pump = LogPump::open(loop_, {out_.get(), out_.get()}, plans);
    ASSERT_TRUE(pump.ok());
    pump_ = std::move(*pump);
  }
  void TearDown() override {
    pump_.reset();
    out_.reset();
    for (const int fd : console_) ::close(fd);
  }
  void write(int rank, std::string_view text) {
    ASSERT_EQ(::write(pump_->worker_fd(rank, 0), text.data(), text.size()),
              static_cast<ssize_t>(text.size()));
    loop_.run_once(real_clock().now() + 5s);
  }
  std::string shown() {
    std::string text(1 << 16, '\0');
    const ssize_t n = ::read(console_[0], text.data(), text.size());
    text.resize(n < 0 ? 0 : static_cast<size_t>(n));
    return text;
  }

  EventLoop loop_;
  std::array<int, 2> console_{};
  std::unique_ptr<Console> out_;
  std::unique_ptr<LogPump> pump_;
};

TEST_F(PumpTest, LinesOfTwoRanksNeverMix) {
  write(0, "a");
  write(1, "b\nc");
  write(0, "aa\n");
  EXPECT_EQ(shown(), "[1]b\n[0]aaa\n");
  pump_->drain();
  EXPECT_EQ(shown(), "[1]c");
}

TEST_F(PumpTest, AnOpenLastLineIsEndedBeforeAnotherRanks) {
  write(0, "a");
  write(1, "b");
  pump_->drain();
  EXPECT_EQ(shown(), "[0]a\n[1]b");
}

TEST_F(PumpTest, CarriageReturnsEndPiecesAndCrLfIsOneEnd) {
  write(0, "1%\r2%\r");
  EXPECT_EQ(shown(), "[0]1%\r");
  write(0, "\ndone\r\n");
  EXPECT_EQ(shown(), "[0]2%\r\n[0]done\r\n");
}

// epoll tells it again and again, also when nothing is asked for.
TEST(ConsoleTest, IsForgottenOnceItsReaderHasGone) {
  for (const size_t kept : {size_t{0}, 4 * Console::kHighWater}) {
    int ends[2] = {-1, -1};
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    EventLoop loop;
    Console console(loop, ends[1]);
    int drained = 0;
    console.set_on_drained([&] { ++drained; });
    console.write_raw(std::string(kept, 'x'));
    EXPECT_EQ(console.is_full(), kept > 0);
    ::close(ends[0]);
    loop.run_once(real_clock().now() + 10s);
    EXPECT_FALSE(console.is_full());
    EXPECT_EQ(drained, kept > 0 ? 1 : 0);
    const TimePoint until = real_clock().now() + 20ms;
    loop.run_once(until);
    EXPECT_GE(real_clock().now(), until) << "it was told again";
    console.write_raw("nobody reads this");
    ::close(ends[1]);
  }
}

}  // namespace
}  // namespace muster::testing
