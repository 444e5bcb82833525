// Backends by name.
#include "dist/backends/backends.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include "dist/backend/fake/fake_backend.h"
#include "dist/group/process_group.h"
#include "dist/store/hash_store.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::AnyOf;
using testing::FailsWith;
using ::testing::HasSubstr;

BackendOptions alone(const std::string& master_addr = "") {
  BackendOptions options;
  options.store = std::make_shared<HashStore>();
  options.master_addr = master_addr;
  return options;
}

TEST(Backends, AreOpenedByTheNamesThatRecipesUse) {
  EXPECT_THAT(backend_names(), ::testing::ElementsAre("shm", "gloo", "fake", "nccl"));
  for (const std::string& name : backend_names()) {
    const auto backend = open_backend(name, alone(), Deadline::after(30s));
    const bool is_left_out = !backend.ok() && backend.error().code() == ErrorCode::kUnimplemented;
    EXPECT_EQ(!why_left_out(name).empty(), is_left_out) << name;
    if (!backend.ok()) {
      EXPECT_THAT(backend, AnyOf(FailsWith(ErrorCode::kUnimplemented, HasSubstr("left it out")),
                                 FailsWith(ErrorCode::kFailedPrecondition,
                                           HasSubstr("nccl: no CUDA device: "))));
      continue;
    }
    EXPECT_EQ(backend.value()->name(), name);
  }
}

TEST(Backends, ShmHasRoomForAllThatTheMachineHolds) {
  const auto backend = open_backend("shm", alone(), Deadline::after(30s)).value();
  const int64_t memory = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  EXPECT_GE(backend->communication_allocator().stats().reserved.count, memory);
}

TEST(Backends, FakeGathersEveryPiece) {
  ProcessGroup::Options options;
  options.global_ranks = {0, 1};
  ProcessGroup group(options, std::make_unique<FakeBackend>(0, 2));
  std::vector<float> data{1, 2, 3};
  std::vector<float> gathered(6);
  const Tensor input = tensor_from_memory(data.data(), {3}, DType::kF32);
  std::vector<Tensor> outputs;
  for (const int64_t at : {0, 1, 3, 4}) {
    const int64_t size = at % 3 == 0 ? 1 : 2;
    outputs.push_back(tensor_from_memory(gathered.data() + at, {size}, DType::kF32));
  }
  group.run(group.all_gather(outputs, input));
  EXPECT_THAT(gathered, ::testing::ElementsAre(1, 2, 3, 1, 2, 3));
}

TEST(Backends, AnUnknownNameIsRefusedWithThoseThatExist) {
  EXPECT_THAT(
      open_backend("mpi", alone(), Deadline::after(1s)),
      FailsWith(ErrorCode::kInvalidArgument, HasSubstr("shm, gloo, fake, nccl; got \"mpi\"")));
  EXPECT_EQ(why_left_out("mpi"), "");
}

TEST(Backends, GlooBindsTheAddressThatLeadsToTheMaster) {
  if (!why_left_out("gloo").empty()) GTEST_SKIP() << why_left_out("gloo");
  const BackendOptions options = alone("127.0.0.1");
  const auto backend = open_backend("gloo", options, Deadline::after(30s));
  ASSERT_OK(backend);
  EXPECT_THAT(options.store->get("gloo/rank/0", Deadline::after(1s)).value(),
              ::testing::EndsWith(" 127.0.0.1"));
  EXPECT_THAT(open_backend("gloo", alone("no-such-host.invalid"), Deadline::after(5s)),
              ::testing::Not(::testing::ResultOf([](const auto& r) { return r.ok(); }, true)));
}
}  // namespace
}  // namespace muster
