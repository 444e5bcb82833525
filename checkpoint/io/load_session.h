#pragma once
/// One load of one rank: choose, compare, read, and once more from an older checkpoint if bytes
/// turn out to be damaged.
///
/// Rank 0 chooses and judges; the others follow, so that all ranks load the same checkpoint or
/// none.

#include <set>
#include <string>
#include <vector>

#include "checkpoint/io/checkpointer.h"
#include "checkpoint/io/discovery.h"
#include "checkpoint/io/meeting.h"
#include "checkpoint/io/reader.h"

namespace muster::checkpoint {

class LoadSession {
 public:
  LoadSession(const CheckpointerOptions& options, const LoadRequest& request, Meeting& meeting,
              std::set<std::string>& known_bad)
      : options_(options), request_(request), meeting_(meeting), known_bad_(known_bad) {}

  /// @collective all ranks
  Result<std::optional<LoadedState>> run();

 private:
  enum class Verdict { kGo, kNext };
  struct Choice {
    bool found = false;
    std::string path;
    std::string save_id;
  };

  Result<Choice> choose();
  Result<Choice> choose_as_leader();
  Result<void> no_candidate() const;
  Result<Verdict> compare(const Result<Checkpoint>& opened);
  Result<Verdict> read(const Checkpoint& checkpoint, LoadedState& state);
  Result<LoadedState> read_all(const Checkpoint& checkpoint);
  /// Reports to rank 0 and hears its verdict. `judge` runs on rank 0 with all reports.
  template <typename Judge>
  Result<Verdict> judge_together(const std::string& phase, const std::string& report, Judge judge);
  void pass_over(const std::string& reason);
  [[nodiscard]] std::string phase(const char* name) const;
  [[nodiscard]] bool is_leader() const { return options_.global_rank == 0; }

  const CheckpointerOptions& options_;
  const LoadRequest& request_;
  Meeting& meeting_;
  std::set<std::string>& known_bad_;

  bool listed_ = false;
  std::vector<Candidate> candidates_;  // rank 0 only
  size_t next_candidate_ = 0;          // rank 0 only
  int round_ = 0;
  Choice choice_;
  std::vector<Skipped> skipped_;
};

/// The digest of a slot's box, as ranks exchange it.
struct SlotDigest {
  std::string name;
  Box box;
  uint64_t sum = 0;
};

/// Why what all ranks hold together is not what was saved, or nullopt. Tensors that the slots do
/// not tile are left out: nobody holds them whole. Pure.
std::optional<std::string> digest_fault(const Manifest& manifest,
                                        const std::vector<SlotDigest>& digests);

}  // namespace muster::checkpoint
