#include "dist/backend/gloo/gloo_context.h"

#include <gloo/common/error.h>
#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>

namespace muster::wire {
namespace {
using Milliseconds = std::chrono::milliseconds;

// Several sends and receives may be pending on one buffer; a wait consumes one that is done.
class Buffer final : public ::gloo::transport::UnboundBuffer {
 public:
  Buffer(Channel& channel, const std::vector<int>& global_ranks, void* memory, size_t nbytes)
      : UnboundBuffer(memory, nbytes), channel_(channel), global_ranks_(global_ranks) {}

  ~Buffer() override {
    for (const auto* list : {&sends_, &receives_}) {
      for (const TransferPtr& transfer : *list) transfer->cancel();
    }
  }

  bool waitRecv(int* source, Milliseconds) override { return wait(receives_, source); }
  bool waitSend(int* destination, Milliseconds) override { return wait(sends_, destination); }
  // Nobody but the channel's failure ends a wait.
  void abortWaitRecv() override {}
  void abortWaitSend() override {}

  void send(int destination, uint64_t slot, size_t offset, size_t nbytes) override {
    sends_.push_back(transfer(destination, offset, nbytes));
    channel_.post_send(slot, sends_.back());
  }
  void recv(int source, uint64_t slot, size_t offset, size_t nbytes) override {
    receives_.push_back(transfer(source, offset, nbytes));
    channel_.post_receive(slot, receives_.back());
  }
  void recv(std::vector<int>, uint64_t, size_t, size_t) override {
    throw ::gloo::InvalidOperationException("a receive must name its source");
  }

 private:
  TransferPtr transfer(int group_rank, size_t offset, size_t nbytes) {
    if (nbytes == kUnspecifiedByteCount) nbytes = size - offset;
    if (offset > size || nbytes > size - offset)
      throw ::gloo::InvalidOperationException("a transfer must lie inside its buffer");
    return std::make_shared<Transfer>(global_ranks_[static_cast<size_t>(group_rank)],
                                      static_cast<std::byte*>(ptr) + offset,
                                      static_cast<int64_t>(nbytes));
  }

  bool wait(std::vector<TransferPtr>& list, int* group_rank) {
    const auto first_done = [&] {
      return std::find_if(list.begin(), list.end(), [](const auto& t) { return t->done(); });
    };
    if (!channel_.wait(list, [&] { return first_done() != list.end(); }))
      throw ::gloo::IoException("the group has failed");
    const auto found = first_done();
    if (group_rank != nullptr) {
      const auto at = std::find(global_ranks_.begin(), global_ranks_.end(), (*found)->peer());
      *group_rank = static_cast<int>(at - global_ranks_.begin());
    }
    list.erase(found);
    return true;
  }

  Channel& channel_;
  const std::vector<int>& global_ranks_;
  std::vector<TransferPtr> sends_, receives_;
};

class NoAddress final : public ::gloo::transport::Address {
 public:
  [[nodiscard]] std::string str() const override { return "channel"; }
  [[nodiscard]] std::vector<char> bytes() const override { return {}; }
};

// Some algorithms ask whether a pair is there; none that we run uses it.
class NamePair final : public ::gloo::transport::Pair {
 public:
  [[nodiscard]] const ::gloo::transport::Address& address() const override { return address_; }
  void connect(const std::vector<char>&) override { refuse(); }
  void close() override {}
  void setSync(bool, bool) override {}
  std::unique_ptr<::gloo::transport::Buffer> createSendBuffer(int, void*, size_t) override {
    refuse();
  }
  std::unique_ptr<::gloo::transport::Buffer> createRecvBuffer(int, void*, size_t) override {
    refuse();
  }
  void send(::gloo::transport::UnboundBuffer*, uint64_t, size_t, size_t) override { refuse(); }
  void recv(::gloo::transport::UnboundBuffer*, uint64_t, size_t, size_t) override { refuse(); }

 private:
  [[noreturn]] static void refuse() {
    throw ::gloo::InvalidOperationException("this transport moves unbound buffers only");
  }
  NoAddress address_;
};

class TransportContext final : public ::gloo::transport::Context {
 public:
  TransportContext(Channel& channel, int group_rank, std::vector<int> global_ranks)
      : Context(group_rank, static_cast<int>(global_ranks.size())),
        channel_(channel),
        global_ranks_(std::move(global_ranks)) {
    for (auto& pair : pairs_) pair = std::make_unique<NamePair>();
  }

  std::unique_ptr<::gloo::transport::Pair>& createPair(int group_rank) override {
    return getPair(group_rank);
  }
  std::unique_ptr<::gloo::transport::UnboundBuffer> createUnboundBuffer(void* memory,
                                                                        size_t nbytes) override {
    return std::make_unique<Buffer>(channel_, global_ranks_, memory, nbytes);
  }

 private:
  Channel& channel_;
  const std::vector<int> global_ranks_;
};

class GroupContext final : public ::gloo::Context {
 public:
  GroupContext(int group_rank, int group_size,
               std::shared_ptr<::gloo::transport::Context> transport)
      : Context(group_rank, group_size) {
    transportContext_ = std::move(transport);
  }
};
}  // namespace

std::shared_ptr<::gloo::Context> make_gloo_context(Channel& channel, int group_rank,
                                                   const std::vector<int>& global_ranks) {
  return std::make_shared<GroupContext>(
      group_rank, static_cast<int>(global_ranks.size()),
      std::make_shared<TransportContext>(channel, group_rank, global_ranks));
}

}  // namespace muster::wire
