#pragma once
/// The file of a file store: a header that says whose it is, and a log of records.
///
/// Writers append under an exclusive lock, so a record that is not complete belongs to a writer
/// that died: readers ignore it and the next writer cuts it off. Not thread-safe: its owner
/// serialises.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "core/base/time.h"
#include "dist/net/sockets.h"

namespace muster::internal {

/// One change of one key.
struct Record {
  enum class Kind : uint8_t { kSet = 1, kRemove = 2, kAppend = 3 };
  Kind kind;
  std::string_view key;
  std::string_view value;
};

std::string encode_record(const Record& record);

/// What the bytes after a known good position hold.
struct ParsedRecords {
  int64_t good_nbytes = 0;  ///< complete records
  bool is_damaged = false;  ///< what follows them is no torn tail but damage
};
/// Calls `apply` for each complete record at the start of `bytes`. Pure but for `apply`.
ParsedRecords parse_records(std::string_view bytes,
                            const std::function<void(const Record&)>& apply);

class RecordLog {
 public:
  struct Options {
    std::string path;
    std::string run_id;
    int64_t generation = 0;
    Duration lock_limit{};
  };

  /// Opens or creates the file and makes it this run's and generation's.
  static Result<std::unique_ptr<RecordLog>> open(Options options, int cancel_fd);

  enum class LockKind { kShared, kExclusive };
  /// The file's lock; gone with the object.
  class Lock {
   public:
    explicit Lock(int fd) : fd_(fd) {}
    Lock(Lock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Lock& operator=(Lock&&) = delete;
    ~Lock();

   private:
    int fd_;
  };
  /// @error kTimeout after lock_limit; kAborted when `cancel_fd` becomes readable
  Result<Lock> lock(LockKind kind);

  /// Applies what was written since the last call. With an exclusive lock, cuts off a torn tail.
  /// @error kAborted the file belongs to somebody else now; kCorruption, kIo
  Result<void> catch_up(LockKind held, const std::function<void(const Record&)>& apply);

  /// Writes one record at the end. Needs the exclusive lock and catch_up() under it.
  /// @error kIo nothing is written
  Result<void> append(const Record& record);

  [[nodiscard]] const std::string& path() const noexcept { return options_.path; }

 private:
  RecordLog(Options options, net::UniqueFd fd, int cancel_fd);

  Result<void> claim();
  Result<void> start_afresh();
  Result<std::string> read_all(int64_t from, int64_t to) const;
  Result<int64_t> file_nbytes() const;

  const Options options_;
  const std::string header_;
  net::UniqueFd fd_;
  const int cancel_fd_;
  int64_t end_ = 0;  // of the last record that was applied
};

}  // namespace muster::internal
