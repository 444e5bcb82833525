#include "launcher/rendezvous/grpc/grpc_client.h"

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <deque>

#include "launcher/rendezvous/grpc/event_queue.h"
#include "launcher/rendezvous/grpc/frames.h"
#include "rendezvous.grpc.pb.h"

namespace muster {
namespace {

constexpr int kMaxMessageNbytes = 64 << 10;
constexpr int kFirstRetryMs = 50;
constexpr int kLastRetryMs = 500;
constexpr uint64_t kHostPeer = 1;

class GrpcClient final : public Link, private grpc::ClientBidiReactor<wire::Frame, wire::Frame> {
 public:
  explicit GrpcClient(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstRetryMs);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kFirstRetryMs);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLastRetryMs);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    // Each link its own connection: a new one must not inherit an old one's back-off.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(kMaxMessageNbytes);
    stub_ = wire::Rendezvous::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
    context_.set_wait_for_ready(true);
    stub_->async()->Attend(&context_, this);
    AddHold();  // for send(), which is no reaction
    StartRead(&incoming_);
    StartCall();
  }

  ~GrpcClient() override {
    context_.TryCancel();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return is_done_; });
  }

  [[nodiscard]] int ready_fd() const override { return events_.fd(); }
  std::vector<LinkEvent> take() override { return events_.take(); }
  [[nodiscard]] int port() const override { return 0; }

  void send(uint64_t /*peer*/, const Message& message) override {
    const std::lock_guard lock(mutex_);
    if (is_closing_) return;
    outgoing_.push_back(to_frame(message));
    push_on();
  }

  void close(uint64_t /*peer*/) override {
    const std::lock_guard lock(mutex_);
    if (is_closing_) return;
    is_closing_ = true;
    push_on();
  }

 private:
  // Starts the next write, or says that no more come; under the lock.
  void push_on() {
    if (is_writing_ || is_released_) return;
    if (!outgoing_.empty()) {
      writing_ = std::move(outgoing_.front());
      outgoing_.pop_front();
      is_writing_ = true;
      StartWrite(&writing_);
    } else if (is_closing_ && !is_half_closed_) {
      is_half_closed_ = true;
      StartWritesDone();
    }
  }

  void release() {
    const std::lock_guard lock(mutex_);
    if (is_released_) return;
    is_released_ = true;
    is_closing_ = true;
    RemoveHold();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      release();
      return;
    }
    std::optional<Message> message = from_frame(incoming_);
    if (message) {
      events_.push({.kind = LinkEvent::Kind::kMessage,
                    .peer = kHostPeer,
                    .message = std::move(*message),
                    .text = ""});
    }
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    is_writing_ = false;
    if (!ok) {
      is_closing_ = true;
      is_half_closed_ = true;
      outgoing_.clear();
    }
    push_on();
  }

  void OnDone(const grpc::Status& status) override {
    events_.push({.kind = LinkEvent::Kind::kClosed,
                  .peer = kHostPeer,
                  .message = message::Beat{},
                  .text = status.ok() ? "it closed the connection" : status.error_message()});
    const std::lock_guard lock(mutex_);
    is_done_ = true;
    done_.notify_all();
  }

  EventQueue events_;
  std::unique_ptr<wire::Rendezvous::Stub> stub_;
  grpc::ClientContext context_;
  wire::Frame incoming_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::deque<wire::Frame> outgoing_;  // guarded by mutex_, as all below
  wire::Frame writing_;
  bool is_writing_ = false;
  bool is_closing_ = false;
  bool is_half_closed_ = false;
  bool is_released_ = false;
  bool is_done_ = false;
};
}  // namespace

std::unique_ptr<Link> open_grpc_client(const std::string& address) {
  return std::make_unique<GrpcClient>(address);
}

}  // namespace muster
