#include "launcher/rendezvous/grpc/grpc_server.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <deque>
#include <unordered_map>

#include "launcher/rendezvous/grpc/event_queue.h"
#include "launcher/rendezvous/grpc/frames.h"
#include "rendezvous.grpc.pb.h"

namespace muster {
namespace {

constexpr int kMaxMessageNbytes = 64 << 10;
constexpr int kMaxMetadataNbytes = 8 << 10;
constexpr int kStreamsPerConnection = 4;
constexpr int kHandshakeLimitMs = 10'000;
constexpr int kIdleLimitMs = 30'000;
constexpr auto kShutdownLimit = std::chrono::milliseconds(500);

class GrpcServer;

// One stream. Lives until OnDone, which gRPC calls last.
class Session final : public grpc::ServerBidiReactor<wire::Frame, wire::Frame> {
 public:
  Session(GrpcServer& server, uint64_t peer) : server_(server), peer_(peer) {}

  void begin() { StartRead(&incoming_); }
  void send(wire::Frame frame);
  void close();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override { end(); }
  void OnDone() override;

 private:
  void end();
  void push_on();

  GrpcServer& server_;
  const uint64_t peer_;
  wire::Frame incoming_;
  // Starting an operation under the lock is safe: gRPC never runs a reaction inside the call.
  std::mutex mutex_;
  std::deque<wire::Frame> outgoing_;
  wire::Frame writing_;
  bool is_writing_ = false;
  bool is_closing_ = false;
  bool is_finished_ = false;
};

class GrpcServer final : public Link, public wire::Rendezvous::CallbackService {
 public:
  bool open(const std::string& address) {
    grpc::ServerBuilder builder;
    // With it two hosts could listen on one port, each with half of the nodes.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnection);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleLimitMs);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeLimitMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataNbytes);
    builder.SetMaxReceiveMessageSize(kMaxMessageNbytes);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<wire::Rendezvous::CallbackService*>(this));
    server_ = builder.BuildAndStart();
    return server_ != nullptr && port_ > 0;
  }

  ~GrpcServer() override {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now() + kShutdownLimit);
    server_->Wait();
    server_.reset();
  }

  [[nodiscard]] int ready_fd() const override { return events_.fd(); }
  std::vector<LinkEvent> take() override { return events_.take(); }
  [[nodiscard]] int port() const override { return port_; }

  void send(uint64_t peer, const Message& message) override {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(peer);
    if (found != sessions_.end()) found->second->send(to_frame(message));
  }

  void close(uint64_t peer) override {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(peer);
    if (found != sessions_.end()) found->second->close();
  }

  grpc::ServerBidiReactor<wire::Frame, wire::Frame>* Attend(
      grpc::CallbackServerContext* context) override {
    Session* session = nullptr;
    {
      const std::lock_guard lock(mutex_);
      session = new Session(*this, ++last_peer_);
      sessions_[last_peer_] = session;
      events_.push({.kind = LinkEvent::Kind::kOpened,
                    .peer = last_peer_,
                    .message = message::Beat{},
                    .text = context->peer()});
    }
    session->begin();
    return session;
  }

  // A session's own words, from gRPC's threads.
  void took(uint64_t peer, Message message) {
    events_.push({.kind = LinkEvent::Kind::kMessage,
                  .peer = peer,
                  .message = std::move(message),
                  .text = ""});
  }
  void ended(uint64_t peer) {
    const std::lock_guard lock(mutex_);
    sessions_.erase(peer);
    events_.push({.kind = LinkEvent::Kind::kClosed,
                  .peer = peer,
                  .message = message::Beat{},
                  .text = "its connection was closed"});
  }

 private:
  EventQueue events_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, Session*> sessions_;  // guarded by mutex_
  uint64_t last_peer_ = 0;                           // guarded by mutex_
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

void Session::send(wire::Frame frame) {
  const std::lock_guard lock(mutex_);
  if (is_closing_ || is_finished_) return;
  outgoing_.push_back(std::move(frame));
  push_on();
}

void Session::close() {
  const std::lock_guard lock(mutex_);
  is_closing_ = true;
  push_on();
}

void Session::end() {
  const std::lock_guard lock(mutex_);
  is_closing_ = true;
  outgoing_.clear();
  push_on();
}

// Starts the next write, or finishes; under the lock.
void Session::push_on() {
  if (is_writing_ || is_finished_) return;
  if (!outgoing_.empty()) {
    writing_ = std::move(outgoing_.front());
    outgoing_.pop_front();
    is_writing_ = true;
    StartWrite(&writing_);
  } else if (is_closing_) {
    is_finished_ = true;
    Finish(grpc::Status::OK);
  }
}

void Session::OnReadDone(bool ok) {
  if (!ok) {
    end();
    return;
  }
  std::optional<Message> message = from_frame(incoming_);
  if (message) server_.took(peer_, std::move(*message));
  StartRead(&incoming_);
}

void Session::OnWriteDone(bool ok) {
  const std::lock_guard lock(mutex_);
  is_writing_ = false;
  if (!ok) {
    is_closing_ = true;
    outgoing_.clear();
  }
  push_on();
}

void Session::OnDone() {
  server_.ended(peer_);
  delete this;
}
}  // namespace

std::unique_ptr<Link> open_grpc_server(const std::string& address) {
  auto server = std::make_unique<GrpcServer>();
  if (!server->open(address)) return nullptr;
  return server;
}

}  // namespace muster
