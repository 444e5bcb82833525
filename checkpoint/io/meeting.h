#pragma once
/// Where the ranks of one save or load meet: reports to rank 0, verdicts from rank 0.
///
/// A thin layer over the Store: each phase is used once, every wait has a deadline, and a time-out
/// names the ranks that did not come. A group of one rank needs no store.

#include <map>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/time.h"
#include "dist/store/store.h"

namespace muster::checkpoint {

class Meeting {
 public:
  struct Options {
    Store* store = nullptr;  ///< may be null for a world of 1
    std::string prefix;      ///< unique for this save or load
    int global_rank = 0;
    int world_size = 1;
  };
  explicit Meeting(Options options) : options_(std::move(options)) {}

  /// Leaves this rank's report of a phase for rank 0. Does not wait.
  Result<void> report(const std::string& phase, const std::string& text);

  /// The reports of all ranks, by rank. Only rank 0 calls it.
  /// @blocks until all have reported
  /// @error kTimeout names the ranks that have not
  Result<std::vector<std::string>> collect(const std::string& phase, Deadline deadline);

  /// Leaves rank 0's verdict for all. Only rank 0 calls it. Does not wait.
  Result<void> announce(const std::string& phase, const std::string& text);

  /// The verdict of rank 0. @blocks until it is there @error kTimeout
  Result<std::string> hear(const std::string& phase, Deadline deadline);

  /// Removes what this rank has left, once every other rank has surely read it.
  void clean_up();

  /// Bytes that this rank has sent.
  [[nodiscard]] int64_t sent_nbytes() const noexcept { return sent_nbytes_; }

 private:
  Result<void> put(const std::string& key, const std::string& text);
  Result<std::string> take(const std::string& key, Deadline deadline);
  [[nodiscard]] std::string report_key(const std::string& phase, int global_rank) const;
  [[nodiscard]] std::string verdict_key(const std::string& phase) const;

  Options options_;
  std::map<std::string, std::string> local_;  // stands in for the store in a world of 1
  std::vector<std::string> keys_;
  int64_t sent_nbytes_ = 0;
};

}  // namespace muster::checkpoint
