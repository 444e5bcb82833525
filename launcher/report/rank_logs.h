#pragma once
/// Where the ranks of a run have left their output.
///
/// One node keeps logs/attempt_<n>/<local rank>; several nodes keep logs/NAME/attempt_<n>/<local
/// rank>, and the events of each node tell its first global rank. Reads only.

#include <cstdint>
#include <string>
#include <vector>

namespace muster {

/// The folder of one rank, which holds stdout.log and stderr.log.
struct RankLogs {
  int64_t attempt = 0;
  int64_t global_rank = 0;
  std::string folder;
};

/// Of the attempt that was written last, ascending by rank; empty when nothing is there.
/// `run_dir` is the run's folder; also its folder of logs itself, whose ranks then count from 0.
std::vector<RankLogs> find_rank_logs(const std::string& run_dir);

}  // namespace muster
