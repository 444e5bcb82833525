#pragma once
/// Ranks agree on each operation through a Store, before any of them begins it.
///
/// For transports whose messages cannot carry the contract. Each member writes what it launched as
/// its n-th operation, reads what the others wrote, and goes on only if all wrote the same. Members
/// walk in step, so two keys a member are enough; who gives up writes why into every place that
/// somebody may be waiting for. No tensor travels here.

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "dist/group/written_descriptor.h"
#include "dist/store/store.h"

namespace muster {

/// A rank that takes part, as messages name it.
struct AgreementMember {
  int group_rank = 0;
  int global_rank = 0;
};

class StoreAgreement {
 public:
  struct Options {
    std::shared_ptr<Store> store;  ///< holds keys of this agreement only
    std::string group_name;
    int group_size = 1;                    ///< for messages; members may be fewer
    std::vector<AgreementMember> members;  ///< the same on all
    int own = 0;                           ///< this rank's place in `members`
  };
  explicit StoreAgreement(Options options) : options_(std::move(options)) {}

  /// Writes this member's next operation and returns once all have written the same. `pieces`, by
  /// member, are what an all_to_all gives to each and expects of each; else empty.
  /// @blocks @thread one at a time
  /// @error kTimeout naming who has not come: call again with the same operation;
  ///        kMismatch with both call sites; kAborted, kPeerLost, ... why a member gave up
  Result<void> agree(const WorkDescriptor& what, const std::vector<PieceSizes>& pieces,
                     Deadline deadline);
  /// Group ranks that the operation in agree() waits for; asks the store. @thread any
  [[nodiscard]] std::vector<int> late_ranks();
  /// The same for people: a line each, with the last operation that a rank came to.
  [[nodiscard]] std::string describe_late();

  /// Ends the pending and all later agreements of every member; the first failure counts. Others
  /// read of it in the place where they wait, or at their next operation. @thread any
  void fail(const Error& error);
  /// What another member wrote when it gave up, if it did so after the last agreement: for who
  /// waits elsewhere than in agree().
  [[nodiscard]] std::optional<Error> notice();
  /// Says that this member leaves; who would wait for it gets kPeerLost. The last one removes what
  /// is left of the keys. @thread not beside agree()
  void close();

 private:
  [[nodiscard]] std::string name_of(int member) const;
  Result<bool> wait_and_compare(uint64_t sequence, Deadline look);
  [[nodiscard]] std::optional<Error> compare(
      const std::vector<std::optional<std::string>>& values) const;
  [[nodiscard]] Error read_notice(const std::string& value) const;
  Result<void> fail_here(Error error);
  Result<void> post(uint64_t sequence, int member, const std::string& value);

  const Options options_;
  std::mutex mutex_;
  uint64_t sequence_ = 0;         // guarded by mutex_; of the last operation that was begun
  bool is_pending_ = false;       // guarded by mutex_; it is not agreed on yet
  bool is_closed_ = false;        // guarded by mutex_
  std::optional<Error> failure_;  // guarded by mutex_
};

}  // namespace muster
