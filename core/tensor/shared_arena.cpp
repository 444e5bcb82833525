#include "core/tensor/shared_arena.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <iterator>
#include <string>
#include <utility>

#include "core/base/error.h"

namespace muster {
namespace {
constexpr char kName[] = "muster_arena";
constexpr int64_t kPageNbytes = 4096;
constexpr int64_t kHugePageNbytes = int64_t{2} << 20;

int64_t round_up(int64_t nbytes, int64_t step) { return (nbytes + step - 1) / step * step; }

// Closes on every early return.
class OwnedFd {
 public:
  explicit OwnedFd(int fd) : fd_(fd) {}
  ~OwnedFd() {
    if (fd_ >= 0) ::close(fd_);
  }
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  [[nodiscard]] int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// At a multiple of 2 MiB, because only then the kernel uses huge pages.
Result<std::byte*> map_shared(int fd, int64_t capacity, bool huge_pages) {
  const auto whole = static_cast<size_t>(capacity + kHugePageNbytes);
  void* const room = ::mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) {
    return make_error(ErrorCode::kOutOfMemory, "shared arena: {} of address space; {}",
                      format_bytes({capacity}), errno_text(errno));
  }
  const auto start = reinterpret_cast<uintptr_t>(room);
  const auto aligned =
      static_cast<uintptr_t>(round_up(static_cast<int64_t>(start), kHugePageNbytes));
  auto* const base = reinterpret_cast<std::byte*>(aligned);
  const size_t lead = aligned - start;
  const auto nbytes = static_cast<size_t>(capacity);
  if (lead > 0) ::munmap(room, lead);
  if (whole > lead + nbytes) ::munmap(base + nbytes, whole - lead - nbytes);
  if (::mmap(base, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    const int error = errno;
    ::munmap(base, nbytes);
    return make_error(ErrorCode::kIo, "shared arena: map {}; {}", format_bytes({capacity}),
                      errno_text(error));
  }
  if (huge_pages) ::madvise(base, nbytes, MADV_HUGEPAGE);
  return base;
}

Result<void> check_is_arena(int fd, int64_t capacity) {
  char target[64] = {};
  const std::string link = fmt::format("/proc/self/fd/{}", fd);
  const ssize_t length = ::readlink(link.c_str(), target, sizeof(target) - 1);
  struct stat info {};
  if (length < 0 || ::fstat(fd, &info) != 0) {
    return make_error(ErrorCode::kIo, "shared arena: descriptor {}; {}", fd, errno_text(errno));
  }
  const std::string_view name(target, static_cast<size_t>(length));
  if (!name.starts_with(fmt::format("/memfd:{}", kName)) || info.st_size != capacity) {
    return make_error(
        ErrorCode::kMismatch,
        "shared arena: the descriptor must be an arena of {} bytes; got {} of {} bytes", capacity,
        name, info.st_size);
  }
  return {};
}
}  // namespace

SharedArena::SharedArena(int fd, std::byte* base, int64_t capacity, bool is_owner,
                         int64_t alignment)
    : fd_(fd), base_(base), capacity_(capacity), is_owner_(is_owner), alignment_(alignment) {
  if (is_owner) holes_.emplace(0, capacity);
}

SharedArena::~SharedArena() {
  ::munmap(base_, static_cast<size_t>(capacity_));
  ::close(fd_);
}

Result<std::unique_ptr<SharedArena>> SharedArena::create(Bytes capacity,
                                                         SharedArenaOptions options) {
  if (capacity.count <= 0 || options.alignment < 64 ||
      !std::has_single_bit(static_cast<uint64_t>(options.alignment))) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "shared arena: capacity > 0 and alignment a power of two >= 64; got {} and {}",
        capacity.count, options.alignment);
  }
  const int64_t nbytes = round_up(capacity.count, std::max(kPageNbytes, options.alignment));
  OwnedFd fd(::memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0 || ::ftruncate(fd.get(), nbytes) != 0) {
    return make_error(ErrorCode::kIo, "shared arena: make {} of shared memory; {}",
                      format_bytes({nbytes}), errno_text(errno));
  }
  // Nobody may change the size, so no access to the mapping can raise SIGBUS for that reason.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return make_error(ErrorCode::kIo, "shared arena: seal the size; {}", errno_text(errno));
  }
  std::byte* const base = MUSTER_TRY(map_shared(fd.get(), nbytes, options.huge_pages));
  std::unique_ptr<SharedArena> arena(
      new SharedArena(fd.release(), base, nbytes, /*is_owner=*/true, options.alignment));
  if (options.prefault && ::madvise(base, static_cast<size_t>(nbytes), MADV_POPULATE_WRITE) != 0) {
    return make_error(ErrorCode::kOutOfMemory, "shared arena: touch {} of shared memory; {}",
                      format_bytes({nbytes}), errno_text(errno));
  }
  return arena;
}

Result<std::unique_ptr<SharedArena>> SharedArena::attach(int pid, int fd, Bytes capacity) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
  const int own = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (own < 0) {
    return make_error(ErrorCode::kPeerLost,
                      "shared arena: open descriptor {} of process {}; {}\n  the process must live "
                      "and belong to the same user",
                      fd, pid, errno_text(errno));
  }
  return attach_fd(own, capacity);
}

Result<std::unique_ptr<SharedArena>> SharedArena::attach_fd(int fd, Bytes capacity) {
  OwnedFd own(fd);
  MUSTER_TRY(check_is_arena(fd, capacity.count));
  std::byte* const base = MUSTER_TRY(map_shared(fd, capacity.count, /*huge_pages=*/true));
  return std::unique_ptr<SharedArena>(
      new SharedArena(own.release(), base, capacity.count, /*is_owner=*/false, 64));
}

int64_t SharedArena::rounded(int64_t nbytes) const noexcept { return round_up(nbytes, alignment_); }

int64_t SharedArena::largest_hole() const noexcept {
  int64_t largest = 0;
  for (const auto& [offset, nbytes] : holes_) largest = std::max(largest, nbytes);
  return largest;
}

void* SharedArena::allocate(int64_t nbytes) {
  MUSTER_CHECK(is_owner_, ErrorCode::kFailedPrecondition,
               "shared arena: only the process that made it allocates; this one attached");
  MUSTER_CHECK(nbytes >= 0, ErrorCode::kInvalidArgument,
               "shared arena: the size must not be negative; got {} bytes", nbytes);
  if (nbytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  const int64_t wanted = nbytes <= capacity_ ? rounded(nbytes) : nbytes;
  const auto hole = std::find_if(holes_.begin(), holes_.end(),
                                 [&](const auto& entry) { return entry.second >= wanted; });
  MUSTER_CHECK(hole != holes_.end(), ErrorCode::kOutOfMemory,
               "shared arena: {} must fit; got {} live in {} blocks of a capacity of {}, the "
               "largest hole is {}\n  make the arena larger",
               format_bytes({nbytes}), format_bytes({allocated_}), live_.size(),
               format_bytes({capacity_}), format_bytes({largest_hole()}));
  const auto [offset, size] = *hole;
  holes_.erase(hole);
  if (size > wanted) holes_.emplace(offset + wanted, size - wanted);
  live_.emplace(offset, wanted);
  allocated_ += wanted;
  peak_ = std::max(peak_, allocated_);
  ++allocations_;
  return base_ + offset;
}

void SharedArena::deallocate(void* data, int64_t) noexcept {
  if (data == nullptr) return;
  const std::lock_guard lock(mutex_);
  const auto block = live_.find(static_cast<std::byte*>(data) - base_);
  MUSTER_ASSERT(block != live_.end(), "shared arena: {} is not a live block", data);
  auto [offset, nbytes] = *block;
  live_.erase(block);
  allocated_ -= nbytes;
  auto next = holes_.lower_bound(offset);
  if (next != holes_.end() && next->first == offset + nbytes) {
    nbytes += next->second;
    next = holes_.erase(next);
  }
  if (next != holes_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += nbytes;
      return;
    }
  }
  holes_.emplace(offset, nbytes);
}

void SharedArena::account(int64_t nbytes) {
  const std::lock_guard lock(mutex_);
  allocated_ += nbytes;
  peak_ = std::max(peak_, allocated_);
}

AllocatorStats SharedArena::stats() const {
  const std::lock_guard lock(mutex_);
  return {.allocated = {allocated_},
          .reserved = {capacity_},
          .peak_allocated = {peak_},
          .system_calls = 1,
          .allocations = allocations_};
}

void SharedArena::reset_peak() {
  const std::lock_guard lock(mutex_);
  peak_ = allocated_;
}

void SharedArena::trim() {
  const std::lock_guard lock(mutex_);
  for (const auto& [offset, nbytes] : holes_) {
    const int64_t first = round_up(offset, kPageNbytes);
    const int64_t end = (offset + nbytes) / kPageNbytes * kPageNbytes;
    if (end > first) ::madvise(base_ + first, static_cast<size_t>(end - first), MADV_REMOVE);
  }
}

int64_t SharedArena::offset_of(const void* data) const {
  MUSTER_CHECK(contains(data), ErrorCode::kOutOfRange,
               "shared arena: the address must lie in [{}, {}); got {}", fmt::ptr(base_),
               fmt::ptr(base_ + capacity_), data);
  return static_cast<const std::byte*>(data) - base_;
}

std::byte* SharedArena::at(int64_t offset, int64_t nbytes) const {
  MUSTER_CHECK(offset >= 0 && nbytes >= 0 && offset <= capacity_ && nbytes <= capacity_ - offset,
               ErrorCode::kOutOfRange,
               "shared arena: {} bytes at offset {} must lie within {} bytes", nbytes, offset,
               capacity_);
  return base_ + offset;
}
}  // namespace muster
