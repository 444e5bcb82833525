#include "dist/store/file_store.h"

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "dist/net/sockets.h"
#include "dist/store/internal/key_table.h"
#include "dist/store/internal/messages.h"
#include "dist/store/internal/record_log.h"

namespace muster {

using internal::Record;
using internal::RecordLog;
using LockKind = internal::RecordLog::LockKind;

namespace {
// Other hosts' writes raise no notice on a network file system, so waits look by themselves too.
constexpr Duration kLookInterval = 50ms;
constexpr Duration kLookIntervalWithoutNotices = 5ms;

// Tells that a file has changed. Kernel limits may leave it without notices.
class ChangeNotice {
 public:
  explicit ChangeNotice(const std::string& path) : fd_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
    if (fd_ && ::inotify_add_watch(fd_.get(), path.c_str(), IN_MODIFY) < 0) fd_.reset();
  }

  // Returns after a change, after a while, at the deadline, or when cancelled.
  Result<void> wait(Deadline deadline, int cancel_fd) const {
    const Duration interval = fd_ ? kLookInterval : kLookIntervalWithoutNotices;
    const Deadline look = Deadline::after(std::min(interval, deadline.left()));
    MUSTER_TRY(net::poll_fd(fd_.get(), POLLIN, look, cancel_fd));
    std::array<char, 4096> events;
    while (fd_ && ::read(fd_.get(), events.data(), events.size()) > 0) {
    }
    return {};
  }

 private:
  net::UniqueFd fd_;
};
}  // namespace

class FileStore::Impl {
 public:
  Impl(net::WakeUp cancel_signal, std::unique_ptr<RecordLog> log)
      : cancel_signal_(std::move(cancel_signal)), log_(std::move(log)) {}

  // Runs `body` on the table as it is in the file now, with the file locked.
  template <typename Body>
  auto with_table(std::string_view operation, LockKind kind, const Body& body) -> decltype(body()) {
    const std::lock_guard lock(mutex_);
    if (cancelled_) return internal::cancelled(operation, describe());
    auto held = log_->lock(kind);
    if (!held.ok()) return explain(operation, std::move(held.error()));
    auto current = log_->catch_up(kind, [&](const Record& record) { apply(record); });
    if (!current.ok()) return explain(operation, std::move(current.error()));
    auto outcome = body();
    if (!outcome.ok()) return explain(operation, std::move(outcome.error()));
    return outcome;
  }

  // Inside with_table(): writes a record to the file, then to the table.
  Result<void> write(const Record& record) {
    MUSTER_TRY(log_->append(record));
    apply(record);
    return {};
  }

  Result<void> wait(std::string_view operation, const std::vector<std::string>& keys,
                    Deadline deadline);

  void cancel() {
    cancelled_ = true;
    cancel_signal_.raise();
  }

  [[nodiscard]] internal::KeyTable& table() { return table_; }
  [[nodiscard]] std::string describe() const { return "file " + log_->path(); }

 private:
  void apply(const Record& record);

  [[nodiscard]] Error explain(std::string_view operation, Error error) const {
    if (cancelled_) return internal::cancelled(operation, describe());
    return std::move(error.add_context("during " + std::string(operation)));
  }

  const net::WakeUp cancel_signal_;
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;  // guards the two below
  const std::unique_ptr<RecordLog> log_;
  internal::KeyTable table_;
};

void FileStore::Impl::apply(const Record& record) {
  switch (record.kind) {
    case Record::Kind::kSet:
      table_.set(record.key, record.value);
      break;
    case Record::Kind::kRemove:
      table_.remove(record.key);
      break;
    case Record::Kind::kAppend:
      // The writer has checked the length against the same table.
      table_.append(record.key, record.value).value();
      break;
  }
}

Result<void> FileStore::Impl::wait(std::string_view operation, const std::vector<std::string>& keys,
                                   Deadline deadline) {
  const TimePoint start = real_clock().now();
  const auto find_missing = [&]() -> Result<std::vector<std::string>> {
    return table_.missing(keys);
  };
  std::vector<std::string> missing =
      MUSTER_TRY(with_table(operation, LockKind::kShared, find_missing));
  if (missing.empty()) return {};
  const ChangeNotice notice(log_->path());
  while (true) {
    missing = MUSTER_TRY(with_table(operation, LockKind::kShared, find_missing));
    if (missing.empty()) return {};
    if (deadline.passed()) {
      return internal::missing_keys(operation, describe(), missing, real_clock().now() - start);
    }
    MUSTER_TRY(notice.wait(deadline, cancel_signal_.fd()));
  }
}

Result<std::unique_ptr<FileStore>> FileStore::open(FileStoreOptions options) {
  net::WakeUp cancel_signal = MUSTER_TRY(net::WakeUp::open());
  auto log = MUSTER_TRY(RecordLog::open({.path = std::move(options.path),
                                         .run_id = std::move(options.run_id),
                                         .generation = options.generation,
                                         .lock_limit = options.lock_limit},
                                        cancel_signal.fd()));
  return std::unique_ptr<FileStore>(
      new FileStore(std::make_unique<Impl>(std::move(cancel_signal), std::move(log))));
}

FileStore::FileStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FileStore::~FileStore() = default;

Result<void> FileStore::set(std::string_view key, std::string_view value) {
  MUSTER_TRY(internal::check_entry("set", key, value));
  return impl_->with_table("set", LockKind::kExclusive, [&] {
    return impl_->write({Record::Kind::kSet, key, value});
  });
}

Result<std::string> FileStore::get(std::string_view key, Deadline deadline) {
  MUSTER_TRY(internal::check_key("get", key));
  while (true) {
    MUSTER_TRY(impl_->wait("get", {std::string(key)}, deadline));
    std::optional<std::string> value = MUSTER_TRY(try_get(key));
    if (value) return *std::move(value);  // else it was removed in between: wait again
  }
}

Result<std::optional<std::string>> FileStore::try_get(std::string_view key) {
  MUSTER_TRY(internal::check_key("try_get", key));
  using Value = std::optional<std::string>;
  return impl_->with_table("try_get", LockKind::kShared, [&]() -> Result<Value> {
    const internal::SharedBytes value = impl_->table().find(key);
    return value ? Value(value->bytes()) : Value();
  });
}

Result<int64_t> FileStore::add(std::string_view key, int64_t delta) {
  MUSTER_TRY(internal::check_key("add", key));
  return impl_->with_table("add", LockKind::kExclusive, [&]() -> Result<int64_t> {
    const int64_t sum = MUSTER_TRY(impl_->table().sum(key, delta));
    MUSTER_TRY(impl_->write({Record::Kind::kSet, key, std::to_string(sum)}));
    return sum;
  });
}

Result<std::string> FileStore::compare_set(std::string_view key, std::string_view expected,
                                           std::string_view desired) {
  MUSTER_TRY(internal::check_entry("compare_set", key, expected));
  MUSTER_TRY(internal::check_entry("compare_set", key, desired));
  return impl_->with_table("compare_set", LockKind::kExclusive, [&]() -> Result<std::string> {
    if (impl_->table().matches(key, expected)) {
      MUSTER_TRY(impl_->write({Record::Kind::kSet, key, desired}));
    }
    const internal::SharedBytes stored = impl_->table().find(key);
    return stored ? stored->bytes() : std::string();
  });
}

Result<void> FileStore::wait(const std::vector<std::string>& keys, Deadline deadline) {
  MUSTER_TRY(internal::check_keys("wait", keys));
  return impl_->wait("wait", keys, deadline);
}

Result<bool> FileStore::check(const std::vector<std::string>& keys) {
  MUSTER_TRY(internal::check_keys("check", keys));
  return impl_->with_table("check", LockKind::kShared,
                           [&]() -> Result<bool> { return impl_->table().missing(keys).empty(); });
}

Result<bool> FileStore::remove(std::string_view key) {
  MUSTER_TRY(internal::check_key("remove", key));
  return impl_->with_table("remove", LockKind::kExclusive, [&]() -> Result<bool> {
    if (!impl_->table().contains(key)) return false;
    MUSTER_TRY(impl_->write({Record::Kind::kRemove, key, {}}));
    return true;
  });
}

Result<void> FileStore::append(std::string_view key, std::string_view value) {
  MUSTER_TRY(internal::check_entry("append", key, value));
  return impl_->with_table("append", LockKind::kExclusive, [&]() -> Result<void> {
    if (const internal::SharedBytes before = impl_->table().find(key)) {
      MUSTER_TRY(internal::check_grown_value(key, std::ssize(before->bytes()) + std::ssize(value)));
    }
    return impl_->write({Record::Kind::kAppend, key, value});
  });
}

Result<int64_t> FileStore::num_keys() {
  return impl_->with_table("num_keys", LockKind::kShared,
                           [&]() -> Result<int64_t> { return impl_->table().num_keys(); });
}

Result<std::vector<std::string>> FileStore::list_keys() {
  using Keys = std::vector<std::string>;
  return impl_->with_table("list_keys", LockKind::kShared,
                           [&]() -> Result<Keys> { return impl_->table().list_keys(); });
}

void FileStore::cancel() { impl_->cancel(); }

std::string FileStore::describe() const { return impl_->describe(); }

}  // namespace muster
