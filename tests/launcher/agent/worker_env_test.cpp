// What a worker is started with, against what torchrun gives it.
#include "launcher/agent/worker_env.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "core/base/text.h"
#include "launcher/agent/proc_file.h"
#include "launcher/agent/unique_fd.h"
#include "tests/launcher/agent/cluster.h"
#include "tests/launcher/agent/run_muster.h"
#include "tests/support/child_process.h"
#include "tests/support/matchers.h"

namespace muster::testing {
namespace {
namespace stdfs = std::filesystem;
using nlohmann::json;

std::vector<std::string> split_at_zeros(const std::string& text) {
  std::vector<std::string> parts = split(text, '\0');
  if (!parts.empty() && parts.back().empty()) parts.pop_back();
  return parts;
}

// The worker: writes down what it was started with. Rank 1 fails in attempt 0 when asked to.
int dump_environment() {
  json dump;
  for (const std::string& entry : split_at_zeros(read_kernel_file("/proc/self/environ"))) {
    const size_t equals = entry.find('=');
    dump["env"][entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  const std::vector<std::string> argv = split_at_zeros(read_kernel_file("/proc/self/cmdline"));
  dump["arguments"] = std::vector<std::string>(argv.begin() + 1, argv.end());
  dump["own_session"] = ::getsid(0) == ::getpid();
  dump["own_process_group"] = ::getpgrp() == ::getpid();
  dump["stdin"] = stdfs::read_symlink("/proc/self/fd/0").string();
  dump["cwd"] = stdfs::current_path().string();
  const json& environment = dump["env"];
  const std::string rank = environment["RANK"];
  const std::string attempt = environment["TORCHELASTIC_RESTART_COUNT"];
  std::ofstream(environment["DUMP"].get<std::string>() + "/" + rank + "." + attempt) << dump.dump();
  return environment.contains("DUMP_FAILS") && rank == "1" && attempt == "0" ? 1 : 0;
}
const bool kRegistered = register_child("dump_environment", dump_environment);

std::vector<std::string> words_of(const std::string& command) {
  std::vector<std::string> words(1);
  bool quoted = false;
  for (const char c : command) {
    if (c == '\'') {
      quoted = !quoted;
    } else if (c == ' ' && !quoted) {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

std::string free_port() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof(address);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return std::to_string(ntohs(address.sin_port));
}

std::string replaced(std::string text, const std::string& part, const std::string& by) {
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + by.size())) {
    text.replace(at, part.size(), by);
  }
  return text;
}

// What torchrun's value stands for, as a regular expression over ours. Where muster differs on
// purpose it says so here.
std::string expected_pattern(const std::string& name, std::string value, const std::string& temp) {
  if (name == "TORCHELASTIC_RUN_ID" && value == "none") value = "<UUID>";  // never shared by jobs
  if (name == "MASTER_ADDR" && value == "<FQDN>") value = "127.0.0.1";     // no look-ups, loopback
  value = replaced(value, "/none_", "/<UUID>_");
  value = replaced(value, "/torchelastic_", "/muster_");
  if (name == "OMP_NUM_THREADS") value = "<DIGITS>";  // cores / workers, not 1
  std::string pattern;
  for (const char c : value) {
    if (std::string_view(".$*+?()[]{}|^\\").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  pattern = replaced(pattern, "<UUID>", "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}");
  pattern = replaced(pattern, "<RAND>", "[^/]+");
  pattern = replaced(pattern, "<PORT>", "[0-9]+");
  pattern = replaced(pattern, "<DIGITS>", "[0-9]+");
  return replaced(pattern, "<TMPDIR>", temp);
}

class GoldenEnvironment : public ::testing::Test {
 protected:
  void write_program(const std::string& name, const std::string& text) {
    const std::string path = directory_.file(name);
    std::ofstream(path) << text;
    ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  }

  void SetUp() override {
    const std::string self = stdfs::read_symlink("/proc/self/exe").string();
    write_program("mypython",
                  "#!/bin/sh\nMUSTER_TEST_CHILD=dump_environment exec " + self + " \"$@\"\n");
    write_program("run.sh", "#!/bin/sh\nexec ./mypython w.py \"$@\"\n");
    write_program("w.py", "");
    for (const char* folder : {"dump", "tmp"}) {
      ASSERT_TRUE(real_file_system().make_directories(directory_.file(folder)).ok());
    }
  }

  Outcome run(const json& golden) {
    std::vector<std::string> words =
        words_of(replaced(golden["commands"][0], "<PORT>", free_port()));
    words[0] = "run";  // was torchrun
    std::map<std::string, std::string> environment = {{"DUMP", directory_.file("dump")},
                                                      {"TMPDIR", directory_.file("tmp")},
                                                      {"PYTHON_EXEC", directory_.file("mypython")}};
    if (golden["id"] == "restart") environment["DUMP_FAILS"] = "1";
    for (const auto& [name, value] : golden["agent_env"][0].items()) environment[name] = value;
    return MusterProcess(
               {.args = words, .environment = environment, .directory = directory_.path()})
        .wait();
  }

  // Several agents on this machine.
  void run_nodes(const json& golden) {
    const std::string port = std::to_string(free_port_pair());
    std::vector<std::unique_ptr<MusterProcess>> nodes;
    for (size_t i = 0; i < golden["commands"].size(); ++i) {
      std::vector<std::string> words = words_of(replaced(golden["commands"][i], "<PORT>", port));
      words[0] = "run";  // was torchrun
      std::map<std::string, std::string> environment = {
          {"DUMP", directory_.file("dump")},
          {"TMPDIR", directory_.file("tmp")},
          {"XDG_RUNTIME_DIR", directory_.path()},
          {"PYTHON_EXEC", directory_.file("mypython")}};
      for (const auto& [name, value] : golden["agent_env"][i].items()) {
        environment[name] = replaced(value, "<PORT>", port);
      }
      nodes.push_back(std::make_unique<MusterProcess>(MusterProcess::Options{
          .args = words, .environment = environment, .directory = directory_.path()}));
      // The first one hosts, as torchrun's first agent does.
      EXPECT_FALSE(nodes.back()->await_event("rendezvous", patient(20s)).is_null())
          << nodes.back()->err();
    }
    for (const auto& node : nodes) {
      const Outcome outcome = node->wait(patient(30s));
      EXPECT_EQ(outcome.status, 0) << outcome.err;
    }
  }

  void compare(const json& golden, const json& rank) {
    const std::string name =
        fmt::format("{}.{}", rank["rank"].get<int>(), rank["restart_count"].get<int>());
    SCOPED_TRACE("rank and attempt " + name);
    const Result<std::string> text = read_text(real_file_system(), directory_.file("dump/" + name));
    // Rank 0 of a failed attempt may have been stopped before it wrote.
    if (!text.ok() && golden["id"] == "restart" && name == "0.0") return;
    ASSERT_TRUE(text.ok());
    const json dump = json::parse(*text);
    for (const auto& [variable, value] : rank["env"].items()) {
      ASSERT_TRUE(dump["env"].contains(variable)) << variable;
      const std::string pattern = expected_pattern(variable, value, directory_.file("tmp"));
      const std::string got = dump["env"][variable];
      EXPECT_TRUE(std::regex_match(got, std::regex(pattern)))
          << variable << "=" << got << " does not match " << pattern;
    }
    for (const char* variable : {"OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"}) {
      const bool given = golden["agent_env"][0].contains(variable);
      if (!given && !rank["env"].contains(variable)) {
        EXPECT_FALSE(dump["env"].contains(variable)) << variable;
      }
    }
    EXPECT_FALSE(dump["env"].contains("MUSTER_EVENTS"));
    std::vector<std::string> command = rank["process"]["command"];
    EXPECT_EQ(dump["arguments"], std::vector<std::string>(command.begin() + 1, command.end()));
    EXPECT_EQ(dump["own_session"], true);
    EXPECT_EQ(dump["own_process_group"], true);
    EXPECT_EQ(dump["stdin"], "/dev/null");
    EXPECT_EQ(dump["cwd"], directory_.path());
  }

  TempDirectory directory_;
};

TEST_F(GoldenEnvironment, EveryConfigurationOfOneNodeIsTorchrunsOwn) {
  std::ifstream file(source_directory() + "/tests/golden/torchrun/env.jsonl");
  int cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    const json golden = json::parse(line);
    SCOPED_TRACE(golden["id"].get<std::string>() + ": " + golden["commands"][0].get<std::string>());
    for (const auto& entry : stdfs::directory_iterator(directory_.file("dump"))) {
      stdfs::remove(entry.path());
    }
    const Outcome outcome = run(golden);
    EXPECT_EQ(outcome.status, golden["exit_codes"][0].get<int>()) << outcome.err;
    for (const json& rank : golden["ranks"]) compare(golden, rank);
  }
  EXPECT_EQ(cases, 21);
}

TEST_F(GoldenEnvironment, EveryConfigurationOfSeveralNodesIsTorchrunsOwn) {
  if (why_no_agents() != nullptr) GTEST_SKIP() << why_no_agents();
  std::ifstream file(source_directory() + "/tests/golden/torchrun/env_nodes.jsonl");
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    const json golden = json::parse(line);
    const std::string id = golden["id"];
    // Not the same on purpose: --node-rank is honoured, and a late node makes one more round (both
    // in nodes_test.cpp).
    if (id == "c10d_node_rank_ignored" || id == "c10d_scale_up") continue;
    ++cases;
    SCOPED_TRACE(id);
    for (const auto& entry : stdfs::directory_iterator(directory_.file("dump"))) {
      stdfs::remove(entry.path());
    }
    run_nodes(golden);
    std::set<std::string> endpoints;
    for (const json& rank : golden["ranks"]) {
      compare(golden, rank);
      const Result<std::string> text = read_text(
          real_file_system(), directory_.file(fmt::format("dump/{}.0", rank["rank"].get<int>())));
      ASSERT_OK(text);
      const json dump = json::parse(*text);
      endpoints.insert(dump["env"]["MASTER_ADDR"].get<std::string>() + ":" +
                       dump["env"]["MASTER_PORT"].get<std::string>());
    }
    EXPECT_EQ(endpoints.size(), 1U) << "all workers must go to one store";
  }
  EXPECT_EQ(cases, 4);
}

TEST(SubstituteTemplate, FollowsPythonsStringTemplate) {
  const auto substituted = [](std::string_view text) {
    return substitute_template(text, {{"local_rank", "3"}});
  };
  EXPECT_EQ(substituted("log_${local_rank}.txt"), "log_3.txt");
  EXPECT_EQ(substituted("$local_rank.txt"), "3.txt");
  EXPECT_EQ(substituted("$local_ranks"), "$local_ranks");
  EXPECT_EQ(substituted("${rank} $$x $ ${local_rank"), "${rank} $x $ ${local_rank");
  EXPECT_EQ(substituted(""), "");
}

TEST(WorkerCommand, OwnFormReplacesTheBracedNameOnly) {
  JobSpec spec;
  spec.command = {"sh", "-c", "echo $$ ${local_rank} $local_rank"};
  spec.substitution = JobSpec::Substitution::kLocalRank;
  EXPECT_EQ(worker_command(spec, 2)[2], "echo $$ 2 $local_rank");
  spec.substitution = JobSpec::Substitution::kNone;
  EXPECT_EQ(worker_command(spec, 2)[2], "echo $$ ${local_rank} $local_rank");
}

TEST(WorkerEnvironment, ThreadsAreCoresOverRanksAndAtLeastOne) {
  JobPlan plan;
  plan.spec.local_world_size = 3;
  plan.threads_per_worker = 5;
  const auto has = [&](std::string_view entry) {
    const std::vector<std::string> all = worker_environment(plan, {}, 0);
    return std::find(all.begin(), all.end(), entry) != all.end();
  };
  EXPECT_TRUE(has("OMP_NUM_THREADS=5"));
  plan.inherited = {"OMP_NUM_THREADS=2"};
  EXPECT_TRUE(has("OMP_NUM_THREADS=2"));
  EXPECT_GE(allowed_cores(), 1);
}

}  // namespace
}  // namespace muster::testing
