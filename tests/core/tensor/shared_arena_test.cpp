#include "core/tensor/shared_arena.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/time.h"
#include "core/tensor/tensor.h"
#include "tests/support/child_process.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::AllOf;
using ::testing::HasSubstr;

// What parent and child share: the child adds up `numbers` into `sum`, then waits to be killed or
// ends, as told.
struct Mailbox {
  int64_t numbers[8];
  std::atomic<int64_t> sum;
  std::atomic<int> ready;
};

int run_attaching_child() {
  int pid = 0, fd = 0, stays = 0;
  long long capacity = 0, offset = 0;
  const char* const text = std::getenv("MUSTER_TEST_ARENA");
  if (text == nullptr ||
      std::sscanf(text, "%d %d %lld %lld %d", &pid, &fd, &capacity, &offset, &stays) != 5) {
    return 64;
  }
  auto arena = SharedArena::attach(pid, fd, {capacity});
  if (!arena.ok()) return 65;
  auto* const box = reinterpret_cast<Mailbox*>((*arena)->at(offset, sizeof(Mailbox)));
  int64_t sum = 0;
  for (const int64_t number : box->numbers) sum += number;
  box->sum = sum;
  box->ready = 1;
  while (stays != 0) ::pause();
  return 0;
}
const bool kChild = testing::register_child("attaching_child", run_attaching_child);

pid_t spawn_child(const SharedArena& arena, const void* mailbox, bool stays) {
  const std::string name = "MUSTER_TEST_CHILD=attaching_child";
  const std::string task =
      fmt::format("MUSTER_TEST_ARENA={} {} {} {} {}", ::getpid(), arena.fd(),
                  arena.capacity().count, arena.offset_of(mailbox), stays ? 1 : 0);
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(const_cast<char*>(name.c_str()));
  environment.push_back(const_cast<char*>(task.c_str()));
  environment.push_back(nullptr);
  char path[] = "/proc/self/exe";
  char* arguments[] = {path, nullptr};
  pid_t pid = 0;
  return ::posix_spawn(&pid, path, nullptr, nullptr, arguments, environment.data()) == 0 ? pid : -1;
}

Mailbox* make_mailbox(SharedArena& arena) {
  auto* const box = new (arena.allocate(sizeof(Mailbox))) Mailbox{};
  for (int i = 0; i < 8; ++i) box->numbers[i] = 1 << i;
  return box;
}

std::set<std::string> shared_memory_names() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    names.insert(entry.path().filename());
  }
  return names;
}

TEST(SharedArena, AnotherProcessReadsAndWritesABlockByItsOffset) {
  auto arena = SharedArena::create(1_MiB).value();
  static_cast<void>(arena->allocate(777));  // so that the offset is not 0
  Mailbox* const box = make_mailbox(*arena);
  const pid_t child = spawn_child(*arena, box, /*stays=*/false);
  ASSERT_GT(child, 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  ASSERT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(box->sum, 255);
}

TEST(SharedArena, AKilledPeerLeavesNothingBehind) {
  const auto before = shared_memory_names();
  auto arena = SharedArena::create(1_MiB).value();
  Mailbox* const box = make_mailbox(*arena);
  const pid_t child = spawn_child(*arena, box, /*stays=*/true);
  ASSERT_GT(child, 0);
  const Deadline deadline = Deadline::after(20s);
  while (box->ready == 0 && !deadline.passed()) std::this_thread::yield();
  EXPECT_EQ(box->ready, 1);
  EXPECT_EQ(shared_memory_names(), before);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(box->sum, 255);  // the owner's mapping is untouched by the peer's death
  EXPECT_EQ(shared_memory_names(), before);
  EXPECT_THAT(SharedArena::attach(child, arena->fd(), arena->capacity()),
              testing::FailsWith(ErrorCode::kPeerLost, HasSubstr("No such file")));
}

TEST(SharedArena, AttachInTheSameProcessSeesTheSameBytes) {
  auto arena = SharedArena::create(1_MiB).value();
  auto* const data = static_cast<char*>(arena->allocate(64));
  std::strcpy(data, "hello");
  auto second = SharedArena::attach(::getpid(), arena->fd(), arena->capacity()).value();
  EXPECT_FALSE(second->is_owner());
  EXPECT_STREQ(reinterpret_cast<char*>(second->at(arena->offset_of(data))), "hello");
  EXPECT_FALSE(second->contains(data));
  EXPECT_ERROR(second->allocate(1), ErrorCode::kFailedPrecondition, HasSubstr("attached"));
  auto third = SharedArena::attach_fd(::dup(arena->fd()), arena->capacity()).value();
  arena.reset();  // the memory lives on while somebody maps it
  EXPECT_STREQ(reinterpret_cast<char*>(third->at(0)), "hello");
}

TEST(SharedArena, RefusesDescriptorsThatAreNoArenaOfThisCapacity) {
  auto arena = SharedArena::create(1_MiB).value();
  EXPECT_THAT(SharedArena::attach(::getpid(), arena->fd(), 2_MiB),
              testing::FailsWith(ErrorCode::kMismatch, HasSubstr("got /memfd:muster_arena")));
  const int null_fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT_THAT(SharedArena::attach_fd(null_fd, 1_MiB),
              testing::FailsWith(ErrorCode::kMismatch, HasSubstr("/dev/null")));
  EXPECT_THAT(SharedArena::attach(::getpid(), 999'999, 1_MiB),
              testing::FailsWith(ErrorCode::kPeerLost, HasSubstr("descriptor 999999")));
}

TEST(SharedArena, RefusesBadCapacitiesAndAlignments) {
  EXPECT_THAT(SharedArena::create(0_B),
              testing::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("got 0 and 64")));
  EXPECT_THAT(SharedArena::create(1_MiB, {.alignment = 96}),
              testing::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("and 96")));
}

TEST(SharedArena, FreedNeighboursMergeInAnyOrder) {
  auto arena = SharedArena::create(64_KiB).value();
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    std::vector<void*> blocks;
    for (int i = 0; i < 16; ++i) blocks.push_back(arena->allocate(4096));
    EXPECT_ERROR(arena->allocate(1), ErrorCode::kOutOfMemory,
                 AllOf(HasSubstr("1 B must fit"), HasSubstr("64 KiB live in 16 blocks"),
                       HasSubstr("the largest hole is 0 B")));
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (void* block : blocks) arena->deallocate(block, 4096);
    void* const whole = arena->allocate(64 << 10);
    ASSERT_EQ(arena->offset_of(whole), 0);
    arena->deallocate(whole, 64 << 10);
  }
  EXPECT_EQ(arena->stats().allocated.count, 0);
  EXPECT_EQ(arena->stats().peak_allocated, 64_KiB);
}

TEST(SharedArena, OutOfMemoryNamesTheLargestHole) {
  auto arena = SharedArena::create(64_KiB).value();
  void* const a = arena->allocate(16 << 10);
  void* const b = arena->allocate(16 << 10);
  arena->deallocate(a, 16 << 10);
  EXPECT_ERROR(arena->allocate(33 << 10), ErrorCode::kOutOfMemory,
               AllOf(HasSubstr("33 KiB must fit"), HasSubstr("the largest hole is 32 KiB")));
  EXPECT_ERROR(arena->allocate(INT64_MAX), ErrorCode::kOutOfMemory, HasSubstr("must fit"));
  arena->deallocate(b, 16 << 10);
}

TEST(SharedArena, BlocksKeepTheAskedAlignment) {
  auto arena = SharedArena::create(1_MiB, {.alignment = 4096}).value();
  for (int64_t nbytes : {1, 5000, 64}) {
    EXPECT_EQ(arena->offset_of(arena->allocate(nbytes)) % 4096, 0);
  }
  EXPECT_EQ(arena->stats().allocated.count, 4 * 4096);
  auto fine = SharedArena::create(1_MiB).value();
  EXPECT_EQ(fine->offset_of(fine->allocate(1)), 0);
  EXPECT_EQ(fine->offset_of(fine->allocate(1)), 64);
}

TEST(SharedArena, AddressesAndOffsetsAreChecked) {
  auto arena = SharedArena::create(4_KiB).value();
  int elsewhere = 0;
  EXPECT_FALSE(arena->contains(&elsewhere));
  EXPECT_ERROR(static_cast<void>(arena->offset_of(&elsewhere)), ErrorCode::kOutOfRange,
               HasSubstr("must lie in"));
  EXPECT_ERROR(static_cast<void>(arena->at(4096)), ErrorCode::kOutOfRange,
               HasSubstr("offset 4096"));
  EXPECT_ERROR(static_cast<void>(arena->at(4000, 97)), ErrorCode::kOutOfRange,
               HasSubstr("97 bytes"));
  EXPECT_ERROR(static_cast<void>(arena->at(-1)), ErrorCode::kOutOfRange, HasSubstr("offset -1"));
  EXPECT_EQ(arena->offset_of(arena->at(4000, 96)), 4000);
}

TEST(SharedArena, PrefaultedMemoryIsThereAndTrimGivesItBack) {
  auto arena = SharedArena::create(8_MiB, {.prefault = true, .huge_pages = false}).value();
  struct stat info {};
  ASSERT_EQ(::fstat(arena->fd(), &info), 0);
  EXPECT_EQ(info.st_blocks * 512, 8 << 20);
  void* const kept = arena->allocate(64 << 10);
  std::memset(kept, 5, 64 << 10);
  arena->trim();
  ASSERT_EQ(::fstat(arena->fd(), &info), 0);
  EXPECT_EQ(info.st_blocks * 512, 64 << 10);
  EXPECT_EQ(static_cast<char*>(kept)[1000], 5);
}

TEST(SharedArena, HoldsTensors) {
  auto arena = SharedArena::create(1_MiB).value();
  {
    const Tensor tensor = empty_from_spec(TensorSpec::contiguous({8, 8}, DType::kF32), arena.get());
    EXPECT_TRUE(arena->contains(tensor.data_ptr()));
    EXPECT_EQ(arena->stats().allocated.count, 256);
  }
  EXPECT_EQ(arena->stats().allocated.count, 0);
}
}  // namespace
}  // namespace muster
