// Who may connect to a gloo rank, and what strangers can do: nothing.
#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <mutex>
#include <random>
#include <thread>

#include "dist/backend/gloo/gloo_backend.h"
#include "dist/group/process_group.h"
#include "dist/net/sockets.h"
#include "dist/net/token.h"
#include "dist/store/hash_store.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using testing::FailsWith;
using ::testing::HasSubstr;

// Rank 0 of two, waiting for rank 1 with its port open.
class LonelyRank {
 public:
  explicit LonelyRank(Duration handshake_limit = 10s)
      : store_(std::make_shared<HashStore>()), thread_([this, handshake_limit] {
          wire::MeshOptions options = options_of(0);
          options.handshake_limit = handshake_limit;
          opened_.emplace(GlooBackend::open_world(std::move(options), deadline_));
        }) {
    const std::string place = store_->get("gloo/rank/0", deadline_).value();
    port_ = std::stoi(place.substr(0, place.find(' ')));
  }
  ~LonelyRank() {
    if (thread_.joinable()) {
      store_->cancel();
      static_cast<void>(join());
    }
  }
  LonelyRank(const LonelyRank&) = delete;
  LonelyRank& operator=(const LonelyRank&) = delete;

  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] Deadline deadline() const { return deadline_; }
  [[nodiscard]] Store& store() { return *store_; }
  [[nodiscard]] wire::MeshOptions options_of(int rank) {
    wire::MeshOptions options;
    options.store = store_;
    options.global_rank = rank;
    options.world_size = 2;
    options.on_refuse = [this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      refusals_.push_back(text);
    };
    return options;
  }
  std::vector<std::string> refusals() {
    const std::lock_guard lock(mutex_);
    return refusals_;
  }
  [[nodiscard]] net::UniqueFd connect() const {
    const auto address = net::resolve("127.0.0.1", port_, deadline_).value().front();
    return net::connect_to(address, deadline_, -1).value();
  }
  // Sends bytes and returns when the other side has closed.
  void offend(const std::string& bytes) const {
    const net::UniqueFd fd = connect();
    [[maybe_unused]] const ssize_t sent =
        ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    char reply[64];
    while (net::poll_fd(fd.get(), POLLIN, deadline_, -1).value() == net::PollOutcome::kReady) {
      if (::recv(fd.get(), reply, sizeof(reply), MSG_DONTWAIT) <= 0) return;
    }
  }
  // Rank 1 comes, and both sum.
  void expect_that_the_job_goes_on() {
    auto other = GlooBackend::open_world(options_of(1), deadline_);
    const Result<std::unique_ptr<GlooBackend>>& own = join();
    ASSERT_OK(other);
    ASSERT_OK(own);
    ProcessGroup::Options first, second;
    first.global_ranks = second.global_ranks = {0, 1};
    second.group_rank = 1;
    ProcessGroup zero(first, std::move(opened_->value())), one(second, std::move(other).value());
    for (const int64_t count : {int64_t{10}, int64_t{100000}}) {
      const Tensor x = empty_from_spec(TensorSpec::contiguous({count}, DType::kI64));
      const Tensor y = empty_from_spec(TensorSpec::contiguous({count}, DType::kI64));
      std::fill_n(x.data<int64_t>(), count, 3);
      std::fill_n(y.data<int64_t>(), count, 4);
      const auto left = zero.all_reduce(x), right = one.all_reduce(y);
      ASSERT_OK(left->wait(deadline_));
      ASSERT_OK(right->wait(deadline_));
      EXPECT_EQ(x.data<int64_t>()[count - 1], 7);
      EXPECT_EQ(y.data<int64_t>()[0], 7);
    }
  }
  Result<std::unique_ptr<GlooBackend>>& join() {
    if (thread_.joinable()) thread_.join();
    return *opened_;
  }

 private:
  Deadline deadline_ = Deadline::after(60s);
  std::shared_ptr<HashStore> store_;
  std::mutex mutex_;
  std::vector<std::string> refusals_;  // guarded by mutex_
  std::optional<Result<std::unique_ptr<GlooBackend>>> opened_;
  int port_ = 0;
  std::thread thread_;
};

TEST(Mesh, BytesThatNoRankSendsAreRefusedAndReportedOnce) {
  LonelyRank rank;
  std::mt19937 random(7);
  std::string noise(4096, '\0');
  for (char& c : noise) c = static_cast<char>(random());
  for (int i = 0; i < 20; ++i) {
    rank.offend(noise);
    rank.offend("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    rank.offend(std::string(64, '\0'));
  }
  // A gloo preamble of c10d: nbytes, opcode, slot, offset, length, roffset.
  rank.offend(std::string("\x30\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0", 16) + std::string(32, '\7'));
  ASSERT_EQ(rank.refusals().size(), 1U);
  EXPECT_THAT(rank.refusals()[0], HasSubstr("it is no rank of this job"));
  rank.expect_that_the_job_goes_on();
}

TEST(Mesh, HalfAHelloHoldsUpNobodyAndIsDroppedInTime) {
  LonelyRank rank(50ms);
  const net::UniqueFd half = rank.connect();
  ASSERT_EQ(::send(half.get(), "muster gloo 001\n", 16, MSG_NOSIGNAL), 16);
  char reply = 0;
  ASSERT_EQ(net::poll_fd(half.get(), POLLIN, rank.deadline(), -1).value(),
            net::PollOutcome::kReady);
  EXPECT_EQ(::recv(half.get(), &reply, 1, 0), 0);
  ASSERT_EQ(rank.refusals().size(), 1U);
  EXPECT_THAT(rank.refusals()[0], HasSubstr("did not introduce itself in time"));
  rank.expect_that_the_job_goes_on();
}

TEST(Mesh, WhoDoesNotKnowTheSecretIsRefused) {
  LonelyRank rank;
  const net::UniqueFd fd = rank.connect();
  EXPECT_THAT(wire::greet(fd.get(), "a guess", 1, rank.deadline()),
              FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("secret")));
  // A client that does not check the server and sends a wrong proof.
  const net::UniqueFd liar = rank.connect();
  const std::string hello =
      "muster gloo 001\n" + wire::to_bytes(int32_t{1}) + std::string(net::kNonceNbytes, 'n');
  ASSERT_EQ(::send(liar.get(), hello.data(), hello.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(hello.size()));
  std::string answer;
  char buffer[256];
  while (net::poll_fd(liar.get(), POLLIN, rank.deadline(), -1).value() ==
         net::PollOutcome::kReady) {
    const ssize_t n = ::recv(liar.get(), buffer, sizeof(buffer), 0);
    if (n <= 0) break;
    answer.append(buffer, static_cast<size_t>(n));
    if (answer.size() == net::kNonceNbytes + net::kProofNbytes) {
      const std::string proof(net::kProofNbytes, 'p');
      static_cast<void>(::send(liar.get(), proof.data(), proof.size(), MSG_NOSIGNAL));
    }
  }
  EXPECT_EQ(answer.size(), net::kNonceNbytes + net::kProofNbytes) << "no welcome";
  bool is_reported = false;
  for (const std::string& text : rank.refusals())
    is_reported = is_reported || text.find("does not know the job's secret") != std::string::npos;
  EXPECT_TRUE(is_reported);
  rank.expect_that_the_job_goes_on();
}

TEST(Mesh, TenThousandIdleConnectionsDoNotKeepARankOut) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  // Only 1024 of them are kept by the rank, which is in this process.
  const auto count = std::min<rlim_t>(10000, limit.rlim_cur - 2000);
  std::printf("%llu idle connections\n", static_cast<unsigned long long>(count));
  LonelyRank rank;
  std::vector<net::UniqueFd> idle;
  for (rlim_t i = 0; i < count; ++i) idle.push_back(rank.connect());
  rank.expect_that_the_job_goes_on();
  // The oldest were let go, the rest when everybody was there; each kind is reported once.
  EXPECT_LE(rank.refusals().size(), 3U);
  EXPECT_GE(rank.refusals().size(), 1U);
}

TEST(Mesh, ARunningJobHasNoPortOpen) {
  LonelyRank rank;
  auto other = GlooBackend::open_world(rank.options_of(1), rank.deadline());
  ASSERT_OK(other);
  ASSERT_OK(rank.join());
  const auto address = net::resolve("127.0.0.1", rank.port(), rank.deadline()).value().front();
  // The thread closes it as soon as it sees that all are there.
  while (!rank.deadline().passed()) {
    const Result<net::UniqueFd> fd = net::connect_to(address, rank.deadline(), -1);
    if (!fd.ok()) break;
  }
  EXPECT_THAT(net::connect_to(address, rank.deadline(), -1),
              FailsWith(ErrorCode::kPeerLost, HasSubstr("refused")));
  other.value().reset();
  rank.join().value().reset();
}

TEST(Mesh, RanksThatDoNotComeAreNamed) {
  const auto store = std::make_shared<HashStore>();
  wire::MeshOptions options;
  options.store = store;
  options.world_size = 3;
  EXPECT_THAT(GlooBackend::open_world(options, Deadline::after(50ms)),
              FailsWith(ErrorCode::kTimeout, HasSubstr("ranks 1, 2 have not")));
  options.global_rank = 1;
  options.key_prefix = "other";
  EXPECT_THAT(GlooBackend::open_world(options, Deadline::after(50ms)),
              FailsWith(ErrorCode::kTimeout, HasSubstr("rank 0")));
}

TEST(Mesh, AGroupThatNotAllOpenNamesWhoIsMissing) {
  LonelyRank rank;
  auto other = GlooBackend::open_world(rank.options_of(1), rank.deadline());
  ASSERT_OK(other);
  ASSERT_OK(rank.join());
  EXPECT_THAT(rank.join().value()->subgroup({"alone", "alone", {0, 1}, 0}, Deadline::after(50ms)),
              FailsWith(ErrorCode::kTimeout, HasSubstr("global ranks 1 have not")));
  other.value().reset();
  rank.join().value().reset();
}
}  // namespace
}  // namespace muster
