// muster status, top and logs beside a job that runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <random>

#include "launcher/agent/unique_fd.h"
#include "launcher/cli/job_finder.h"
#include "tests/launcher/agent/cluster.h"
#include "tests/launcher/agent/run_muster.h"

namespace muster::testing {
namespace {
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

class StatusTest : public ::testing::Test {
 protected:
  MusterProcess job(const std::vector<std::string>& args) {
    return MusterProcess(
        {.args = args, .environment = {{"XDG_RUNTIME_DIR", runtime_.path()}}, .directory = ""});
  }
  Outcome ask(const std::vector<std::string>& args) {
    return run_muster(args, {{"XDG_RUNTIME_DIR", runtime_.path()}});
  }
  json status(const std::vector<std::string>& more = {}) {
    const Outcome outcome = ask(std::vector<std::string>{"status", "--json"} + more);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return json::parse(outcome.out);
  }

  TempDirectory runtime_;
};

TEST_F(StatusTest, TellsGenerationRanksAndPidsOfWhatRuns) {
  MusterProcess muster = job(std::vector<std::string>{"run", "--nproc-per-node", "2", "--rdzv-id",
                                                      "job7", "--max-restarts", "3"} +
                             child_worker("node"));
  const std::vector<pid_t> pids = muster.await_event("attempt_start")["pids"];
  ASSERT_TRUE(muster.await_output("generation 1", 2, patient(20s)));
  json all = status();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0]["run_id"], "job7");
  EXPECT_EQ(all[0]["state"], "running");
  EXPECT_EQ(all[0]["generation"], 1);
  EXPECT_EQ(all[0]["world_size"], 2);
  EXPECT_EQ(all[0]["role"], "only");
  EXPECT_TRUE(all[0]["progress"].is_null());
  ASSERT_EQ(all[0]["ranks"].size(), 2U);
  EXPECT_EQ(all[0]["ranks"][1]["global_rank"], 1);
  EXPECT_EQ(all[0]["ranks"][1]["pid"], pids[1]);
  EXPECT_EQ(all[0]["ranks"][1]["state"], "running");

  ::kill(pids[0], SIGKILL);
  muster.await_event("attempt_start");
  all = status({"job7"});
  EXPECT_EQ(all[0]["attempt"], 1);
  EXPECT_EQ(all[0]["failures"], 1);
  EXPECT_THAT(all[0]["incident"].get<std::string>(), HasSubstr("incident-0.json"));

  const Outcome text = ask({"status"});
  EXPECT_THAT(text.out, HasSubstr("run job7"));
  EXPECT_THAT(text.out, HasSubstr("1 of 3 restarts used, 2 ranks"));
  EXPECT_EQ(ask({"top"}).out.substr(0, 8), text.out.substr(0, 8));  // once, without a terminal
  const Outcome other = ask({"status", "job8"});
  EXPECT_EQ(other.status, 66);
  EXPECT_THAT(other.err, HasSubstr("job \"job8\": must be one that runs now"));

  muster.signal(SIGTERM);
  EXPECT_EQ(muster.wait(patient(20s)).status, 128 + SIGTERM);
  EXPECT_EQ(ask({"status"}).out, "no job runs\n");
}

TEST_F(StatusTest, TheSocketIsTheUsersAloneAndADeadOneIsRemoved) {
  MusterProcess muster = job(std::vector<std::string>{"run"} + child_worker("node"));
  muster.await_event("attempt_start");
  const std::string folder = runtime_.file("muster");
  const auto sockets = [&] {
    std::vector<std::string> names;
    for (const std::string& name : real_file_system().list(folder).value_or({})) {
      if (name.ends_with(".sock")) names.push_back(path_join(folder, name));
    }
    return names;
  };
  ASSERT_EQ(sockets().size(), 1U);
  struct stat info {};
  ASSERT_EQ(::stat(sockets()[0].c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  ASSERT_EQ(::stat(folder.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
  for (const pid_t pid : marked_processes(muster.mark())) ::kill(pid, SIGKILL);
  muster.wait(patient(20s));
  EXPECT_EQ(sockets().size(), 1U);
  EXPECT_EQ(ask({"status"}).out, "no job runs\n");
  EXPECT_EQ(sockets().size(), 0U);
}

std::string only_socket(const std::string& folder) {
  for (const std::string& name : real_file_system().list(folder).value_or({})) {
    if (name.ends_with(".sock")) return path_join(folder, name);
  }
  return "";
}

UniqueFd connect_to(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0)
      << errno_text(errno);
  return fd;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(StatusTest, WhoSaysSomethingAtTheSocketIsRefusedAndLoggedOnce) {
  MusterProcess muster = job(std::vector<std::string>{"run"} + child_worker("node"));
  muster.await_event("attempt_start");
  const std::string path = only_socket(runtime_.file("muster"));
  std::mt19937 random(20240611);
  std::string noise(5000, '\0');
  for (char& byte : noise) byte = static_cast<char>(random());
  std::vector<UniqueFd> strangers;
  for (const std::string& bytes :
       {noise, std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string("{\"run_"),
        std::string(1 << 20, 'x'), std::string(1, '\0')}) {
    strangers.push_back(connect_to(path));
    // It may be closed before all is sent.
    static_cast<void>(::send(strangers.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }
  ASSERT_TRUE(muster.await_output("status socket: refused process", 1, patient(20s)));
  EXPECT_EQ(status().size(), 1U);
  muster.signal(SIGTERM);
  EXPECT_EQ(muster.wait(patient(20s)).status, 128 + SIGTERM);
  EXPECT_EQ(count_of(muster.err(), "must read its answer and say nothing"), 1U) << muster.err();
  EXPECT_EQ(count_of(muster.err(), "status socket: refused"), 1U) << muster.err();
}

TEST_F(StatusTest, TenThousandWhoReadNothingKeepNobodyOut) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  const auto count = std::min<rlim_t>(10000, limit.rlim_cur - 500);
  std::printf("%llu idle connections\n", static_cast<unsigned long long>(count));
  MusterProcess muster = job(std::vector<std::string>{"run"} + child_worker("node"));
  const std::vector<pid_t> pids = muster.await_event("attempt_start")["pids"];
  const std::string path = only_socket(runtime_.file("muster"));
  std::vector<UniqueFd> idle;
  for (rlim_t i = 0; i < count; ++i) idle.push_back(connect_to(path));
  const json all = status();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0]["ranks"][0]["pid"], pids[0]);
  ASSERT_TRUE(muster.await_output("64 others have their answer", 1, patient(20s)));
  ::kill(pids[0], SIGUSR1);
  EXPECT_EQ(muster.wait(patient(20s)).status, 0) << muster.err();
  EXPECT_EQ(count_of(muster.err(), "others have their answer"), 1U) << muster.err();
}

TEST_F(StatusTest, BothNodesOfAJobAreShownWithTheirPlaces) {
  if (why_no_agents() != nullptr) GTEST_SKIP() << why_no_agents();
  Cluster cluster("2");
  ::setenv("XDG_RUNTIME_DIR", runtime_.path().c_str(), 1);
  cluster.start_host();
  cluster.start_node();
  cluster.await_rounds({0, 1}, 2);
  const json all = status();
  ::unsetenv("XDG_RUNTIME_DIR");
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0]["role"], "host");
  EXPECT_EQ(all[1]["role"], "node");
  EXPECT_EQ(all[0]["run_id"], all[1]["run_id"]);
  EXPECT_EQ(all[0]["nodes"].size(), 2U);
  EXPECT_EQ(all[1]["ranks"][0]["global_rank"], 1);
  cluster.node(0).signal(SIGTERM);
  EXPECT_EQ(cluster.node(1).wait(patient(20s)).status, 128 + SIGTERM);
}

TEST_F(StatusTest, LogsPrintsARankByteForByteAndFollowsOverARestart) {
  const TempDirectory logs;
  MusterProcess muster =
      job(std::vector<std::string>{"run", "--nproc-per-node", "2", "--max-restarts", "1",
                                   "--log-dir", logs.path(), "--rdzv-id", "job7"} +
          child_worker("node"));
  const std::vector<pid_t> pids = muster.await_event("attempt_start")["pids"];
  ASSERT_TRUE(muster.await_output("generation 1", 2, patient(20s)));
  const Outcome one = ask({"logs", "job7", "--rank", "1"});
  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_THAT(one.out, ::testing::StartsWith("rank 1 of 2 "));
  const Outcome all = ask({"logs"});
  EXPECT_THAT(all.out, HasSubstr("[0] rank 0 of 2"));
  EXPECT_THAT(all.out, HasSubstr("[1] rank 1 of 2"));
  EXPECT_EQ(ask({"logs", "job7", "--rank", "1", "-n", "0"}).out, "");
  const Outcome wrong = ask({"logs", "job7", "--rank", "5"});
  EXPECT_EQ(wrong.status, 64);
  EXPECT_THAT(wrong.err, HasSubstr("got 5 of 0, 1"));

  MusterProcess follower({.args = {"logs", "-f", "job7"},
                          .environment = {{"XDG_RUNTIME_DIR", runtime_.path()}},
                          .directory = ""});
  ASSERT_TRUE(follower.await_output("[1] rank 1 of 2", 1, patient(20s)));
  ::kill(pids[0], SIGKILL);
  EXPECT_TRUE(follower.await_output("generation 2", 2, patient(20s))) << follower.err();
  muster.signal(SIGTERM);
  muster.wait(patient(20s));
  EXPECT_EQ(follower.wait(patient(20s)).status, 0);
  // The job is over; its folder still tells.
  std::string folder;
  for (const std::string& name : real_file_system().list(logs.path()).value_or({})) {
    if (name.starts_with("job7_")) folder = path_join(logs.path(), name);
  }
  const Outcome later = ask({"logs", folder, "--rank", "0"});
  EXPECT_EQ(later.status, 0) << later.err;
  EXPECT_THAT(later.out, HasSubstr("generation 2"));
}

TEST_F(StatusTest, LogsThatAreNotKeptAreSaidSo) {
  MusterProcess muster = job(std::vector<std::string>{"run"} + child_worker("node"));
  muster.await_event("attempt_start");
  const Outcome outcome = ask({"logs"});
  EXPECT_EQ(outcome.status, 65);
  EXPECT_THAT(outcome.err, HasSubstr("--log-dir"));
  muster.signal(SIGTERM);
  muster.wait(patient(20s));
}

TEST(ReadProgress, TakesTheNewestStepAndTheRateOfItsAttempt) {
  const std::string text =
      "{\"step\": 9, \"loss\": 3.0, \"t_ns\": 1000000000}\n"
      "{\"step\": 10, \"loss\": 2.9, \"t_ns\": 2000000000}\n"
      "{\"step\": 9, \"loss\": 3.0, \"t_ns\": 9000000000}\n"
      "{\"step\": 10, \"loss\": 2.5, \"tokens_per_s\": 70, \"t_ns\": 9500000000}\n"
      "{\"step\": 11, \"lo";
  const std::optional<JobProgress> progress = read_progress(text);
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(progress->step, 10);
  EXPECT_DOUBLE_EQ(progress->loss, 2.5);
  EXPECT_DOUBLE_EQ(progress->tokens_per_s, 70);
  EXPECT_DOUBLE_EQ(progress->steps_per_s, 2);
  EXPECT_FALSE(read_progress("").has_value());
  EXPECT_FALSE(read_progress("half a li").has_value());
  EXPECT_FALSE(read_progress("nonsense\n").has_value());
}

}  // namespace
}  // namespace muster::testing
