#include "launcher/rendezvous/grpc/grpc_server.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
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
constexpr int kMessagesOfStrangers = 8;  // an agent sends two before it is trusted
constexpr auto kShutdownLimit = std::chrono::milliseconds(500);

class GrpcServer;

// One stream. Lives until OnDone, which gRPC calls last.
class Session final : public grpc::ServerBidiReactor<wire::Frame, wire::Frame> {
 public:
  Session(GrpcServer& server, uint64_t peer) : server_(server), peer_(peer) {}

  void begin() { StartRead(&incoming_); }
  void send(wire::Frame frame);
  void close();
  void trust() { is_trusted_ = true; }

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
  int num_messages_ = 0;  // while it is a stranger
  std::atomic<bool> is_trusted_ = false;
  // Starting an operation under the lock is safe: gRPC never runs a reaction inside the call.
  std::mutex mutex_;
  std::deque<wire::Frame> outgoing_;
  wire::Frame writing_;
  bool is_writing_ = false;
  bool is_closing_ = false;
  bool is_finished_ = false;
};

// "ipv4:10.0.0.1:80" and "ipv6:%5B::1%5D:80" as "10.0.0.1:80" and "[::1]:80".
std::string endpoint_of(std::string peer) {
  peer.erase(0, peer.find(':') + 1);
  for (const auto& [code, bracket] : {std::pair("%5B", "["), std::pair("%5D", "]")}) {
    const size_t at = peer.find(code);
    if (at != std::string::npos) peer.replace(at, 3, bracket);
  }
  return peer;
}

class GrpcServer final : public ServerLink, public wire::Rendezvous::CallbackService {
 public:
  bool open() {
    using ConnectionType = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnection);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleLimitMs);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeLimitMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataNbytes);
    builder.SetMaxReceiveMessageSize(kMaxMessageNbytes);
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        ConnectionType::FROM_FD, grpc::InsecureServerCredentials());
    builder.RegisterService(static_cast<wire::Rendezvous::CallbackService*>(this));
    server_ = builder.BuildAndStart();
    return server_ != nullptr;
  }

  ~GrpcServer() override {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now() + kShutdownLimit);
    server_->Wait();
    server_.reset();
  }

  [[nodiscard]] int ready_fd() const override { return events_.fd(); }
  std::vector<LinkEvent> take() override { return events_.take(); }
  [[nodiscard]] int port() const override { return 0; }

  void adopt(int fd, std::string_view received) override {
    const grpc::Slice bytes(received.data(), received.size());
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd;
    connection.read_buffer = grpc::ByteBuffer(&bytes, 1);
    acceptor_->HandleNewConnection(&connection);
  }

  void trust(uint64_t peer) override {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(peer);
    if (found != sessions_.end()) found->second->trust();
  }

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
                    .text = endpoint_of(context->peer())});
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
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
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
  // What waits for the agent is bounded, too, while it is busy.
  if (!ok || (!is_trusted_ && ++num_messages_ > kMessagesOfStrangers)) {
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

std::unique_ptr<ServerLink> open_grpc_server() {
  auto server = std::make_unique<GrpcServer>();
  if (!server->open()) return nullptr;
  return server;
}

}  // namespace muster
