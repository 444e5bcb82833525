#include "dist/store/internal/out_queue.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "dist/store/internal/wire.h"

namespace muster::internal {
namespace {
constexpr size_t kMaxVectors = 32;
constexpr size_t kCopiedValueNbytes = 4096;  // below this, a copy is cheaper than a segment
}  // namespace

void OutQueue::add(std::string_view bytes) {
  if (bytes.empty()) return;
  if (segments_.empty() || segments_.back().value) segments_.emplace_back();
  segments_.back().own.append(bytes);
  own_nbytes_ += std::ssize(bytes);
  pending_nbytes_ += std::ssize(bytes);
}

void OutQueue::add_value(const SharedBytes& value) {
  const std::string& bytes = value->bytes();
  WireWriter length;
  add(length.u64(bytes.size()).text());
  if (bytes.size() <= kCopiedValueNbytes) return add(bytes);
  segments_.push_back({.own = {}, .value = value});
  pending_nbytes_ += std::ssize(bytes);
}

Result<void> OutQueue::flush(int fd) {
  while (!empty()) {
    std::array<iovec, kMaxVectors> vectors{};
    size_t count = 0;
    for (const Segment& segment : segments_) {
      if (count == kMaxVectors) break;
      const std::string_view bytes = segment.bytes().substr(count == 0 ? first_offset_ : 0);
      vectors[count++] = {const_cast<char*>(bytes.data()), bytes.size()};
    }
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = count;
    const ssize_t sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (sent < 0) return make_error(ErrorCode::kPeerLost, "send: {}", errno_text(errno));
    drop(static_cast<size_t>(sent));
  }
  return {};
}

void OutQueue::drop(size_t nbytes) {
  pending_nbytes_ -= static_cast<int64_t>(nbytes);
  while (nbytes > 0) {
    const size_t left = segments_.front().bytes().size() - first_offset_;
    const size_t taken = std::min(left, nbytes);
    nbytes -= taken;
    first_offset_ += taken;
    if (taken == left) {
      own_nbytes_ -= std::ssize(segments_.front().own);
      segments_.pop_front();
      first_offset_ = 0;
    }
  }
}

}  // namespace muster::internal
