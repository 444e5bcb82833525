// `muster run RECIPE`: a copy of the binary with a stand-in for muster-train beside it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/base/text.h"
#include "dist/store/tcp_store.h"
#include "tests/launcher/agent/cluster.h"
#include "tests/launcher/agent/run_muster.h"
#include "tests/support/child_process.h"

namespace muster::testing {
namespace {
namespace stdfs = std::filesystem;
using ::testing::HasSubstr;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Meets the other ranks in the agent's store, with the token and, in vain, without it.
int meet_in_store() {
  TcpStoreOptions options{.host = variable("MASTER_ADDR"),
                          .port = std::stoi(variable("MASTER_PORT")),
                          .token = variable("MUSTER_JOB_TOKEN")};
  const Deadline deadline = Deadline::after(10s);
  const auto store = TcpStore::open(options, deadline);
  if (!store.ok()) {
    std::fprintf(stderr, "%s\n", store.error().what());
    return 1;
  }
  const Result<void> met = barrier(**store, "all", std::stoll(variable("WORLD_SIZE")), deadline);
  options.token = "";
  const bool stranger = TcpStore::open(options, Deadline::after(2s)).ok();
  std::printf("met %d, stranger %d\n", met.ok() ? 1 : 0, stranger ? 1 : 0);
  return met.ok() && !stranger ? 0 : 1;
}
const bool kRegistered = register_child("meet_in_store", meet_in_store);

class RecipeRun : public ::testing::Test {
 protected:
  void SetUp() override {
    stdfs::copy_file(binary_directory() + "/muster", directory_.file("muster"));
    std::ofstream(directory_.file("data.txt")) << "some text";
    std::ofstream(directory_.file("r.yaml"))
        << "recipe: 1\nrun: {name: r, dir: out/r}\ndata: {kind: text, files: [data.txt]}\n"
           "train: {steps: 3, global_batch: 4, microbatch: 1}\n";
  }

  void worker(const std::string& text) {
    const std::string path = directory_.file("muster-train");
    std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
    ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  }

  MusterProcess::Options job(const std::vector<std::string>& args) {
    return {.args = std::vector<std::string>{"run"} + args,
            .environment = {},
            .directory = directory_.path(),
            .binary = directory_.file("muster")};
  }

  std::string text_of(const std::string& name) {
    const Result<std::string> text = read_text(real_file_system(), directory_.file(name));
    return text.ok() ? *text : "cannot read " + name;
  }

  TempDirectory directory_;
};

TEST_F(RecipeRun, GivesTheWorkerTheSameFileAndOverridesAndTheRunFolder) {
  worker("echo \"$@\"; echo $MUSTER_RUN_DIR; echo $MUSTER_GENERATION");
  MusterProcess muster(job({"--nproc-per-node", "2", "r.yaml", "train.steps=5"}));
  const Outcome outcome = muster.wait();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const std::string rank : {"0", "1"}) {
    EXPECT_EQ(text_of("out/r/logs/attempt_0/" + rank + "/stdout.log"),
              "r.yaml train.steps=5\n" + directory_.file("out/r") + "\n1\n");
  }
}

TEST_F(RecipeRun, TakesTheNumberOfRanksFromTheMesh) {
  worker("echo world $WORLD_SIZE");
  MusterProcess muster(job({"r.yaml", "mesh.fsdp=4"}));
  const Outcome outcome = muster.wait();
  EXPECT_EQ(outcome.out, "world 4\nworld 4\nworld 4\nworld 4\n") << outcome.err;
  MusterProcess wrong(job({"--nproc-per-node", "3", "r.yaml", "mesh.fsdp=4"}));
  const Outcome refused = wrong.wait();
  EXPECT_EQ(refused.status, 78);
  EXPECT_THAT(refused.err, HasSubstr("mesh"));
}

TEST_F(RecipeRun, ASecondRunKeepsLogsIncidentsAndCountsGenerationsOn) {
  worker("echo generation $MUSTER_GENERATION attempt $MUSTER_ATTEMPT; exit 1");
  for (int run = 0; run < 2; ++run) {
    MusterProcess muster(job({"--max-restarts", "1", "r.yaml"}));
    EXPECT_EQ(muster.wait().status, 1);
  }
  EXPECT_EQ(text_of("out/r/logs-1/attempt_1/0/stdout.log"), "generation 2 attempt 1\n");
  EXPECT_EQ(text_of("out/r/logs/attempt_0/0/stdout.log"), "generation 3 attempt 0\n");
  EXPECT_EQ(text_of("out/r/logs/attempt_1/0/stdout.log"), "generation 4 attempt 1\n");
  for (const char* record : {"0", "1", "2", "3"}) {
    EXPECT_TRUE(stdfs::exists(directory_.file(fmt::format("out/r/incident-{}.json", record))));
  }
}

TEST_F(RecipeRun, WritesItsEventsToTheRunFolderUnlessTold) {
  worker("exit 3");
  const auto run = [this](std::vector<std::string> options) {
    MusterProcess::Options setup = job(std::move(options) + std::vector<std::string>{"r.yaml"});
    setup.environment["MUSTER_EVENTS"] = "";  // this harness has a file of its own
    MusterProcess muster(std::move(setup));
    EXPECT_EQ(muster.wait().status, 1) << muster.err();
  };
  run({"--max-restarts", "1"});
  const std::string first = text_of("out/r/agent_events.jsonl");
  std::vector<std::string> names;
  for (const std::string& line : split(trim(first), '\n')) {
    names.push_back(nlohmann::json::parse(line)["event"]);
  }
  EXPECT_THAT(names, ::testing::IsSupersetOf({"job_start", "attempt_start", "worker_exit",
                                              "decision", "incident", "respawned", "job_end"}));
  EXPECT_EQ(std::count(names.begin(), names.end(), "attempt_start"), 2);
  // The next job in the folder adds to it, also after one that was cut off within a line.
  std::ofstream(directory_.file("out/r/agent_events.jsonl"), std::ios::app) << "{\"event\":\"jo";
  run({"--max-restarts", "0"});
  const std::string both = text_of("out/r/agent_events.jsonl");
  EXPECT_TRUE(both.starts_with(first + "{\"event\":\"jo\n{\"event\":\"job_start\"")) << both;
  run({"--events", directory_.file("elsewhere")});
  EXPECT_EQ(text_of("out/r/agent_events.jsonl"), both);
  EXPECT_THAT(text_of("elsewhere"), HasSubstr("\"job_end\""));
}

// Two nodes that share the run folder, and both of whose ranks have something to say.
TEST_F(RecipeRun, EachNodeHasItsEventsAndTheErrorsOfItsRanks) {
  if (why_no_agents() != nullptr) GTEST_SKIP() << why_no_agents();
  stdfs::copy_file(binary_directory() + "/muster-rendezvous.so",
                   directory_.file("muster-rendezvous.so"));
  worker(
      "echo \"{\\\"message\\\": \\\"rank $RANK has a bug\\\"}\" > $TORCHELASTIC_ERROR_FILE; exit "
      "70");
  const auto start = [this](const std::string& port, const std::string& conf) {
    MusterProcess::Options setup = job({"--nnodes", "2", "--nproc-per-node", "1", "--rdzv-endpoint",
                                        "127.0.0.1:" + port, "--rdzv-conf", conf, "r.yaml"});
    setup.environment = {{"MUSTER_EVENTS", ""}, {"MUSTER_JOB_TOKEN", kClusterToken}};
    return std::make_unique<MusterProcess>(std::move(setup));
  };
  const auto host = start("0", "is_host=1");
  static constexpr std::string_view kAt = " at 127.0.0.1:";
  ASSERT_TRUE(host->await_output("hosting the rendezvous")) << host->err();
  const std::string line = host->err().substr(host->err().find(kAt) + kAt.size());
  const auto node = start(line.substr(0, line.find_first_not_of("0123456789")), "is_host=0");
  EXPECT_EQ(host->wait(patient(30s)).status, 70) << host->err();
  EXPECT_EQ(node->wait(patient(30s)).status, 70) << node->err();

  std::string own_events, records;
  for (const auto& entry : stdfs::directory_iterator(directory_.file("out/r"))) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("agent_events.") && name != "agent_events.jsonl")
      own_events += text_of("out/r/" + name);
    if (name.starts_with("incident-")) records += text_of("out/r/" + name);
  }
  const std::string events = text_of("out/r/agent_events.jsonl");
  EXPECT_THAT(events, HasSubstr("\"role\":\"host\""));
  EXPECT_THAT(events, HasSubstr("\"rank\":0,"));
  EXPECT_THAT(own_events, HasSubstr("\"rank\":1,"));
  for (const std::string rank : {"0", "1"})
    EXPECT_THAT(records, HasSubstr("rank " + rank + " has a bug"));
  EXPECT_THAT(own_events, HasSubstr("\"role\":\"node\""));
  EXPECT_THAT(own_events, HasSubstr("\"job_end\""));
  EXPECT_TRUE(stdfs::exists(directory_.file("out/r/incident-0.json")));
  EXPECT_FALSE(stdfs::exists(directory_.file("out/r/incident-1.json")));
}

TEST_F(RecipeRun, TwoJobsDoNotShareARunFolder) {
  worker("echo ready; exec sleep 100");
  MusterProcess first(job({"r.yaml"}));
  ASSERT_TRUE(first.await_output("ready"));
  MusterProcess second(job({"r.yaml"}));
  const Outcome refused = second.wait();
  EXPECT_EQ(refused.status, 65);
  EXPECT_THAT(refused.err, HasSubstr("must be used by one job at a time"));
  EXPECT_FALSE(stdfs::exists(directory_.file("out/r/logs-1")));
  // A killed job frees the folder as soon as it is swept.
  ::kill(first.pid(), SIGKILL);
  MusterProcess third(job({"r.yaml"}));
  EXPECT_TRUE(third.await_output("ready"));
  third.signal(SIGTERM);
  EXPECT_EQ(third.wait().status, 143);
}

TEST_F(RecipeRun, TheNextJobKillsWhatOutlivedAllSupervisorsOfTheLast) {
  worker("setsid sleep 100 & echo ready; [ $MUSTER_GENERATION = 1 ] || exit 0; exec sleep 100");
  MusterProcess first(job({"r.yaml"}));
  const nlohmann::json start = first.await_event("job_start");
  ASSERT_TRUE(first.await_output("ready"));
  for (const char* name : {"guardian", "agent", "launcher"}) ::kill(start[name], SIGSTOP);
  for (const char* name : {"launcher", "guardian", "agent"}) ::kill(start[name], SIGKILL);
  ASSERT_TRUE(
      await_ends({start["launcher"], start["guardian"], start["agent"]}, Deadline::after(5s)));
  MusterProcess second(job({"r.yaml"}));
  const Outcome outcome = second.wait();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("had left behind"));
  EXPECT_THAT(marked_processes(first.mark()), ::testing::IsEmpty());
}

TEST_F(RecipeRun, ADamagedGenerationFileIsNamed) {
  worker("true");
  ASSERT_TRUE(real_file_system().make_directories(directory_.file("out/r")).ok());
  std::ofstream(directory_.file("out/r/generation")) << "seven";
  MusterProcess muster(job({"r.yaml"}));
  const Outcome outcome = muster.wait();
  EXPECT_EQ(outcome.status, 66);
  EXPECT_THAT(outcome.err, HasSubstr("generation: must hold a number; got \"seven\""));
}

TEST_F(RecipeRun, RanksMeetInAStoreThatKeepsStrangersOut) {
  const std::string self = stdfs::read_symlink("/proc/self/exe").string();
  worker("MUSTER_TEST_CHILD=meet_in_store exec " + self);
  MusterProcess muster(job({"--nproc-per-node", "4", "r.yaml"}));
  const Outcome outcome = muster.wait();
  EXPECT_EQ(outcome.status, 0) << outcome.err << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("met 1, stranger 0"));
}

TEST_F(RecipeRun, SiblingsOfACrashAreKilledAtOnce) {
  worker("[ $RANK = 1 ] && kill -KILL $$; trap '' TERM; while true; do sleep 0.1; done");
  MusterProcess muster(job({"--nproc-per-node", "2", "r.yaml"}));
  const TimePoint started = real_clock().now();
  EXPECT_EQ(muster.wait().status, 137);
  EXPECT_LT(real_clock().now() - started, patient(2s));
}

TEST_F(RecipeRun, AMissingWorkerIsNamed) {
  MusterProcess muster(job({"r.yaml"}));
  const Outcome outcome = muster.wait();
  EXPECT_EQ(outcome.status, 66);
  EXPECT_THAT(outcome.err, HasSubstr("the worker must lie beside muster; no " +
                                     directory_.file("muster-train")));
}

TEST_F(RecipeRun, AnUnknownVerbRunsTheProgramOfThatNameBesideIt) {
  const std::string path = directory_.file("muster-hello");
  std::ofstream(path) << "#!/bin/sh\necho hello \"$@\"; exit 7\n";
  ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  MusterProcess muster({.args = {"hello", "a", "b c"},
                        .environment = {},
                        .directory = "",
                        .binary = directory_.file("muster")});
  const Outcome outcome = muster.wait();
  EXPECT_EQ(outcome.out, "hello a b c\n");
  EXPECT_EQ(outcome.status, 7);
}

TEST_F(RecipeRun, AToolsVerbRunsMusterTools) {
  const std::string path = directory_.file("muster-tools");
  std::ofstream(path) << "#!/bin/sh\necho tools \"$@\"\n";
  ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  MusterProcess muster({.args = {"ckpt", "list"},
                        .environment = {},
                        .directory = "",
                        .binary = directory_.file("muster")});
  EXPECT_EQ(muster.wait().out, "tools ckpt list\n");
}

}  // namespace
}  // namespace muster::testing
