// Whole jobs through the binary: exit statuses, restarts, errors before the start.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <set>
#include <thread>

#include "core/base/text.h"
#include "launcher/agent/unique_fd.h"
#include "tests/launcher/agent/run_muster.h"

namespace muster::testing {
namespace {
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<std::string> shell(const std::string& script) {
  return {"--", "/bin/sh", "-c", script};
}

std::vector<std::string> run(int nproc, int max_restarts, const std::string& script) {
  return std::vector<std::string>{"run", "--nproc-per-node", std::to_string(nproc),
                                  "--max-restarts", std::to_string(max_restarts)} +
         shell(script);
}

TEST(Run, ExitStatusFollowsTheErrorTable) {
  const std::map<std::string, int> status_of = {
      {"exit 0", 0},          {"exit 1", 1},          {"exit 3", 1},
      {"exit 255", 1},        {"exit 64", 64},        {"exit 66", 66},
      {"exit 70", 70},        {"exit 74", 74},        {"exit 75", 75},
      {"exit 78", 78},        {"kill -KILL $$", 137}, {"kill -SEGV $$", 139},
      {"kill -ABRT $$", 134}, {"kill -TERM $$", 143},
  };
  for (const auto& [script, status] : status_of) {
    EXPECT_EQ(run_muster(run(1, 0, script)).status, status) << script;
  }
}

TEST(Run, RestartsUntilTheBudgetIsUsed) {
  MusterProcess muster({.args = run(2, 2, "[ $RANK = 0 ] && exec sleep 100; exit 1"),
                        .environment = {},
                        .directory = ""});
  const Outcome outcome = muster.wait();
  EXPECT_EQ(outcome.status, 1);
  std::vector<int> attempts;
  std::set<int64_t> generations;
  for (const auto& event : muster.events()) {
    if (event["event"] != "attempt_start") continue;
    attempts.push_back(event["attempt"]);
    generations.insert(event["generation"].get<int64_t>());
  }
  EXPECT_EQ(attempts, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(generations.size(), 3U);
  EXPECT_EQ(muster.events().back()["event"], "job_end");
  EXPECT_EQ(muster.events().back()["restarts"], 2);
  EXPECT_EQ(muster.events().back()["exit"], 1);
  EXPECT_THAT(outcome.err, HasSubstr("global rank 1 exited 1 (unknown); all 2 restarts are used"));
}

TEST(Run, SucceedsInTheAttemptInWhichAllSucceed) {
  const Outcome outcome =
      run_muster(run(2, 5, "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 9; echo done $RANK"));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("done 0"));
  EXPECT_THAT(outcome.out, HasSubstr("done 1"));
}

TEST(Run, AUserErrorIsNotTriedAgain) {
  MusterProcess muster({.args = run(2, 5, "exit 64"), .environment = {}, .directory = ""});
  EXPECT_EQ(muster.wait().status, 64);
  EXPECT_EQ(muster.events().back()["restarts"], 0);
}

TEST(Run, AnEarlySuccessIsNoFailure) {
  EXPECT_EQ(run_muster(run(2, 0, "[ $RANK = 1 ] && exit 0; sleep 0.2")).status, 0);
}

TEST(Run, AFailureAfterAnEarlySuccessIsOne) {
  const Outcome outcome = run_muster(run(2, 0, "[ $RANK = 1 ] && exit 0; sleep 0.2; exit 5"));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("global rank 0 exited 5"));
}

TEST(Run, AMissingProgramIsNamedAndNothingStarts) {
  const Outcome outcome = run_muster({"run", "--", "./no_such_program"});
  EXPECT_EQ(outcome.status, 66);
  EXPECT_THAT(outcome.err, HasSubstr("run ./no_such_program: no such program"));
  EXPECT_THAT(run_muster({"run", "--", "no-such-program-at-all"}).err, HasSubstr("on PATH"));
}

TEST(Run, AProgramThatIsNotExecutableIsNamed) {
  const Outcome outcome = run_muster({"run", "--", "/etc/passwd"});
  EXPECT_EQ(outcome.status, 64);
  EXPECT_THAT(outcome.err, HasSubstr("must be an executable file; /etc/passwd is not"));
}

TEST(Run, AProgramThatTheKernelRefusesIsNamed) {
  const TempDirectory directory;
  const std::string path = directory.file("broken");
  ASSERT_TRUE(write_file_durably(real_file_system(), path, "#!/no/such/interpreter\n").ok());
  ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  const Outcome outcome = run_muster({"run", "--nproc-per-node", "2", "--", path});
  EXPECT_EQ(outcome.status, 66);
  EXPECT_THAT(outcome.err, HasSubstr("spawn " + path + ": No such file or directory"));
}

TEST(Run, AMissingScriptIsNamedAndNothingStarts) {
  const Outcome outcome = run_muster({"run", "missing.py"});
  EXPECT_EQ(outcome.status, 66);
  EXPECT_THAT(outcome.err, HasSubstr("run missing.py: no such script"));
}

TEST(Run, ARecipeWithErrorsStartsNothing) {
  const TempDirectory directory;
  const std::string recipe = directory.file("bad.yaml");
  ASSERT_TRUE(
      write_file_durably(real_file_system(), recipe, "recipe: 1\ntrain: {stepps: 3}\n").ok());
  MusterProcess muster({.args = {"run", recipe}, .environment = {}, .directory = ""});
  const Outcome outcome = muster.wait();
  EXPECT_EQ(outcome.status, 78);
  EXPECT_THAT(outcome.err, HasSubstr("stepps"));
  EXPECT_THAT(muster.events(), IsEmpty());
}

TEST(Run, WorkersStartInASessionOfTheirOwnWithPlainSignalsAndDescriptors) {
  const Outcome outcome =
      run_muster(run(1, 0,
                     "grep -E '^Sig(Ign|Blk)' /proc/self/status; readlink /proc/self/fd/0; "
                     "cut -d' ' -f5,6 /proc/$$/stat; echo $$; exec ls /proc/self/fd"));
  const std::vector<std::string> lines = split(outcome.out, '\n');
  ASSERT_GE(lines.size(), 9U) << outcome.out;
  EXPECT_EQ(lines[0], "SigBlk:\t0000000000000000");
  EXPECT_EQ(lines[1], "SigIgn:\t0000000000000000");
  EXPECT_EQ(lines[2], "/dev/null");
  EXPECT_EQ(lines[3], lines[4] + " " + lines[4]);  // group and session are its own
  EXPECT_EQ(lines.size(), 10U) << outcome.out;     // 0, 1, 2, and the listing's own
}

TEST(Run, TenJobsAtOnceShareNothing) {
  std::vector<std::unique_ptr<MusterProcess>> jobs;
  for (int i = 0; i < 10; ++i) {
    jobs.push_back(std::make_unique<MusterProcess>(MusterProcess::Options{
        .args = run(2, 0, "echo $MASTER_PORT $TORCHELASTIC_RUN_ID; sleep 0.5"),
        .environment = {},
        .directory = ""}));
  }
  std::set<std::string> stores;
  for (const auto& job : jobs) {
    const Outcome outcome = job->wait();
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const std::vector<std::string> lines = split(outcome.out, '\n');
    ASSERT_EQ(lines.size(), 3U);
    EXPECT_EQ(lines[0], lines[1]);  // both ranks meet in one store
    stores.insert(lines[0]);
  }
  EXPECT_EQ(stores.size(), 10U);
}

// Binds every port that the job has just left, as soon as it has left it.
class Squatter {
 public:
  void grab(int port) {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int reuse = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
    if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
        ::listen(fd.get(), 1) == 0) {
      taken_.push_back(std::move(fd));
    }
  }
  [[nodiscard]] size_t count() const { return taken_.size(); }

 private:
  std::vector<UniqueFd> taken_;
};

TEST(Run, APortSquatterDoesNotStopAHundredRestarts) {
  MusterProcess muster({.args = run(2, 100, "[ $TORCHELASTIC_RESTART_COUNT = 100 ] || exit 1"),
                        .environment = {},
                        .directory = ""});
  Squatter squatter;
  int previous = 0;
  for (int attempt = 0; attempt <= 100; ++attempt) {
    const nlohmann::json start = muster.await_event("attempt_start");
    ASSERT_FALSE(start.is_null()) << "attempt " << attempt << ": " << muster.err();
    if (previous != 0) squatter.grab(previous);
    previous = start["port"];
  }
  EXPECT_EQ(muster.wait().status, 0);
  EXPECT_GT(squatter.count(), 90U);
}

TEST(Run, ATakenMasterPortIsNamed) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(fd.get(), 1), 0);
  ASSERT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const Outcome outcome = run_muster({"run", "--master-port", port, "--", "true"});
  EXPECT_EQ(outcome.status, 74);
  EXPECT_THAT(outcome.err, HasSubstr(port));
}

TEST(Run, AGivenMasterPortIsKeptOverRestarts) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  fd.reset();
  const Outcome outcome =
      run_muster({"run", "--master-port", port, "--max-restarts", "3", "--", "/bin/sh", "-c",
                  "echo port $MASTER_PORT; [ $MUSTER_ATTEMPT = 3 ] || exit 1"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out,
            "port " + port + "\nport " + port + "\nport " + port + "\nport " + port + "\n");
}

TEST(Run, PresetRanksAreReplacedAndSaidSo) {
  const Outcome outcome =
      run_muster(run(1, 0, "echo $RANK of $WORLD_SIZE"), {{"RANK", "77"}, {"WORLD_SIZE", "99"}});
  EXPECT_EQ(outcome.out, "0 of 1\n");
  EXPECT_THAT(outcome.err, HasSubstr("RANK, WORLD_SIZE of this environment are replaced"));
}

TEST(Run, OmpThreadsAreSaidOnceAndAChosenNumberIsKept) {
  const Outcome chosen = run_muster(run(2, 0, "echo $OMP_NUM_THREADS"), {{"OMP_NUM_THREADS", "5"}});
  EXPECT_EQ(chosen.out, "5\n5\n");
  EXPECT_THAT(chosen.err, Not(HasSubstr("OMP_NUM_THREADS")));
  const Outcome unset = run_muster({"run", "--nproc-per-node", "2", "--", "true"});
  EXPECT_EQ(split(unset.err, '\n').size(), 2U) << unset.err;
  EXPECT_THAT(unset.err, HasSubstr("OMP_NUM_THREADS="));
}

TEST(Run, AnEventFileThatCannotBeWrittenStopsBeforeTheStart) {
  const Outcome outcome = run_muster({"run", "--events", "/no/such/folder/e", "--", "true"});
  EXPECT_EQ(outcome.status, 74);
  EXPECT_THAT(outcome.err, HasSubstr("event file /no/such/folder/e: No such file or directory"));
}

}  // namespace
}  // namespace muster::testing
