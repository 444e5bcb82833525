#include "launcher/agent/log_pump.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/log.h"

namespace muster {
namespace {
constexpr size_t kReadNbytes = size_t{64} << 10;
constexpr int kPipeNbytes = 256 << 10;
// A prefixed line longer than this goes out in pieces.
constexpr size_t kLineNbytes = size_t{64} << 10;

// The length of the first line in `text` with its end ("\n", "\r" or "\r\n"), 0 when it is open. A
// "\r" at the very end may be half of "\r\n".
size_t line_length(std::string_view text) {
  const size_t end = text.find_first_of("\r\n");
  if (end == std::string_view::npos) return 0;
  if (text[end] == '\n') return end + 1;
  if (end + 1 == text.size()) return 0;
  return text[end + 1] == '\n' ? end + 2 : end + 1;
}
}  // namespace

struct LogPump::Stream {
  int owner = 0;
  UniqueFd read_end;
  UniqueFd write_end;
  UniqueFd file;
  std::string file_path;
  Console* console = nullptr;
  StreamPlan::ToConsole to_console = StreamPlan::ToConsole::kNo;
  std::string prefix;
  std::string open_line;
  Tail tail;
};

void Tail::append(std::string_view bytes) {
  if (bytes.size() >= kNbytes) {
    bytes_ = bytes.substr(bytes.size() - kNbytes);
    return;
  }
  bytes_.append(bytes);
  if (bytes_.size() > 2 * kNbytes) bytes_.erase(0, bytes_.size() - kNbytes);
}

std::vector<std::string> Tail::last_lines(size_t count) const {
  std::string_view text = bytes_;
  if (text.ends_with('\n')) text.remove_suffix(1);
  std::vector<std::string> lines;
  while (!text.empty() && lines.size() < count) {
    const size_t at = text.rfind('\n');
    if (at == std::string_view::npos) {
      lines.emplace_back(text);
      break;
    }
    lines.emplace_back(text.substr(at + 1));
    text.remove_suffix(text.size() - at);
  }
  return {lines.rbegin(), lines.rend()};
}

LogPump::LogPump(EventLoop& loop, std::array<Console*, 2> consoles)
    : loop_(loop), consoles_(consoles) {}

LogPump::~LogPump() {
  for (const auto& stream : streams_) loop_.remove(stream->read_end.get());
}

Result<std::unique_ptr<LogPump>> LogPump::open(EventLoop& loop, std::array<Console*, 2> consoles,
                                               const std::vector<RankPlan>& plans) {
  std::unique_ptr<LogPump> pump(new LogPump(loop, consoles));
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    for (size_t stream = 0; stream < 2; ++stream) {
      MUSTER_TRY(pump->add_stream(static_cast<int>(2 * rank + stream), static_cast<int>(stream),
                                  plans[rank][stream]));
    }
  }
  return pump;
}

Result<void> LogPump::add_stream(int owner, int stream, const StreamPlan& plan) {
  auto added = std::make_unique<Stream>();
  added->owner = owner;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return make_error(ErrorCode::kIo, "log of local rank {}: pipe: {}", owner / 2,
                      errno_text(errno));
  }
  added->read_end.reset(ends[0]);
  added->write_end.reset(ends[1]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  ::fcntl(ends[0], F_SETPIPE_SZ, kPipeNbytes);  // may be refused; the default works too
  if (!plan.file.empty()) {
    added->file_path = plan.file;
    added->file.reset(::open(plan.file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!added->file.is_open()) {
      return make_error(ErrorCode::kIo, "log file {}: {}", plan.file, errno_text(errno));
    }
  }
  added->to_console = plan.to_console;
  if (plan.to_console != StreamPlan::ToConsole::kNo) added->console = consoles_[stream];
  added->prefix = plan.prefix;
  Stream* const raw = added.get();
  loop_.add(ends[0], EPOLLIN, [this, raw](uint32_t) { read_once(*raw); });
  streams_.push_back(std::move(added));
  return {};
}

int LogPump::worker_fd(int local_rank, int stream) const {
  return streams_[static_cast<size_t>(2 * local_rank + stream)]->write_end.get();
}

void LogPump::close_worker_ends() {
  for (const auto& stream : streams_) stream->write_end.reset();
}

// Reads one buffer; false when there is nothing more now, or never will be.
bool LogPump::read_once(Stream& stream) {
  if (!stream.read_end.is_open()) return false;
  thread_local std::array<char, kReadNbytes> buffer;
  const ssize_t n = ::read(stream.read_end.get(), buffer.data(), buffer.size());
  if (n < 0) return errno == EINTR;
  if (n == 0) {
    end_stream(stream);
    return false;
  }
  const std::string_view bytes(buffer.data(), static_cast<size_t>(n));
  stream.tail.append(bytes);
  to_file(stream, bytes);
  if (stream.console != nullptr) {
    to_console(stream, bytes);
    if (stream.console->is_full()) loop_.modify(stream.read_end.get(), 0);
  }
  return true;
}

void LogPump::to_file(Stream& stream, std::string_view bytes) {
  while (stream.file.is_open() && !bytes.empty()) {
    const ssize_t n = ::write(stream.file.get(), bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno != EINTR) {
      if (first_error_.empty()) {
        first_error_ = fmt::format("log file {}: {}", stream.file_path, errno_text(errno));
        MUSTER_LOG(kError, "{}; the job goes on without it", first_error_);
      }
      lost_nbytes_ += static_cast<int64_t>(bytes.size());
      return;
    }
  }
}

void LogPump::to_console(Stream& stream, std::string_view bytes) {
  if (stream.to_console == StreamPlan::ToConsole::kRaw) {
    stream.console->write_raw(bytes);
    return;
  }
  stream.open_line.append(bytes);
  std::string_view rest = stream.open_line;
  while (const size_t length = line_length(rest)) {
    stream.console->write_piece(stream.owner, stream.prefix, rest.substr(0, length));
    rest.remove_prefix(length);
  }
  if (rest.size() > kLineNbytes) {
    stream.console->write_piece(stream.owner, stream.prefix, rest);
    rest = {};
  }
  stream.open_line.erase(0, stream.open_line.size() - rest.size());
}

void LogPump::end_stream(Stream& stream) {
  if (stream.console != nullptr && !stream.open_line.empty()) {
    stream.console->write_piece(stream.owner, stream.prefix, stream.open_line);
    stream.open_line.clear();
  }
  loop_.remove(stream.read_end.get());
  stream.read_end.reset();
  stream.file.reset();
}

void LogPump::drain() {
  close_worker_ends();
  for (const auto& stream : streams_) {
    while (read_once(*stream)) {
    }
    if (stream->read_end.is_open()) end_stream(*stream);
  }
}

void LogPump::resume() {
  for (const auto& stream : streams_) {
    if (stream->read_end.is_open()) loop_.modify(stream->read_end.get(), EPOLLIN);
  }
}

std::vector<std::string> LogPump::last_lines(int local_rank, int stream, size_t count) const {
  return streams_[static_cast<size_t>(2 * local_rank + stream)]->tail.last_lines(count);
}

}  // namespace muster
