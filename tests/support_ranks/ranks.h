#pragma once
/// Ranks for tests: threads of this process, or real processes that can be killed.
///
/// run_ranks() is fast and runs under TSan. spawn_ranks() re-executes the test binary with a named
/// body (RANK_BODY), so that a rank has its own address space. Both have a deadline; the first rank
/// that fails ends the others. Ranks talk over shm unless a test names another backend.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dist/group/process_group.h"
#include "dist/store/store.h"
#include "tests/support/matchers.h"

namespace muster::testing {

class RankContext;

/// A backend with real peers, as the conformance suite sees it.
struct BackendMember {
  std::string name;
  BackendAbilities abilities;
  std::function<Result<std::unique_ptr<Backend>>(RankContext&)> open;
  /// Copies values between a tensor of the host and one of communication_allocator(), either way;
  /// none where the backend takes tensors of the host.
  std::function<void(const Tensor& to, const Tensor& from)> copy = {};
  /// Why this machine cannot run so many ranks of it, or "".
  std::function<std::string(int world)> unable = {};
  bool in_processes = true;  ///< ranks may be processes
};
inline void PrintTo(const BackendMember& member, std::ostream* out) { *out << member.name; }
/// Joins the suite; returns a dummy to initialise a static with. shm has joined already.
bool join_backend_suite(BackendMember member);
/// All that joined, by name.
std::vector<BackendMember> backend_members();

/// For the calling rank: a tensor that its backend takes, with the values of `host`; and back.
/// Either returns its argument where there is nothing to do.
Tensor on_backend(const Tensor& host);
Tensor on_host(const Tensor& tensor);

class RankContext {
 public:
  RankContext(int rank, int world, std::shared_ptr<Store> store, Deadline deadline,
              std::string backend = "shm")
      : rank_(rank),
        world_(world),
        store_(std::move(store)),
        deadline_(deadline),
        backend_(std::move(backend)) {}
  ~RankContext();
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  [[nodiscard]] int group_rank() const noexcept { return rank_; }
  [[nodiscard]] int world_size() const noexcept { return world_; }
  [[nodiscard]] Deadline deadline() const noexcept { return deadline_; }
  [[nodiscard]] Store& store() const noexcept { return *store_; }
  [[nodiscard]] const std::shared_ptr<Store>& shared_store() const noexcept { return store_; }
  [[nodiscard]] const BackendMember& member() const;
  /// The world, opened on first use. @collective all ranks
  ProcessGroup& group();

  /// The rank of this thread while a body runs, for on_backend() and on_host().
  class Current {
   public:
    explicit Current(RankContext& context);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
  };

  /// For spawned ranks: tells the test that this point is reached, and stays there while `held`.
  void hold_at(const std::string& point, bool held = true);
  /// For spawned ranks: what the test reads as World::outcome.
  void report(const Result<void>& outcome);

 private:
  friend void run_ranks(int world, const std::function<void(RankContext&)>& body, Duration at_most,
                        const std::string& backend);
  int rank_;
  int world_;
  std::shared_ptr<Store> store_;
  Deadline deadline_;
  std::string backend_;
  std::unique_ptr<ProcessGroup> group_;
};

/// Runs `body` once per rank, each on a thread. Exceptions become test failures that name the rank.
void run_ranks(int world, const std::function<void(RankContext&)>& body, Duration at_most = 60s,
               const std::string& backend = "shm");

using RankBody = std::function<void(RankContext&)>;
/// Registers a body for spawn_ranks; returns a dummy to initialise a static with.
bool register_rank_body(const std::string& name, RankBody body);

/// Ranks as processes. The destructor kills and reaps what is left.
class World {
 public:
  World(int size, const std::string& body_name, Duration at_most = 60s,
        const std::string& backend = "shm");
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// Returns when `rank` has reached hold_at(point). @error throws kTimeout
  void await_hold(int rank, const std::string& point);
  void release_hold(int rank, const std::string& point);
  void kill(int rank, int signal);
  /// What the rank reported. @error throws kTimeout if it reported nothing in time
  Result<void> outcome(int rank);
  /// The exit status of a rank as of a shell (128 + n for a signal), after it ended.
  int exit_status(int rank);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace muster::testing

/// Defines a body that runs in spawned processes: RANK_BODY(name) { ... ctx ... }.
#define RANK_BODY(name)                                               \
  static void rank_body_##name(::muster::testing::RankContext& ctx);  \
  static const bool rank_body_registered_##name =                     \
      ::muster::testing::register_rank_body(#name, rank_body_##name); \
  static void rank_body_##name([[maybe_unused]] ::muster::testing::RankContext& ctx)
