#pragma once
/// The agent that obeys: of every node but the host's.
///
/// It starts and stops its workers when the host of the rendezvous says so, and tells it at once
/// what becomes of them. Without the host it ends.

#include <memory>
#include <string>

#include "launcher/agent/local_node.h"
#include "launcher/rendezvous/member.h"

namespace muster {

class MemberAgent {
 public:
  /// The node outlives the agent; `link` leads to the host at `host`, which only messages name.
  MemberAgent(LocalNode& node, std::unique_ptr<Link> link, std::string host);
  ~MemberAgent();
  MemberAgent(const MemberAgent&) = delete;
  MemberAgent& operator=(const MemberAgent&) = delete;

  /// Takes part in the job; returns the exit status of this node.
  /// @blocks until the job has ended and no descendant of this process is left
  int run();

 private:
  void take_events();
  void tell_exit(const RankExit& exit);
  void obey(const message::Start& start);
  void obey(const message::Stop& stop);
  int obey(const message::End& end);
  int leave(int signal);
  int fail(const Error& error);
  void close_link();

  LocalNode& node_;
  std::unique_ptr<Link> link_;
  const std::string host_;
  Member member_;
  UniqueFd beats_;
  TimePoint began_at_;
  TimePoint tell_at_;  ///< when waiting for the host is worth a line
};

}  // namespace muster
