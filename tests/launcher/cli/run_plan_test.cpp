#include "launcher/cli/run_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/launcher/agent/run_muster.h"
#include "tests/support/matchers.h"

namespace muster::testing {
namespace {
namespace stdfs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<JobSpec> plan(const std::vector<std::string>& words, const Environment& environment = {}) {
  const Result<RunArguments> arguments = parse_run_arguments(words, environment);
  if (!arguments.ok()) return arguments.error();
  return plan_run(*arguments, environment);
}

Result<JobSpec> with(std::vector<std::string> words, const Environment& environment = {}) {
  return plan(std::move(words) + std::vector<std::string>{"--", "true"}, environment);
}

TEST(RunPlan, WrongValuesAreErrorsThatQuoteThem) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--nproc-per-node", "0"}, "--nproc-per-node: must be a number above 0"},
      {{"--nproc-per-node", "1.5"}, "got \"1.5\""},
      {{"--nproc-per-node", ""}, "got \"\""},
      {{"--nproc-per-node", "xpu"}, "got \"xpu\""},
      {{"--nnodes", "0"}, "0 < MIN <= MAX"},
      {{"--nnodes", "2:1"}, "0 < MIN <= MAX"},
      {{"--nnodes", "1:2:3"}, "MIN:MAX"},
      {{"--nnodes", "1:"}, "MIN:MAX"},
      {{"--nnodes", "2"}, "--node-rank: must be given"},
      {{"--nnodes", "2", "--node-rank", "0"}, "--master-addr: must be given"},
      {{"--nnodes", "2", "--node-rank", "2", "--master-addr", "h"}, "a number from 0 to 1"},
      {{"--nnodes", "1:4", "--rdzv-backend", "c10d"}, "--rdzv-endpoint: must be given"},
      {{"--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:0"}, "port 0 can be nobody's goal"},
      {{"--nnodes", "2", "--standalone"}, "--standalone: means one node"},
      {{"--nnodes", "2", "--rdzv-endpoint", "h:1"}, "must share a secret; got none"},
      {{"--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:1", "--rdzv-conf", "lease=0"}, "lease="},
      {{"--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:1", "--rdzv-conf", "lease=9,join_timeout=3"},
       "lease must be shorter than join_timeout; got 9 s and 3 s"},
      {{"--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:1", "--rdzv-conf", "is_host=maybe"},
       "is_host=true or false"},
      {{"--rdzv-conf", "join_timout=3"}, "did you mean \"join_timeout\""},
      {{"--node-rank", "1"}, "0 for the only node"},
      {{"--max-restarts", "-1"}, "--max-restarts: must be a number from 0; got \"-1\""},
      {{"--max-restarts", "many"}, "got \"many\""},
      {{"--monitor-interval=-1"}, "--monitor-interval"},
      {{"--monitor-interval", "fast"}, "--monitor-interval"},
      {{"--start-method", "thread"}, "spawn, fork or forkserver"},
      {{"--shutdown-timeout=-1"}, "--shutdown-timeout"},
      {{"--signals-to-handle", "SIGNOPE"}, "got \"SIGNOPE\""},
      {{"--signals-to-handle", "SIGKILL"}, "that can be handled"},
      {{"--rdzv-backend", "etcd"}, "c10d or static"},
      {{"--rdzv-conf", "join_timeout"}, "KEY=VALUE"},
      {{"--rdzv-conf", "=3"}, "KEY=VALUE"},
      {{"--rdzv-endpoint", "localhost:99999"}, "65535"},
      {{"--rdzv-backend", "static", "--rdzv-endpoint", "localhost"}, "HOST:PORT"},
      {{"--master-port", "70000"}, "--master-port"},
      {{"-t", "4"}, "--tee: must be 0, 1, 2 or 3"},
      {{"-r", "0:1, 1:2"}, "got \"0:1, 1:2\""},
      {{"-r", "a:1"}, "--redirects"},
      {{"--local-ranks-filter", "a"}, "--local-ranks-filter"},
  };
  for (const auto& [words, text] : cases) {
    EXPECT_THAT(with(words), FailsWith(ErrorCode::kInvalidArgument, HasSubstr(text)))
        << words.front() << ' ' << words.back();
  }
  EXPECT_THAT(with({}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon"}}),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("got \"soon\"")));
}

TEST(RunPlan, ValuesReachTheSpec) {
  const Result<JobSpec> spec = with({"--nproc-per-node",
                                     "2 ",
                                     "--nnodes",
                                     "1:1",
                                     "--max-restarts",
                                     "3",
                                     "--role",
                                     "r",
                                     "--rdzv-id",
                                     "job7",
                                     "--shutdown-timeout",
                                     "5",
                                     "--signals-to-handle",
                                     "SIGTERM,SIGUSR1",
                                     "--master-addr",
                                     "127.0.0.2",
                                     "-t",
                                     "10:3",
                                     "--local-ranks-filter",
                                     "0,2",
                                     "--log-dir",
                                     "logs",
                                     "--events",
                                     "e.jsonl"});
  ASSERT_OK(spec);
  EXPECT_EQ(spec->local_world_size, 2);
  EXPECT_EQ(spec->policy.max_restarts, 3);
  EXPECT_EQ(spec->policy.grace, 5s);
  EXPECT_EQ(spec->policy.crash_grace, 5s);
  EXPECT_EQ(spec->role, "r");
  EXPECT_EQ(spec->run_id, "job7");
  EXPECT_EQ(spec->master_addr, "127.0.0.2");
  EXPECT_THAT(spec->stop_signals, ElementsAre(SIGTERM, SIGUSR1));
  EXPECT_TRUE(spec->logs.tee.selects(10, 1));
  EXPECT_FALSE(spec->logs.tee.selects(0, 0));
  EXPECT_THAT(*spec->logs.console_ranks, ElementsAre(0, 2));
  EXPECT_EQ(spec->logs.dir, "logs");
  EXPECT_EQ(spec->events_path, "e.jsonl");
}

TEST(RunPlan, DefaultsAreTorchruns) {
  const Result<JobSpec> spec = with({}, {{"MUSTER_EVENTS", "from_variable"}});
  ASSERT_OK(spec);
  EXPECT_EQ(spec->local_world_size, 1);
  EXPECT_EQ(spec->policy.max_restarts, 0);
  EXPECT_EQ(spec->policy.grace, 30s);
  EXPECT_EQ(spec->master_port, 0);
  EXPECT_THAT(spec->stop_signals, ElementsAre(SIGTERM, SIGINT, SIGHUP, SIGQUIT));
  EXPECT_EQ(spec->events_path, "from_variable");
  EXPECT_GE(with({"--nproc-per-node", "auto"})->local_world_size, 1);
  EXPECT_GE(with({"--nproc-per-node", "cpu"})->local_world_size, 1);
}

TEST(RunPlan, StandaloneIgnoresTheRendezvousOptions) {
  const Result<JobSpec> spec = with({"--standalone", "--rdzv-endpoint", "127.0.0.1:1", "--rdzv-id",
                                     "x", "--rdzv-backend", "static"});
  ASSERT_OK(spec);
  EXPECT_EQ(spec->run_id, "");
  EXPECT_EQ(spec->master_port, 0);
}

TEST(RunPlan, AStaticEndpointIsTheMasterAddress) {
  const Result<JobSpec> spec =
      with({"--rdzv-backend", "static", "--rdzv-endpoint", "127.0.0.1:4567"});
  ASSERT_OK(spec);
  EXPECT_EQ(spec->master_addr, "127.0.0.1");
  EXPECT_EQ(spec->master_port, 4567);
}

TEST(RunPlan, SeveralNodesMeetAtTheEndpoint) {
  const Result<JobSpec> spec =
      with({"--nnodes", "2:4", "--rdzv-endpoint", "head", "--rdzv-id", "job7", "--rdzv-conf",
            "join_timeout=30,last_call_timeout=2,keep_alive_interval=2,keep_alive_max_attempt=4"},
           {{"MUSTER_JOB_TOKEN", "0123456789abcdef"}});
  ASSERT_OK(spec);
  EXPECT_EQ(spec->policy.nodes.min_nodes, 2);
  EXPECT_EQ(spec->policy.nodes.max_nodes, 4);
  EXPECT_EQ(spec->policy.nodes.join_limit, 30s);
  EXPECT_EQ(spec->policy.nodes.last_call, 2s);
  EXPECT_EQ(spec->policy.nodes.lease, 8s);
  EXPECT_EQ(spec->rendezvous.host, "head");
  EXPECT_EQ(spec->rendezvous.port, 29400);
  EXPECT_EQ(spec->rendezvous.id, "job7");
  EXPECT_EQ(spec->rendezvous.role, JobSpec::Rendezvous::Role::kAuto);
}

TEST(RunPlan, StaticNodesMeetBesideTheMasterPortAsKubernetesSetsIt) {
  const Environment environment = {{"PET_NNODES", "2"},
                                   {"PET_NODE_RANK", "1"},
                                   {"PET_MASTER_ADDR", "127.0.0.1"},
                                   {"PET_MASTER_PORT", "29500"},
                                   {"MUSTER_JOB_TOKEN", "0123456789abcdef"}};
  const Result<JobSpec> spec = with({}, environment);
  ASSERT_OK(spec);
  EXPECT_EQ(spec->master_port, 29500);
  EXPECT_EQ(spec->rendezvous.host, "127.0.0.1");
  EXPECT_EQ(spec->rendezvous.port, 29501);
  EXPECT_EQ(spec->rendezvous.node_rank, 1);
  EXPECT_EQ(spec->rendezvous.role, JobSpec::Rendezvous::Role::kMember);
}

TEST(RunPlan, TheTokenComesFromAVariableAFileOrTheUsersOwnFolder) {
  const TempDirectory directory;
  const std::string file = directory.file("secret");
  std::ofstream(file) << "0123456789abcdef0\n";
  const std::vector<std::string> words = {"--nnodes", "2", "--rdzv-endpoint", "localhost:1"};
  EXPECT_EQ(with(words, {{"MUSTER_JOB_TOKEN_FILE", file}})->rendezvous.token, "0123456789abcdef0");
  const Environment own = {{"XDG_RUNTIME_DIR", directory.path()}};
  const std::string token = with(words, own)->rendezvous.token;
  EXPECT_EQ(token.size(), 64U);
  EXPECT_EQ(with(words, own)->rendezvous.token, token);
  ASSERT_EQ(::chmod(directory.file("muster").c_str(), 0755), 0);
  EXPECT_THAT(with(words, own), FailsWith(ErrorCode::kIo, HasSubstr("nobody else can read")));
}

TEST(RunPlan, TheFormOfTheProgramDecidesTheCommand) {
  const TempDirectory directory;
  const std::string script = directory.file("w.py");
  std::ofstream(script) << "\n";
  const auto command = [](const std::vector<std::string>& words, const Environment& env = {}) {
    const Result<JobSpec> spec = plan(words, env);
    return spec.ok() ? spec->command : std::vector<std::string>{spec.error().what()};
  };
  EXPECT_THAT(command({script, "-x"}), ElementsAre("python3", "-u", script, "-x"));
  EXPECT_THAT(command({"--", script}), ElementsAre("python3", "-u", script));
  EXPECT_THAT(command({"-m", "mod", "a"}), ElementsAre("python3", "-u", "-m", "mod", "a"));
  EXPECT_THAT(command({script}, {{"PYTHON_EXEC", "./py"}}), ElementsAre("./py", "-u", script));
  EXPECT_THAT(command({"--no-python", "./a", "b"}), ElementsAre("./a", "b"));
  EXPECT_THAT(command({"--", "./a", "b"}), ElementsAre("./a", "b"));
  EXPECT_THAT(command({"--no-python", "x.yaml"}), ElementsAre("x.yaml"));
}

TEST(RunPlan, ImpossibleFormsAreErrors) {
  EXPECT_THAT(plan({}), FailsWith(ErrorCode::kInvalidArgument, HasSubstr("needs a recipe")));
  EXPECT_THAT(plan({"--no-python", "-m", "mod"}),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("--module")));
  const std::string native = stdfs::read_symlink("/proc/self/exe").string();
  EXPECT_THAT(plan({native}),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("write: muster run -- " + native)));
  EXPECT_THAT(plan({"none.yaml"}), FailsWith(ErrorCode::kNotFound, HasSubstr("none.yaml")));
}

TEST(MusterCommand, UsageErrorsExit2AndUnknownVerbs64) {
  const Outcome usage = run_muster({"run", "--no-such-option", "w.py"});
  EXPECT_EQ(usage.status, 2);
  EXPECT_THAT(usage.err, HasSubstr("--no-such-option: no such option"));
  EXPECT_EQ(usage.out, "");
  EXPECT_EQ(run_muster({"run"}).status, 2);
  const Outcome unknown = run_muster({"rnu"});
  EXPECT_EQ(unknown.status, 64);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean \"run\"?"));
  EXPECT_EQ(run_muster({}).status, 64);
}

TEST(MusterCommand, TellsItsVersionAndItsVerbs) {
  EXPECT_EQ(run_muster({"--version"}).out, "muster 0.1.0\n");
  const Outcome help = run_muster({"help"});
  EXPECT_EQ(help.status, 0);
  for (const char* verb : {"run", "recipe", "drill", "ckpt"})
    EXPECT_THAT(help.out, HasSubstr(verb));
  EXPECT_EQ(run_muster({"help", "run"}).out, run_help());
}

}  // namespace
}  // namespace muster::testing
