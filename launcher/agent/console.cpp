#include "launcher/agent/console.h"

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace muster {
namespace {
// poll(2) promises room for this much in a pipe, so such a write does not block.
constexpr size_t kPieceNbytes = PIPE_BUF;
}  // namespace

Console::Console(EventLoop& loop, int fd) : loop_(loop), fd_(fd) {
  // An error is told also while nothing is asked for, and again and again.
  pollable_ = loop_.add(fd_, 0, [this](uint32_t events) {
    const bool was_full = is_full();
    if ((events & (EPOLLERR | EPOLLHUP)) != 0) close();
    push();
    if (was_full && !is_full() && on_drained_) on_drained_();
  });
}

Console::~Console() { loop_.remove(fd_); }

void Console::write_raw(std::string_view bytes) {
  if (closed_) return;
  buffer_.append(bytes);
  if (!armed_) push();
}

void Console::write_piece(int owner, std::string_view prefix, std::string_view piece) {
  if (closed_) return;
  if (open_owner_ >= 0 && open_owner_ != owner) buffer_ += '\n';
  if (open_owner_ != owner) buffer_.append(prefix);
  buffer_.append(piece);
  open_owner_ = piece.ends_with('\n') || piece.ends_with('\r') ? -1 : owner;
  if (!armed_) push();
}

// False when nothing more can be written now.
bool Console::write_some() {
  pollfd room{.fd = fd_, .events = POLLOUT, .revents = 0};
  if (pollable_ && ::poll(&room, 1, 0) == 0) return false;
  const size_t left = buffer_.size() - written_;
  const ssize_t n =
      ::write(fd_, buffer_.data() + written_, pollable_ ? std::min(left, kPieceNbytes) : left);
  if (n >= 0) {
    written_ += static_cast<size_t>(n);
    return true;
  }
  if (errno == EINTR) return true;
  if (errno == EAGAIN) return false;
  close();  // nobody reads any more (EPIPE), or the disk behind it is full
  return true;
}

// The job goes on without it.
void Console::close() {
  closed_ = true;
  written_ = buffer_.size();
  loop_.remove(fd_);
  pollable_ = armed_ = false;
}

void Console::push() {
  bool more = true;
  while (more && written_ < buffer_.size()) more = write_some();
  if (written_ == buffer_.size()) {
    buffer_.clear();
    written_ = 0;
  } else if (written_ > kHighWater) {
    buffer_.erase(0, written_);
    written_ = 0;
  }
  const bool wanted = pollable_ && !buffer_.empty();
  if (wanted != armed_) {
    armed_ = wanted;
    loop_.modify(fd_, wanted ? static_cast<uint32_t>(EPOLLOUT) : 0U);
  }
}

void Console::flush(Deadline deadline) {
  while (!closed_ && written_ < buffer_.size()) {
    pollfd room{.fd = fd_, .events = POLLOUT, .revents = 0};
    if (::poll(&room, 1, deadline.poll_ms()) == 0) return;
    if (!write_some() && deadline.passed()) return;
  }
}

}  // namespace muster
