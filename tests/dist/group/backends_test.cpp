// Backends by name.
#include "dist/backends/backends.h"

#include <gmock/gmock.h>

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
