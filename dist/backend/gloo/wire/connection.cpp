#include "dist/backend/gloo/wire/connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace muster::wire {
namespace {
constexpr size_t kBufferNbytes = 64 << 10;
// A turn of reading or writing one connection; then the others have theirs.
constexpr int64_t kTurnNbytes = 4 << 20;

const std::array<char, 64 << 10> kZeros{};
}  // namespace

Connection::Connection(int peer, net::UniqueFd fd, EpollPlace place, FrameSink& sink)
    : peer_(peer), fd_(std::move(fd)), place_(place), sink_(sink), buffer_(kBufferNbytes) {}

void Connection::send(FrameHeader header, std::string payload) {
  header.nbytes = static_cast<int64_t>(payload.size());
  enqueue({header, std::move(payload), nullptr, 0});
}

void Connection::send(FrameHeader header, TransferPtr transfer) {
  header.nbytes = transfer->nbytes();
  enqueue({header, {}, std::move(transfer), 0});
}

void Connection::enqueue(Outgoing item) {
  std::vector<Sent> sent;
  {
    const std::lock_guard lock(out_mutex_);
    if (is_closed_) return;
    out_.push_back(std::move(item));
    if (out_.size() == 1) sent = flush_locked();
  }
  report(sent);
}

void Connection::on_writable() {
  std::vector<Sent> sent;
  {
    const std::lock_guard lock(out_mutex_);
    if (!is_closed_) sent = flush_locked();
  }
  report(sent);
}

void Connection::close() {
  const std::lock_guard lock(out_mutex_);
  is_closed_ = true;
  out_.clear();
  ::shutdown(fd_.get(), SHUT_RDWR);
}

void Connection::report(const std::vector<Sent>& sent) {
  for (const Sent& item : sent) sink_.on_sent(item.header, item.transfer);
}

std::vector<Connection::Sent> Connection::flush_locked() {
  std::vector<Sent> sent;
  int64_t turn = kTurnNbytes;
  while (!out_.empty() && turn > 0) {
    Outgoing& item = out_.front();
    const int64_t before = item.written;
    if (!write_some_locked(item)) break;
    turn -= item.written - before;
    if (item.written < static_cast<int64_t>(sizeof(FrameHeader)) + item.header.nbytes) continue;
    if (item.transfer) sent.push_back({item.header, item.transfer});
    out_.pop_front();
  }
  want_writable_locked(!out_.empty());
  return sent;
}

// False when the socket takes no more. That a connection broke is noticed by reading.
bool Connection::write_some_locked(Outgoing& item) {
  constexpr auto kHeader = static_cast<int64_t>(sizeof(FrameHeader));
  const auto write = [&](const std::byte* memory) {
    iovec parts[2];
    int count = 0;
    if (item.written < kHeader) {
      parts[count++] = {reinterpret_cast<char*>(&item.header) + item.written,
                        static_cast<size_t>(kHeader - item.written)};
    }
    const int64_t from = std::max<int64_t>(item.written - kHeader, 0);
    const int64_t left = item.header.nbytes - from;
    if (left > 0) {
      auto* at = const_cast<std::byte*>(memory) + from;
      const bool is_gone = memory == nullptr;
      parts[count++] = is_gone ? iovec{const_cast<char*>(kZeros.data()),
                                       std::min<size_t>(kZeros.size(), static_cast<size_t>(left))}
                               : iovec{at, static_cast<size_t>(std::min(left, kTurnNbytes))};
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<size_t>(count);
    return ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  };
  const ssize_t n = item.transfer ? item.transfer->with_memory(write)
                                  : write(reinterpret_cast<const std::byte*>(item.payload.data()));
  if (n >= 0) {
    item.written += n;
    return true;
  }
  if (errno == EINTR) return true;
  if (errno != EAGAIN && errno != EWOULDBLOCK) {
    is_closed_ = true;
    out_.clear();
  }
  return false;
}

Result<void> Connection::start() {
  const std::lock_guard lock(out_mutex_);
  epoll_event event{};
  event.events = EPOLLIN | (wants_writable_ ? static_cast<uint32_t>(EPOLLOUT) : 0U);
  event.data.u64 = place_.token;
  if (::epoll_ctl(place_.epoll_fd, EPOLL_CTL_ADD, fd_.get(), &event) != 0)
    return make_error(ErrorCode::kIo, "gloo: epoll: {}", errno_text(errno));
  is_started_ = true;
  return {};
}

void Connection::want_writable_locked(bool wanted) {
  if (wanted == wants_writable_) return;
  wants_writable_ = wanted;
  if (!is_started_) return;
  epoll_event event{};
  event.events = EPOLLIN | (wanted ? static_cast<uint32_t>(EPOLLOUT) : 0U);
  event.data.u64 = place_.token;
  ::epoll_ctl(place_.epoll_fd, EPOLL_CTL_MOD, fd_.get(), &event);
}

Result<void> Connection::on_readable() {
  int64_t turn = kTurnNbytes;
  while (true) {
    // What is in the buffer comes first: no event tells of it.
    if (begin_ < end_ && MUSTER_TRY(step())) continue;
    if (turn <= 0) return {};
    if (in_payload_ && target_) {
      const int64_t before = arrived_;
      if (!MUSTER_TRY(read_payload())) return {};
      turn -= arrived_ - before;
      if (arrived_ == header_.nbytes) finish_payload();
    } else {
      const size_t before = end_ - begin_;
      if (!MUSTER_TRY(fill())) return {};
      turn -= static_cast<int64_t>(end_ - begin_ - before);
    }
  }
}

// Reads into the buffer; false when nothing is there.
Result<bool> Connection::fill() {
  if (begin_ > 0) {
    std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_),
              buffer_.begin() + static_cast<std::ptrdiff_t>(end_), buffer_.begin());
    end_ -= begin_;
    begin_ = 0;
  }
  const ssize_t n = ::recv(fd_.get(), buffer_.data() + end_, buffer_.size() - end_, MSG_DONTWAIT);
  if (n > 0) {
    end_ += static_cast<size_t>(n);
    return true;
  }
  if (n == 0) return make_error(ErrorCode::kPeerLost, "it closed its connection");
  if (errno == EINTR) return true;
  if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
  return make_error(ErrorCode::kPeerLost, "its connection broke: {}", errno_text(errno));
}

// Takes one header or one piece of payload from the buffer; false when more must arrive first.
Result<bool> Connection::step() {
  if (!in_payload_) {
    if (end_ - begin_ < sizeof(FrameHeader)) return false;
    header_ = from_bytes<FrameHeader>(buffer_.data() + begin_);
    begin_ += sizeof(FrameHeader);
    if (const char* fault = fault_of(header_)) {
      return make_error(ErrorCode::kPeerLost, "it sent bytes that no peer sends: {}", fault);
    }
    arrived_ = 0;
    in_payload_ = true;
    target_ = header_.kind == FrameKind::kData ? sink_.find_receive(peer_, header_) : nullptr;
    if (!target_) {
      if (header_.nbytes > kMaxSmallNbytes) {
        return make_error(ErrorCode::kPeerLost, "it sent {} bytes that nobody was ready for",
                          header_.nbytes);
      }
      payload_.clear();
      payload_.reserve(static_cast<size_t>(header_.nbytes));
    } else if (target_->nbytes() != header_.nbytes) {
      return make_error(ErrorCode::kPeerLost, "it sent {} bytes where {} were expected",
                        header_.nbytes, target_->nbytes());
    }
  }
  const auto take =
      static_cast<size_t>(std::min(header_.nbytes - arrived_, static_cast<int64_t>(end_ - begin_)));
  const char* from = buffer_.data() + begin_;
  if (!target_) {
    payload_.append(from, take);
  } else if (take > 0) {
    target_->with_memory([&](std::byte* memory) {
      if (memory != nullptr) std::memcpy(memory + arrived_, from, take);
    });
  }
  begin_ += take;
  arrived_ += static_cast<int64_t>(take);
  if (arrived_ < header_.nbytes) return false;
  finish_payload();
  return true;
}

// Reads from the socket straight into the target; false when nothing is there.
Result<bool> Connection::read_payload() {
  const auto left = static_cast<size_t>(std::min(header_.nbytes - arrived_, kTurnNbytes));
  const ssize_t n = target_->with_memory([&](std::byte* memory) {
    return memory != nullptr
               ? ::recv(fd_.get(), memory + arrived_, left, MSG_DONTWAIT)
               : ::recv(fd_.get(), buffer_.data(), std::min(left, buffer_.size()), MSG_DONTWAIT);
  });
  if (n > 0) {
    arrived_ += n;
    return true;
  }
  if (n == 0) return make_error(ErrorCode::kPeerLost, "it closed its connection");
  if (errno == EINTR) return true;
  if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
  return make_error(ErrorCode::kPeerLost, "its connection broke: {}", errno_text(errno));
}

void Connection::finish_payload() {
  in_payload_ = false;
  if (const TransferPtr target = std::exchange(target_, nullptr)) {
    sink_.on_received(header_, target);
  } else {
    sink_.on_frame(peer_, header_, std::move(payload_));
    payload_ = {};
  }
}

}  // namespace muster::wire
