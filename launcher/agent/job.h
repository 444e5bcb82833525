#pragma once
/// A job, as one of its nodes sees it: what to run how often, and running it.
///
/// run_job() makes the process tree launcher -> guardian -> agent -> workers and returns when
/// nothing of it is left. The caller decides what a command line or a recipe means; a JobSpec is
/// plain data. Not for embedding into a program with threads: it forks.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "launcher/rendezvous/decide.h"

namespace muster {

/// torchrun's selection of streams, for all ranks or by local rank: 0 none, 1 stdout, 2 stderr, 3
/// both.
struct StreamSelection {
  int all = 0;
  std::map<int, int> by_rank;  ///< when not empty: only these ranks, `all` does not count

  [[nodiscard]] bool selects(int local_rank, int stream) const;
  [[nodiscard]] bool empty() const;
};

/// What happens to the workers' output.
struct LogOptions {
  /// The folder for files; "" = a temporary one, kept only when something was written or failed.
  std::string dir;
  bool none = false;                           ///< no folder at all, as --log-dir /dev/null
  StreamSelection redirects;                   ///< to files only
  StreamSelection tee;                         ///< to files and, with a prefix, to the console
  std::optional<std::set<int>> console_ranks;  ///< local ranks shown; all without
  /// Of a line that was teed; ${role_name}, ${rank} and ${local_rank} are replaced.
  std::string prefix_template = "[${role_name}${local_rank}]:";
};

struct JobSpec {
  std::vector<std::string> command;  ///< of each worker; the first is looked up on PATH
  /// What is replaced in the arguments: nothing; ${local_rank} alone; all that torchrun replaces,
  /// which is string.Template and so makes "$" of "$$".
  enum class Substitution : uint8_t { kNone, kLocalRank, kTemplate };
  Substitution substitution = Substitution::kNone;
  std::string title;  ///< names the job in messages: "train.py"
  int local_world_size = 1;
  RestartPolicy policy;
  std::string run_id;  ///< "" = a fresh UUID
  std::string role = "default";
  std::string master_addr = "127.0.0.1";  ///< where the store of each generation listens
  int master_port = 0;                    ///< 0 = a free port, another one for each generation
  /// The workers are muster's own: the store wants the job token, and run_dir keeps the logs.
  bool is_recipe = false;
  std::string run_dir;  ///< of a recipe
  bool virtual_local_rank = false;
  LogOptions logs;
  std::string job;         ///< what all nodes must run alike, for messages: "runs train.py"
  std::string store_host;  ///< address on which the store listens, when it is not master_addr
  /// How several nodes find each other; policy.nodes says how many.
  struct Rendezvous {
    enum class Role : uint8_t { kAuto, kHost, kMember };
    std::string host;  ///< "" = one node, no rendezvous
    int port = 0;
    Role role = Role::kAuto;  ///< kAuto: who can listen at host:port hosts
    int node_rank = -1;       ///< -1 = any
    std::string id;           ///< "" = any job that is there
    std::string local_addr;   ///< what the host's store is reached by; "" = `host`
    std::string token;        ///< secret that the agents share
  } rendezvous;
  std::vector<int> stop_signals;  ///< stop the job; forwarded to the workers
  std::string signals_to_handle;  ///< the same as torchrun's text, for the workers
  /// Of machine-readable events; "" = agent_events.jsonl in the run folder of a recipe, else none.
  std::string events_path;
};

/// Runs the job to its end and returns the exit status for the launcher: 0, the error table's
/// status of the first failure, 128+n for a signal.
/// @blocks until the job has ended and no process of it is left
/// @thread the process must be single-threaded
/// @error  kNotFound, kInvalidArgument the program; kIo the folders or the event file: nothing was
///         started then
Result<int> run_job(const JobSpec& spec);

}  // namespace muster
