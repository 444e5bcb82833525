#pragma once
/// The agents of a drill's run beside the first: started when that one listens, replaced when they
/// are killed, ended when the job is over.
///
/// Stands for the scheduler of a cluster. Lives in the loop in which run_process() waits.

#include <sys/types.h>

#include <string>
#include <vector>

#include "core/base/result.h"
#include "launcher/agent/event_loop.h"
#include "launcher/agent/unique_fd.h"

namespace muster {

struct AgentPoolOptions {
  /// Of each agent; "{port}" in it stands for the port on which the first one listens.
  std::vector<std::string> command;
  std::vector<std::string> environment;
  std::string events_path;  ///< of the first agent, which tells the port there
  std::string output_base;  ///< takes the output of agent i in <base>.agent<i>.log
  int64_t count = 0;        ///< agents beside the first
  bool replaces = false;    ///< a new one for each that is killed
};

/// How it went.
struct AgentPoolFacts {
  int64_t started = 0;
  int64_t killed = 0;               ///< ended by SIGKILL, with no word of the job's end
  std::vector<int> other_failures;  ///< exit statuses but 0 of the rest
};

class AgentPool {
 public:
  explicit AgentPool(AgentPoolOptions options);
  /// Kills what is left.
  ~AgentPool();
  AgentPool(const AgentPool&) = delete;
  AgentPool& operator=(const AgentPool&) = delete;

  /// Watches the events and the agents in `loop`, which must live until finish(). @error kIo
  Result<void> attach(EventLoop& loop);
  /// The first agent has ended: waits for the others.
  /// @blocks at most 30 s; who is there then is killed and counts as a failure
  AgentPoolFacts finish();

 private:
  struct Agent {
    pid_t pid = 0;
    std::string events_path;
    UniqueFd pidfd;
  };
  void on_events();
  void start_one();
  void take_ends();

  AgentPoolOptions options_;
  EventLoop* loop_ = nullptr;
  UniqueFd changes_;
  size_t events_from_ = 0;  ///< what was in the file before belongs to an earlier job
  std::string port_;
  std::vector<Agent> agents_;
  AgentPoolFacts facts_;
  bool is_over_ = false;
};

}  // namespace muster
