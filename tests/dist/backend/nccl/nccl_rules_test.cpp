// What nccl refuses, and why: no GPU is needed for a refusal.
#ifdef MUSTER_WITH_NCCL
#include "dist/backend/nccl/nccl_rules.h"

#include <nccl.h>

#include "dist/backend/nccl/cuda.h"
#include "dist/backend/nccl/nccl_backend.h"
#include "dist/store/hash_store.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::AllOf;
using testing::FailsWith;
using ::testing::HasSubstr;

constexpr Device kDevice{DeviceType::kCuda, 0};

// Metadata only: nothing reads what a refusal is about.
Tensor on(Device device, DType dtype = DType::kF32) {
  auto storage = make_ref<Storage>(4 * item_nbytes(dtype), device);
  return Tensor(
      make_ref<TensorImpl>(std::move(storage), dtype, DispatchKey::kCuda, Layout{{4}, {1}, 0}));
}

std::optional<Error> refusal_of(CollectiveKind kind, const Tensor& tensor,
                                ReduceOp op = ReduceOp::kSum, int peer = kNoPeer) {
  CollectiveRequest request;
  request.descriptor.kind = kind;
  request.descriptor.op = op;
  request.descriptor.dtype = tensor.dtype();
  request.descriptor.peer = peer;
  request.inputs = {tensor};
  return nccl::refusal(request, kDevice, 1);
}

Result<void> result_of(const std::optional<Error>& error) {
  if (error) return *error;
  return {};
}

TEST(NcclRules, TensorsElsewhereAreRefusedWithWhatToUseInstead) {
  EXPECT_THAT(result_of(refusal_of(CollectiveKind::kAllReduce, on(kCpuDevice))),
              FailsWith(ErrorCode::kInvalidArgument,
                        AllOf(HasSubstr("all_reduce: nccl moves tensors of cuda:0; got f32[4] on "
                                        "cpu"),
                              HasSubstr("dist.backend shm or gloo"))));
  EXPECT_THAT(result_of(refusal_of(CollectiveKind::kBroadcast, on({DeviceType::kCuda, 1}))),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("on cuda:1")));
  EXPECT_OK(result_of(refusal_of(CollectiveKind::kAllReduce, on(kDevice))));
}

TEST(NcclRules, ReductionsThatNcclHasNotAreRefusedByName) {
  for (const ReduceOp op : {ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor}) {
    EXPECT_THAT(
        result_of(refusal_of(CollectiveKind::kReduceScatter, on(kDevice, DType::kI32), op)),
        FailsWith(ErrorCode::kUnimplemented,
                  HasSubstr("reduce_scatter: nccl reduces u8, i8, i32, i64, f16, bf16, f32, f64 by "
                            "sum, avg, product, min, max; got i32 by " +
                            std::string(to_string(op)))));
  }
  int taken = 0;
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    const bool has_reduction = dtype != DType::kBool && dtype != DType::kI16;
    EXPECT_EQ(result_of(refusal_of(CollectiveKind::kReduce, on(kDevice, dtype))).ok(),
              has_reduction)
        << to_string(dtype);
    // Whatever is only moved goes as bytes.
    EXPECT_OK(result_of(refusal_of(CollectiveKind::kAllGather, on(kDevice, dtype))));
    taken += has_reduction ? 1 : 0;
  }
  EXPECT_EQ(taken, 8);
}

TEST(NcclRules, DtypesAndOperationsKeepTheirMeaning) {
  EXPECT_EQ(nccl::reduction_dtype(DType::kBF16), ncclBfloat16);
  EXPECT_EQ(nccl::reduction_dtype(DType::kI64), ncclInt64);
  EXPECT_EQ(nccl::reduction_op(ReduceOp::kAvg), ncclAvg);
  EXPECT_EQ(nccl::reduction_op(ReduceOp::kMin), ncclMin);
  EXPECT_EQ(nccl::reduction_op(ReduceOp::kMax), ncclMax);
  EXPECT_EQ(nccl::code_of(ncclRemoteError), ErrorCode::kPeerLost);
  EXPECT_EQ(nccl::code_of(ncclSystemError), ErrorCode::kIo);
  EXPECT_EQ(nccl::code_of(ncclInvalidUsage), ErrorCode::kInternal);
}

TEST(NcclRules, AMessageToOneselfIsRefused) {
  EXPECT_THAT(result_of(refusal_of(CollectiveKind::kSend, on(kDevice), ReduceOp::kSum, 1)),
              FailsWith(ErrorCode::kUnimplemented, HasSubstr("a rank to itself")));
  EXPECT_OK(result_of(refusal_of(CollectiveKind::kSend, on(kDevice), ReduceOp::kSum, 0)));
}

TEST(NcclBackend, WithoutADeviceItSaysSoAtOnceOnEveryRank) {
  if (cuda::count_devices().ok()) GTEST_SKIP() << "this machine has a CUDA device";
  const auto store = std::make_shared<HashStore>();
  for (const int rank : {0, 1}) {
    const TimePoint start = real_clock().now();
    EXPECT_THAT(NcclBackend::open_world(
                    {.store = store, .global_rank = rank, .world_size = 2, .local_rank = rank},
                    Deadline::after(60s)),
                FailsWith(ErrorCode::kFailedPrecondition,
                          AllOf(HasSubstr("nccl: no CUDA device: "), HasSubstr("shm or gloo"))));
    EXPECT_LT(real_clock().now() - start, 10s);
    // What the others would read.
    EXPECT_THAT(store->get("nccl/ready/" + std::to_string(rank), Deadline::after(1s)).value(),
                HasSubstr("no CUDA device"));
  }
}

TEST(NcclLibrary, IsTheOneThatTheHeaderDescribes) {
  int version = 0;
  ASSERT_EQ(ncclGetVersion(&version), ncclSuccess);
  EXPECT_GE(version, NCCL_VERSION_CODE);
}
}  // namespace
}  // namespace muster
#endif
