#include <fmt/format.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "dist/store/tcp_store.h"
#include "dist/store/tcp_store_server.h"
#include "tests/support/child_process.h"
#include "tests/support_ranks/ranks.h"

extern char** environ;

namespace muster::testing {
namespace {
std::map<std::string, RankBody>& bodies() {
  static std::map<std::string, RankBody> registered;
  return registered;
}

int int_from_environment(const char* name) { return std::atoi(std::getenv(name)); }

// The main of a spawned rank.
int run_rank_body() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const Deadline deadline =
      Deadline::after(std::chrono::seconds(int_from_environment("MUSTER_TEST_SECONDS")));
  TcpStoreOptions options;
  options.port = int_from_environment("MUSTER_TEST_PORT");
  std::shared_ptr<Store> store = TcpStore::open(options, deadline).value();
  RankContext context(int_from_environment("MUSTER_TEST_RANK"),
                      int_from_environment("MUSTER_TEST_WORLD"), store, deadline,
                      std::getenv("MUSTER_TEST_BACKEND"));
  const RankContext::Current current(context);
  const char* name = std::getenv("MUSTER_TEST_RANK_BODY");
  try {
    bodies().at(name)(context);
  } catch (const Error& error) {
    context.report(error);
    return exit_status(error.code());
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}

const bool registered = register_child("rank", run_rank_body);
}  // namespace

bool register_rank_body(const std::string& name, RankBody body) {
  static_cast<void>(registered);
  return bodies().emplace(name, std::move(body)).second;
}

void RankContext::hold_at(const std::string& point, bool held) {
  store_->set(fmt::format("hold/{}/{}", rank_, point), "").value();
  if (held) store_->get(fmt::format("release/{}/{}", rank_, point), deadline_).value();
}

void RankContext::report(const Result<void>& outcome) {
  const std::string text =
      outcome.ok()
          ? "0"
          : fmt::format("{} {}", static_cast<int>(outcome.error().code()), outcome.error().what());
  static_cast<void>(store_->set(fmt::format("outcome/{}", rank_), text));
}

struct World::State {
  std::unique_ptr<TcpStoreServer> server;
  std::shared_ptr<Store> store;
  std::vector<pid_t> pids;
  std::vector<int> statuses;  // -1 while it runs
  Deadline deadline = Deadline::never();
};

World::World(int size, const std::string& body_name, Duration at_most, const std::string& backend)
    : state_(std::make_unique<State>()) {
  state_->deadline = Deadline::after(at_most);
  state_->server = TcpStoreServer::open({}).value();
  TcpStoreOptions options;
  options.port = state_->server->port();
  state_->store = TcpStore::open(options, state_->deadline).value();
  for (int rank = 0; rank < size; ++rank) {
    std::vector<std::string> added = {
        "MUSTER_TEST_CHILD=rank",
        fmt::format("MUSTER_TEST_RANK_BODY={}", body_name),
        fmt::format("MUSTER_TEST_BACKEND={}", backend),
        fmt::format("MUSTER_TEST_RANK={}", rank),
        fmt::format("MUSTER_TEST_WORLD={}", size),
        fmt::format("MUSTER_TEST_PORT={}", state_->server->port()),
        fmt::format("MUSTER_TEST_SECONDS={}",
                    std::chrono::duration_cast<std::chrono::seconds>(at_most).count()),
    };
    std::vector<char*> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
    for (std::string& entry : added) environment.push_back(entry.data());
    environment.push_back(nullptr);
    std::string program = "/proc/self/exe";
    char* argv[] = {program.data(), nullptr};
    pid_t pid = 0;
    const int status =
        ::posix_spawn(&pid, program.c_str(), nullptr, nullptr, argv, environment.data());
    MUSTER_CHECK(status == 0, ErrorCode::kIo, "spawn_ranks: {}", errno_text(status));
    state_->pids.push_back(pid);
    state_->statuses.push_back(-1);
  }
}

World::~World() {
  for (size_t rank = 0; rank < state_->pids.size(); ++rank) {
    if (state_->statuses[rank] >= 0) continue;
    ::kill(state_->pids[rank], SIGKILL);
    ::waitpid(state_->pids[rank], nullptr, 0);
  }
}

void World::await_hold(int rank, const std::string& point) {
  state_->store->get(fmt::format("hold/{}/{}", rank, point), state_->deadline).value();
}

void World::release_hold(int rank, const std::string& point) {
  state_->store->set(fmt::format("release/{}/{}", rank, point), "").value();
}

void World::kill(int rank, int signal) { ::kill(state_->pids[static_cast<size_t>(rank)], signal); }

Result<void> World::outcome(int rank) {
  const std::string text =
      state_->store->get(fmt::format("outcome/{}", rank), state_->deadline).value();
  const size_t space = text.find(' ');
  if (space == std::string::npos) return {};
  return Error(static_cast<ErrorCode>(std::stoi(text.substr(0, space))), text.substr(space + 1));
}

int World::exit_status(int rank) {
  int& status = state_->statuses[static_cast<size_t>(rank)];
  if (status >= 0) return status;
  int raw = 0;
  ::waitpid(state_->pids[static_cast<size_t>(rank)], &raw, 0);
  status = WIFSIGNALED(raw) ? 128 + WTERMSIG(raw) : WEXITSTATUS(raw);
  return status;
}
}  // namespace muster::testing
