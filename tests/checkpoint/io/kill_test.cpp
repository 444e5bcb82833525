// Real processes, real files, SIGKILL: for every file operation of every rank of a save, that rank
// dies there. The next start must load the checkpoint before or the new one, whole.
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "checkpoint/io/checkpointer.h"
#include "checkpoint/io/names.h"
#include "core/base/text.h"
#include "dist/store/tcp_store.h"
#include "dist/store/tcp_store_server.h"
#include "tests/checkpoint/small_model.h"
#include "tests/checkpoint/wrapping_file_system.h"
#include "tests/support/child_process.h"
#include "tests/support/matchers.h"

extern char** environ;

namespace muster::checkpoint {
namespace {
using ::testing::AnyOf;

constexpr int kWorld = 3;
constexpr int kSaved = 0;
constexpr int kFailed = 75;

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}
int64_t number(const char* name) { return std::atoll(variable(name).c_str()); }

// One rank that saves step 3 and dies at its operation KILL_AT. An append dies half-way.
int save_and_maybe_die() {
  const int global_rank = static_cast<int>(number("CK_RANK"));
  const int64_t kill_at = number("CK_KILL_AT");
  int64_t at = INT64_MIN / 2;  // counts from 0 once all ranks are there
  bool die_in_append = false;
  WrappingFileSystem fs(real_file_system(),
                        {.before =
                             [&](const std::string& operation) {
                               if (at++ == kill_at) {
                                 if (operation.starts_with("append"))
                                   die_in_append = true;
                                 else
                                   ::kill(::getpid(), SIGKILL);
                               }
                               return Result<void>();
                             },
                         .append =
                             [&](WritableFile& file, std::span<const std::byte> bytes) {
                               if (!die_in_append) return file.append(bytes);
                               (void)file.append(bytes.first(bytes.size() / 2));
                               ::kill(::getpid(), SIGKILL);
                               return Result<void>();
                             }});
  auto store = TcpStore::open({.port = static_cast<int>(number("CK_PORT"))}, Deadline::after(30s));
  if (!store.ok()) return 70;
  CheckpointerOptions options =
      test_options(fs, variable("CK_DIR"), store->get(), global_rank, kWorld);
  options.timeout = std::chrono::minutes(2);
  auto checkpointer = Checkpointer::open(options);
  if (!checkpointer.ok()) return 70;
  if (!barrier(**store, "ready", kWorld, Deadline::after(2min)).ok()) return kFailed;
  at = 0;
  const RankState state(small_model(), 3, global_rank, kWorld);
  const auto report = (*checkpointer)->save(test_request(state, 3, global_rank));
  return report.ok() ? kSaved : kFailed;
}
const bool registered = ::muster::testing::register_child("checkpoint_save", save_and_maybe_die);

pid_t spawn_rank(const std::vector<std::string>& extra) {
  std::vector<std::string> texts;
  for (char** entry = environ; *entry != nullptr; ++entry) texts.emplace_back(*entry);
  texts.insert(texts.end(), extra.begin(), extra.end());
  texts.emplace_back("MUSTER_TEST_CHILD=checkpoint_save");
  texts.emplace_back("MUSTER_LOG=off");
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  std::string program = "/proc/self/exe";
  char* arguments[] = {program.data(), nullptr};
  pid_t pid = -1;
  EXPECT_EQ(::posix_spawn(&pid, program.c_str(), nullptr, nullptr, arguments, pointers.data()), 0);
  return pid;
}

class Kill : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(registered); }

  // The statuses of the ranks of one save in which `victim` dies at its operation `kill_at`. When
  // it has died the store goes too, as with a job's agent: the others then need not wait for it.
  static std::vector<int> save(const std::string& folder, int victim, int64_t kill_at) {
    const auto server = TcpStoreServer::open({}).value();
    std::vector<pid_t> pids;
    for (int global_rank = 0; global_rank < kWorld; ++global_rank) {
      pids.push_back(spawn_rank({fmt::format("CK_RANK={}", global_rank),
                                 fmt::format("CK_KILL_AT={}", global_rank == victim ? kill_at : -1),
                                 fmt::format("CK_PORT={}", server->port()), "CK_DIR=" + folder}));
    }
    std::vector<int> statuses(kWorld);
    const size_t first = static_cast<size_t>(victim);
    EXPECT_EQ(::waitpid(pids[first], &statuses[first], 0), pids[first]);
    if (WIFSIGNALED(statuses[first])) server->stop();
    for (size_t i = 0; i < pids.size(); ++i) {
      if (i != first) {
        EXPECT_EQ(::waitpid(pids[i], &statuses[i], 0), pids[i]);
      }
    }
    return statuses;
  }

  // Steps 1 and 2, whole, and nothing else.
  static void prepare(const std::string& folder) {
    FileSystem& fs = real_file_system();
    remove_tree(fs, path_join(folder, step_name(3))).value();
    for (const int64_t step : {1, 2}) {
      if (!fs.info(path_join(folder, step_name(step)))->exists)
        save_model(fs, folder, step, 1, /*keep=*/0)[0].value();
    }
  }

  // Kills one rank at each of its operations in turn, until it survives the save.
  void sweep(int victim) {
    const std::string folder = dir_.file(fmt::format("victim-{}", victim));
    for (int64_t kill_at = 0;; ++kill_at) {
      SCOPED_TRACE(fmt::format("rank {} dies at operation {}", victim, kill_at));
      prepare(folder);
      const std::vector<int> statuses = save(folder, victim, kill_at);
      const int status = statuses[static_cast<size_t>(victim)];
      const bool died = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      bool is_equal = false;
      const auto loaded = load_model(real_file_system(), folder, 1, &is_equal)[0];
      ASSERT_OK(loaded);
      ASSERT_TRUE(loaded->has_value());
      ASSERT_THAT((*loaded)->step, AnyOf(2, 3));
      ASSERT_TRUE(is_equal);
      ASSERT_EQ((*loaded)->digest, hex64(model_digest(small_model(), (*loaded)->step)));
      ASSERT_TRUE((*loaded)->skipped.empty());
      for (const int other : statuses) {
        if (!WIFEXITED(other)) continue;
        ASSERT_THAT(WEXITSTATUS(other), AnyOf(kSaved, kFailed));
        // Whoever was told that step 3 is saved can rely on it.
        if (WEXITSTATUS(other) == kSaved) {
          ASSERT_EQ((*loaded)->step, 3);
        }
      }
      ++((*loaded)->step == 2 ? num_old_ : num_new_);
      if (!died) return;
      ++num_kills_;
    }
  }

  TempDirectory dir_;
  std::atomic<int> num_kills_ = 0;
  std::atomic<int> num_old_ = 0;
  std::atomic<int> num_new_ = 0;
};

TEST_F(Kill, AtEveryOperationOfEveryRankThePreviousOrTheNewCheckpointLoads) {
  run_ranks(kWorld, [&](int victim) { sweep(victim); });
  EXPECT_GE(num_kills_, 70);
  EXPECT_GE(num_old_, 60);
  // From the rename on, and once per rank without a kill.
  EXPECT_GE(num_new_, 10);
}

TEST_F(Kill, WithoutAKillTheSaveSucceedsOnAllRanks) {
  const std::string folder = dir_.file("ckpt");
  prepare(folder);
  for (const int status : save(folder, 0, -1)) EXPECT_EQ(status, 0);
  EXPECT_EQ((*load_model(real_file_system(), folder, 2)[0])->step, 3);
}
}  // namespace
}  // namespace muster::checkpoint
