#include "dist/store/internal/record_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "core/base/hash.h"
#include "dist/store/internal/messages.h"
#include "dist/store/internal/wire.h"
#include "dist/store/store.h"

namespace muster::internal {
namespace {
constexpr std::string_view kMagic = "MUSTERF1";
constexpr int64_t kMaxRunIdNbytes = 1024;
constexpr int64_t kRecordHeadNbytes = 8;  // u32 length of the body, u32 checksum of it
constexpr int64_t kMinBodyNbytes = 5;     // u8 kind, u32 length of the key
constexpr int64_t kMaxBodyNbytes = kMinBodyNbytes + Store::kMaxKeyNbytes + Store::kMaxValueNbytes;
constexpr int kLockSpins = 64;

// Bytes of the file that stand for the two locks; what lies there does not matter.
constexpr off_t kOperationLockAt = 0;
constexpr off_t kInUseLockAt = 1;

// Locks of the open file description: two stores in one process exclude each other as well.
bool try_lock(int fd, short type, off_t at) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = at;
  lock.l_len = 1;
  return ::fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

struct Header {
  int64_t generation = 0;
  std::string run_id;
};

std::string encode_header(int64_t generation, std::string_view run_id) {
  WireWriter writer;
  writer.raw(kMagic).i64(generation).bytes(run_id);
  return std::move(writer.u64(hash_text(writer.text())).text());
}

// nullopt: not complete, or damaged.
std::optional<Header> decode_header(std::string_view bytes) {
  WireReader reader(bytes);
  reader.raw(kMagic.size());
  Header header;
  header.generation = reader.i64();
  header.run_id = reader.bytes(kMaxRunIdNbytes);
  const size_t hashed = reader.consumed();
  const uint64_t checksum = reader.u64();
  if (!reader.ok() || checksum != hash_text(bytes.substr(0, hashed))) return std::nullopt;
  return header;
}

uint32_t checksum32(std::string_view body) { return static_cast<uint32_t>(hash_text(body)); }

Error io_error(std::string_view what, const std::string& path) {
  return make_error(ErrorCode::kIo, "file store: {} {}: {}", what, path, errno_text(errno));
}
}  // namespace

std::string encode_record(const Record& record) {
  WireWriter body;
  body.u8(static_cast<uint8_t>(record.kind));
  body.u32(static_cast<uint32_t>(record.key.size())).raw(record.key).raw(record.value);
  WireWriter whole;
  whole.u32(static_cast<uint32_t>(body.text().size())).u32(checksum32(body.text()));
  return std::move(whole.raw(body.text()).text());
}

ParsedRecords parse_records(std::string_view bytes,
                            const std::function<void(const Record&)>& apply) {
  ParsedRecords parsed;
  while (true) {
    const std::string_view rest = bytes.substr(static_cast<size_t>(parsed.good_nbytes));
    WireReader head(rest);
    const int64_t body_nbytes = head.u32();
    const uint32_t checksum = head.u32();
    if (!head.ok()) return parsed;
    if (body_nbytes < kMinBodyNbytes || body_nbytes > kMaxBodyNbytes) {
      // A file system may leave zeros where a write did not reach the disk.
      parsed.is_damaged = rest.find_first_not_of('\0') != std::string_view::npos;
      return parsed;
    }
    const std::string_view body = head.raw(static_cast<size_t>(body_nbytes));
    if (!head.ok()) return parsed;
    WireReader fields(body);
    const uint8_t kind = fields.u8();
    const uint32_t key_nbytes = fields.u32();
    const std::string_view key = fields.raw(key_nbytes);
    if (checksum != checksum32(body) || !fields.ok() || kind < 1 || kind > 3) {
      parsed.is_damaged = rest.size() > head.consumed();  // at the very end it is a torn tail
      return parsed;
    }
    apply({static_cast<Record::Kind>(kind), key, body.substr(fields.consumed())});
    parsed.good_nbytes += static_cast<int64_t>(head.consumed());
  }
}

RecordLog::Lock::~Lock() {
  if (fd_ >= 0) try_lock(fd_, F_UNLCK, kOperationLockAt);
}

RecordLog::RecordLog(Options options, net::UniqueFd fd, int cancel_fd)
    : options_(std::move(options)),
      header_(encode_header(options_.generation, options_.run_id)),
      fd_(std::move(fd)),
      cancel_fd_(cancel_fd) {}

Result<std::unique_ptr<RecordLog>> RecordLog::open(Options options, int cancel_fd) {
  if (std::ssize(options.run_id) > kMaxRunIdNbytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "file store: run_id has at most {} bytes; got {}", kMaxRunIdNbytes,
                      options.run_id.size());
  }
  net::UniqueFd fd(::open(options.path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd) return io_error("open", options.path);
  std::unique_ptr<RecordLog> log(new RecordLog(std::move(options), std::move(fd), cancel_fd));
  const Lock held = MUSTER_TRY(log->lock(LockKind::kExclusive));
  MUSTER_TRY(log->claim());
  if (!try_lock(log->fd_.get(), F_RDLCK, kInUseLockAt)) return io_error("lock", log->path());
  log->end_ = std::ssize(log->header_);
  return log;
}

// Decides, under the exclusive lock, whether the file is joined, taken over or left alone.
Result<void> RecordLog::claim() {
  const int64_t nbytes = MUSTER_TRY(file_nbytes());
  const int64_t max_header = std::ssize(encode_header(0, "")) + kMaxRunIdNbytes;
  const std::string start = MUSTER_TRY(read_all(0, std::min(nbytes, max_header)));
  const std::string_view magic = std::string_view(start).substr(0, kMagic.size());
  if (!kMagic.starts_with(magic)) {
    return make_error(ErrorCode::kCorruption,
                      "file store: {} must be a store file or not exist; it starts with {}", path(),
                      quote_key(magic));
  }
  const std::optional<Header> header = decode_header(start);
  // Its creator died before the header was whole: nothing can follow it yet.
  if (!header && nbytes <= max_header) return start_afresh();
  if (!header) {
    return make_error(ErrorCode::kCorruption, "file store: the header of {} is damaged", path());
  }
  if (header->run_id == options_.run_id) {
    if (header->generation == options_.generation) return {};
    if (header->generation < options_.generation) return start_afresh();
    return make_error(ErrorCode::kFailedPrecondition,
                      "file store: {} must not be of a later generation; it has {}, this is {}",
                      path(), header->generation, options_.generation);
  }
  if (try_lock(fd_.get(), F_WRLCK, kInUseLockAt)) return start_afresh();
  return make_error(ErrorCode::kFailedPrecondition,
                    "file store: {} must not be in use by another run; run \"{}\" uses it, this is "
                    "run \"{}\"",
                    path(), header->run_id, options_.run_id);
}

Result<void> RecordLog::start_afresh() {
  if (::ftruncate(fd_.get(), 0) != 0) return io_error("truncate", path());
  if (::pwrite(fd_.get(), header_.data(), header_.size(), 0) != std::ssize(header_)) {
    return io_error("write the header of", path());
  }
  return {};
}

Result<RecordLog::Lock> RecordLog::lock(LockKind kind) {
  const short type = kind == LockKind::kExclusive ? F_WRLCK : F_RDLCK;
  const Deadline deadline = Deadline::after(options_.lock_limit);
  for (int tries = 1; !try_lock(fd_.get(), type, kOperationLockAt); ++tries) {
    if (errno != EAGAIN && errno != EACCES && errno != EINTR) return io_error("lock", path());
    // Only a waiting fcntl would queue, and it knows no deadline: its holder may be stopped.
    if (tries <= kLockSpins) {
      ::sched_yield();
      continue;
    }
    if (deadline.passed()) {
      return make_error(ErrorCode::kTimeout, "file store: the lock of {} must be free within {}",
                        path(), format_duration(options_.lock_limit));
    }
    const auto outcome = MUSTER_TRY(net::poll_fd(-1, 0, Deadline::after(1ms), cancel_fd_));
    if (outcome == net::PollOutcome::kCancelled) {
      return make_error(ErrorCode::kAborted, "file store: cancelled while {} was locked", path());
    }
  }
  return Lock(fd_.get());
}

Result<int64_t> RecordLog::file_nbytes() const {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) return io_error("stat", path());
  if (info.st_nlink == 0) {
    return make_error(ErrorCode::kAborted, "file store: {} must exist; it was removed", path());
  }
  return static_cast<int64_t>(info.st_size);
}

Result<std::string> RecordLog::read_all(int64_t from, int64_t to) const {
  std::string bytes(static_cast<size_t>(std::max<int64_t>(to - from, 0)), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::pread(fd_.get(), bytes.data() + done, bytes.size() - done,
                                  static_cast<off_t>(from) + static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return io_error("read", path());
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  bytes.resize(done);
  return bytes;
}

Result<void> RecordLog::catch_up(LockKind held, const std::function<void(const Record&)>& apply) {
  const int64_t nbytes = MUSTER_TRY(file_nbytes());
  if (MUSTER_TRY(read_all(0, std::ssize(header_))) != header_) {
    return make_error(ErrorCode::kAborted,
                      "file store: {} must belong to run \"{}\", generation {}; another run or a "
                      "later generation has taken it over",
                      path(), options_.run_id, options_.generation);
  }
  if (nbytes == end_) return {};
  const std::string bytes = MUSTER_TRY(read_all(end_, nbytes));
  const ParsedRecords parsed = parse_records(bytes, apply);
  end_ += parsed.good_nbytes;
  if (parsed.is_damaged || nbytes < end_) {
    return make_error(ErrorCode::kCorruption, "file store: {} is damaged at byte {} of {}", path(),
                      end_, nbytes);
  }
  if (held == LockKind::kExclusive && end_ < nbytes && ::ftruncate(fd_.get(), end_) != 0) {
    return io_error("truncate", path());
  }
  return {};
}

Result<void> RecordLog::append(const Record& record) {
  const std::string bytes = encode_record(record);
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::pwrite(fd_.get(), bytes.data() + done, bytes.size() - done,
                                   static_cast<off_t>(end_) + static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const Error error = io_error("write", path());
      // If this fails too, the torn tail goes with the next write.
      [[maybe_unused]] const int ignored = ::ftruncate(fd_.get(), end_);
      return error;
    }
    done += static_cast<size_t>(count);
  }
  end_ += std::ssize(bytes);
  return {};
}

}  // namespace muster::internal
