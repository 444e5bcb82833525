#include "launcher/agent/incident.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "core/base/text.h"
#include "launcher/agent/memory_events.h"
#include "tests/launcher/agent/run_muster.h"

namespace muster::testing {
namespace {
namespace stdfs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

nlohmann::json record_of(const std::string& directory, int number) {
  const Result<std::string> text =
      read_text(real_file_system(), fmt::format("{}/incident-{}.json", directory, number));
  return text.ok() ? nlohmann::json::parse(*text) : nlohmann::json();
}

Outcome fail(const std::string& directory, int nproc, int restarts, const std::string& script,
             const std::map<std::string, std::string>& environment = {}) {
  return run_muster(
      {"run", "--nproc-per-node", std::to_string(nproc), "--max-restarts", std::to_string(restarts),
       "--shutdown-timeout", "2", "--log-dir", directory, "--", "/bin/sh", "-c", script},
      environment);
}

TEST(Incident, HoldsTheCauseItsLastLinesAndTheCollateral) {
  const TempDirectory directory;
  const Outcome outcome = fail(directory.path(), 3, 0,
                               "[ $RANK = 1 ] || exec sleep 100; i=0; while [ $i -lt 60 ]; do echo "
                               "line $i; i=$((i+1)); done; echo no good >&2; exit 75");
  EXPECT_EQ(outcome.status, 75);
  const nlohmann::json record = record_of(directory.path(), 0);
  ASSERT_FALSE(record.is_null());
  EXPECT_EQ(record["attempt"], 0);
  EXPECT_EQ(record["world_size"], 3);
  EXPECT_EQ(record["generation"], 1);
  EXPECT_EQ(record["cause"]["global_rank"], 1);
  EXPECT_EQ(record["cause"]["status"], 75);
  EXPECT_EQ(record["cause"]["class"], "peer");
  EXPECT_EQ(record["cause"]["stdout"].size(), 50U);
  EXPECT_EQ(record["cause"]["stdout"].back(), "line 59");
  EXPECT_EQ(record["cause"]["stderr"], nlohmann::json({"no good"}));
  EXPECT_EQ(record["decision"]["action"], "give_up");
  EXPECT_THAT(record["decision"]["reason"].get<std::string>(),
              HasSubstr("global rank 1 exited 75 (peer)"));
  ASSERT_EQ(record["ranks"].size(), 2U);
  for (const nlohmann::json& rank : record["ranks"]) {
    EXPECT_EQ(rank["role"], "collateral");
    EXPECT_EQ(rank["signal"], "SIGTERM");
    EXPECT_EQ(rank["told"], "SIGTERM");
    EXPECT_GE(rank["ms_after_cause"].get<double>(), 0);
  }
  EXPECT_THAT(outcome.err, HasSubstr("exited 75 (peer)"));
  EXPECT_THAT(outcome.err, HasSubstr("told SIGTERM by muster"));
  EXPECT_THAT(outcome.err, HasSubstr("    no good"));
  EXPECT_THAT(outcome.err, HasSubstr(directory.path() + "/incident-0.json"));
}

TEST(Incident, RecordsAreNeverOverwrittenOverAttemptsAndRuns) {
  const TempDirectory directory;
  EXPECT_EQ(fail(directory.path(), 1, 1, "exit 1").status, 1);
  EXPECT_EQ(fail(directory.path(), 1, 0, "exit 3").status, 1);
  EXPECT_EQ(record_of(directory.path(), 0)["attempt"], 0);
  EXPECT_EQ(record_of(directory.path(), 0)["decision"]["action"], "restart");
  EXPECT_EQ(record_of(directory.path(), 1)["attempt"], 1);
  EXPECT_EQ(record_of(directory.path(), 2)["cause"]["status"], 3);
}

TEST(Incident, TheFirstToDieIsTheCauseTwentyTimesOfTwenty) {
  const TempDirectory directory;
  const std::string pipe = directory.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (int round = 0; round < 20; ++round) {
    // Rank 3 crashes; the others notice that by the end of a pipe and abort by themselves later.
    fail(directory.path(), 4, 0,
         "if [ $RANK = 3 ]; then exec 3>$PIPE; kill -SEGV $$; fi; "
         "trap '' TERM; read line <$PIPE; sleep 0.02; kill -ABRT $$",
         {{"PIPE", pipe}});
    const nlohmann::json record = record_of(directory.path(), round);
    EXPECT_EQ(record["cause"]["global_rank"], 3);
    EXPECT_EQ(record["cause"]["signal"], "SIGSEGV");
    for (const nlohmann::json& rank : record["ranks"]) EXPECT_EQ(rank["role"], "collateral");
  }
}

TEST(Incident, ACrashIsTheCauseAlsoWhenAVictimIsSeenFirst) {
  const TempDirectory directory;
  // Rank 0 notices that its peer is gone before the peer itself has ended.
  fail(directory.path(), 2, 0, "[ $RANK = 0 ] && exit 75; sleep 0.003; kill -SEGV $$");
  const nlohmann::json record = record_of(directory.path(), 0);
  if (record["cause"]["global_rank"] == 1) {
    EXPECT_EQ(record["ranks"][0]["role"], "collateral");
    EXPECT_EQ(record["ranks"][0]["status"], 75);
  } else {
    EXPECT_EQ(record["ranks"][0]["told"], "SIGTERM") << "rank 1 came after the settle time";
  }
}

TEST(Incident, BytesThatAreNoTextDoNoHarm) {
  const TempDirectory directory;
  EXPECT_EQ(fail(directory.path(), 1, 0, "printf '\\377\\376 bad\\n' >&2; exit 1").status, 1);
  EXPECT_THAT(record_of(directory.path(), 0)["cause"]["stderr"][0].get<std::string>(),
              HasSubstr(" bad"));
}

TEST(Incident, TheErrorFileOfAWorkerIsShownAndPassedOn) {
  const TempDirectory directory;
  const std::string own = directory.file("agent_error.json");
  const Outcome outcome = fail(
      directory.path(), 2, 0,
      "[ $RANK = 1 ] || exec sleep 100; printf '%s' '{\"message\": {\"message\": \"Error: out of "
      "beans\", "
      "\"extraInfo\": {\"py_callstack\": \"frame one\\nframe two\\n\", \"timestamp\": \"1\"}}}' > "
      "$TORCHELASTIC_ERROR_FILE; exit 9",
      {{"TORCHELASTIC_ERROR_FILE", own}});
  EXPECT_THAT(outcome.err, HasSubstr("error of global rank 1: Error: out of beans"));
  EXPECT_THAT(outcome.err, HasSubstr("    frame two"));
  const nlohmann::json record = record_of(directory.path(), 0);
  EXPECT_EQ(record["cause"]["error"]["message"], "Error: out of beans");
  const nlohmann::json passed = nlohmann::json::parse(*read_text(real_file_system(), own));
  EXPECT_EQ(passed["errorCode"], 9);
  EXPECT_EQ(passed["message"]["message"], "Error: out of beans");
}

TEST(Incident, AnErrorFileOfAnyFormIsShownAsText) {
  const TempDirectory directory;
  const std::string path = directory.file("error.json");
  const auto read_back = [&](const std::string& text) {
    EXPECT_TRUE(write_file_durably(real_file_system(), path, text).ok());
    return read_error_file(path);
  };
  EXPECT_FALSE(read_error_file(directory.file("none")).found);
  EXPECT_FALSE(read_error_file("").found);
  EXPECT_FALSE(read_back(" \n").found);
  EXPECT_EQ(read_back("not json").message, "not json");
  EXPECT_EQ(read_back("[1]").message, "[1]");
  EXPECT_EQ(read_back("{\"message\": \"plain\"}").message, "plain");
  EXPECT_EQ(read_back("{\"message\": 7}").message, "7");
  EXPECT_EQ(read_back("{\"message\": {\"extraInfo\": 3}}").message, "");
  EXPECT_TRUE(read_back("{\"message\": {\"message\": \"m\"}}").found);
}

TEST(MemoryEvents, FindsTheCountOfBothVersions) {
  EXPECT_EQ(internal::parse_oom_kill("low 0\nhigh 3\nmax 9\noom 2\noom_kill 4\noom_group_kill 0\n"),
            4);
  EXPECT_EQ(internal::parse_oom_kill("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"), 7);
  EXPECT_EQ(internal::parse_oom_kill("nothing"), -1);
  EXPECT_EQ(internal::memory_events_path("0::/no/such/group\n"), "");
}

// A control group with a limit of 256 MiB, where this machine lets us make one.
class SmallGroup {
 public:
  SmallGroup() {
    for (const std::string root : {"/sys/fs/cgroup/memory/", "/sys/fs/cgroup/"}) {
      std::error_code error;
      const std::string path = root + "muster_test_" + std::to_string(::getpid());
      if (!stdfs::create_directory(path, error)) continue;
      path_ = path;
      const bool is_v1 = stdfs::exists(path + "/memory.limit_in_bytes");
      if (put(is_v1 ? "/memory.limit_in_bytes" : "/memory.max", "268435456")) return;
      stdfs::remove(path, error);
      path_.clear();
    }
  }
  ~SmallGroup() {
    if (!path_.empty()) ::rmdir(path_.c_str());
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  [[nodiscard]] bool put(const char* file, const char* text) const {
    std::FILE* out = std::fopen((path_ + file).c_str(), "we");
    if (out == nullptr) return false;
    const bool written = std::fputs(text, out) >= 0;
    return std::fclose(out) == 0 && written;
  }
  std::string path_;
};

TEST(MemoryEvents, AKillAtTheLimitIsClassResourceAndStatus71) {
  const SmallGroup group;
  if (group.path().empty()) GTEST_SKIP() << "no memory control group can be made here";
  const TempDirectory directory;
  // The job enters the group itself; `tail` keeps all that it reads, since it holds no line end.
  const std::string command =
      fmt::format("echo $$ > {}/cgroup.procs && exec {}/muster run --log-dir {} -- tail /dev/zero",
                  group.path(), binary_directory(), directory.path());
  const Outcome outcome = run_muster({"run", "--", "/bin/sh", "-c", command});
  EXPECT_EQ(outcome.status, 71) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("was killed by SIGKILL at the memory limit (resource)"));
  const nlohmann::json record = record_of(directory.path(), 0);
  EXPECT_EQ(record["cause"]["memory_limit"], true);
  EXPECT_EQ(record["cause"]["class"], "resource");
}

}  // namespace
}  // namespace muster::testing
