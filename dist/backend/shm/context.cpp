#include "dist/backend/shm/context.h"

#include <fmt/format.h>
#include <immintrin.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>

#include "core/base/text.h"

namespace muster::shm {
namespace {
// Parked waits look at peers' processes this often; a wake-up by the clock itself is immediate.
constexpr Duration kParkSlice = 10ms;
constexpr int kSlicesPerTurn = 5;
// The same for waits in the store, which cost a message each time.
constexpr Duration kStoreSlice = 100ms;

int allowed_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
}

uint32_t* futex_word(std::atomic<uint32_t>& word) { return reinterpret_cast<uint32_t*>(&word); }

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, Duration at_most) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  const timespec relative{seconds.count(), static_cast<long>((at_most - seconds).count())};
  ::syscall(SYS_futex, futex_word(word), FUTEX_WAIT, seen, &relative, nullptr, 0);
}

// Where ranks are threads, one arena is mapped at several addresses, and the thread sanitizer
// cannot see that a store through one mapping is what a load through another has read. Tell it.
#ifdef __SANITIZE_THREAD__
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
char sanitizer_sync = 0;
void note_acquired() { __tsan_acquire(&sanitizer_sync); }
void note_released() { __tsan_release(&sanitizer_sync); }
#else
void note_acquired() {}
void note_released() {}
#endif

bool reached(const Clock& clock, uint32_t target) noexcept {
  if (static_cast<int32_t>(clock.ticks.load(std::memory_order_acquire) - target) < 0) return false;
  note_acquired();
  return true;
}

std::string rank_key(const std::string& prefix, int rank) {
  return fmt::format("{}/rank/{}", prefix, rank);
}

Result<Peer> connect_peer(int rank, const std::string& text) {
  const std::vector<std::string> fields = split(text, ' ');
  if (fields.size() != 3) {
    return make_error(ErrorCode::kMismatch,
                      "shm: rank {} published \"{}\"; expected pid, descriptor and capacity", rank,
                      text);
  }
  Peer peer;
  peer.global_rank = rank;
  peer.pid = std::stoi(fields[0]);
  peer.arena =
      MUSTER_TRY(SharedArena::attach(peer.pid, std::stoi(fields[1]), Bytes{std::stoll(fields[2])}),
                 fmt::format("while mapping the arena of rank {} (pid {})", rank, peer.pid));
  if (peer.pid != ::getpid()) {
    peer.pidfd = static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0));
    if (peer.pidfd < 0) {
      return make_error(ErrorCode::kPeerLost, "shm: rank {} (pid {}) has ended: {}", rank, peer.pid,
                        errno_text(errno));
    }
  }
  return peer;
}
}  // namespace

Result<std::shared_ptr<Context>> Context::open(Options options, Deadline deadline) {
  std::shared_ptr<Context> context(new Context(std::move(options)));
  const Options& chosen = context->options_;
  context->own_arena_ = MUSTER_TRY(SharedArena::create(chosen.arena_capacity));
  const std::string own = fmt::format("{} {} {}", ::getpid(), context->own_arena_->fd(),
                                      context->own_arena_->capacity().count);
  MUSTER_TRY(chosen.store->set(rank_key(chosen.key_prefix, chosen.global_rank), own));
  for (int rank = 0; rank < chosen.world_size; ++rank) {
    if (rank == chosen.global_rank) {
      context->peers_.push_back({rank, ::getpid(), -1, context->own_arena_});
      continue;
    }
    const std::string text =
        MUSTER_TRY(chosen.store->get(rank_key(chosen.key_prefix, rank), deadline));
    context->peers_.push_back(MUSTER_TRY(connect_peer(rank, text)));
  }
  // Spinning pays only where every rank can run at once.
  context->spin_rounds_ = allowed_cores() >= chosen.world_size ? 2000 : 20;
  return context;
}

Context::~Context() {
  for (const Peer& peer : peers_) {
    if (peer.pidfd >= 0) ::close(peer.pidfd);
  }
}

void Context::keep(std::vector<Tensor> tensors) {
  const std::lock_guard lock(kept_mutex_);
  for (Tensor& tensor : tensors) kept_.push_back(std::move(tensor));
}

void Context::add_observer(const void* owner, Observer observer) {
  const std::lock_guard lock(observers_mutex_);
  observers_[owner] = std::move(observer);
}

void Context::remove_observer(const void* owner) {
  const std::lock_guard lock(observers_mutex_);
  observers_.erase(owner);
}

std::string Context::where_it_waits(int global_rank) {
  const std::lock_guard lock(observers_mutex_);
  std::vector<std::string> places;
  for (const auto& [owner, observer] : observers_) {
    if (std::string place = observer(global_rank); !place.empty()) places.push_back(place);
  }
  return fmt::format("{}", fmt::join(places, " and in "));
}

Result<std::string> Context::await_key_of(int global_rank, const std::string& key,
                                          Deadline deadline) {
  const TimePoint began = real_clock().now();
  while (true) {
    Result<std::string> value =
        store().get(key, Deadline::after(std::min<Duration>(kStoreSlice, deadline.left())));
    if (value.ok() || value.error().code() != ErrorCode::kTimeout) return value;
    if (has_ended(peer(global_rank))) {
      // It may have written it just before.
      if (std::optional<std::string> last = MUSTER_TRY(store().try_get(key))) return *last;
      return make_error(ErrorCode::kPeerLost, "shm: global rank {} (pid {}) has ended", global_rank,
                        peer(global_rank).pid);
    }
    if (deadline.passed()) {
      return make_error(ErrorCode::kTimeout, "shm: global rank {} has not come within {}",
                        global_rank, format_duration(real_clock().now() - began));
    }
  }
}

bool Context::has_ended(const Peer& peer) noexcept {
  if (peer.pidfd < 0) return false;
  pollfd entry{peer.pidfd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

WaitOutcome Context::wait_for(Clock& clock, uint32_t target, const Peer& peer, AbortFlags flags,
                              Deadline deadline) const {
  for (int round = 0; round < spin_rounds_; ++round) {
    if (reached(clock, target)) return WaitOutcome::kReached;
    _mm_pause();
  }
  for (int slice = 0; slice < kSlicesPerTurn; ++slice) {
    clock.waiters.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = clock.ticks.load(std::memory_order_seq_cst);
    if (static_cast<int32_t>(seen - target) < 0 && !flags.own.load(std::memory_order_acquire)) {
      futex_wait(clock.ticks, seen, std::min(kParkSlice, deadline.left()));
    }
    clock.waiters.fetch_sub(1, std::memory_order_relaxed);
    if (reached(clock, target)) return WaitOutcome::kReached;
    if (flags.own.load(std::memory_order_acquire)) return WaitOutcome::kAborted;
    if (flags.peer.load(std::memory_order_acquire) != 0) return WaitOutcome::kPeerAborted;
    // A peer that finished its part and left normally has set its clock before it ended.
    if (has_ended(peer)) {
      if (reached(clock, target)) return WaitOutcome::kReached;
      const bool gave_up = flags.peer.load(std::memory_order_acquire) != 0;  // its last words
      return gave_up ? WaitOutcome::kPeerAborted : WaitOutcome::kPeerLost;
    }
    if (deadline.passed()) return WaitOutcome::kDeadline;
  }
  return WaitOutcome::kTurn;
}

void Context::advance(Clock& clock, uint32_t ticks) noexcept {
  note_released();
  clock.ticks.store(ticks, std::memory_order_seq_cst);
  if (clock.waiters.load(std::memory_order_seq_cst) != 0) wake(clock);
}

void Context::wake(Clock& clock) noexcept {
  ::syscall(SYS_futex, futex_word(clock.ticks), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}
}  // namespace muster::shm
