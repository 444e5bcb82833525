// dist.backend nccl: muster-train has no CUDA tensors, and says so instead of trying.
#include <gmock/gmock.h>

#include "tests/train/job.h"

namespace muster {
namespace {
using ::testing::HasSubstr;

class NcclJob : public EndToEnd {};

TEST_F(NcclJob, IsRefusedByNameWithoutARestart) {
  const Ended ended =
      run("--nproc-per-node 2 --max-restarts 3", "dist.backend=nccl run.dir=" + dir("nccl"));
  EXPECT_EQ(ended.status, exit_status(ErrorCode::kUnimplemented)) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("dist.backend: nccl moves CUDA tensors, and those of "
                                      "muster-train are on the CPU"));
  EXPECT_THAT(ended.output, HasSubstr("use dist.backend shm (one host) or gloo"));
  EXPECT_THAT(ended.output, ::testing::Not(HasSubstr("attempt 1")));
}
}  // namespace
}  // namespace muster
