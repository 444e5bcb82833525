#include "dist/group/reduce.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/base/stream_copy.h"

namespace muster {
namespace {
// One call writes past the cache, the pieces do not: the bits must be the same.
void expect_large_equals_pieces(ReduceOp op, DType dtype, bool in_place) {
  SCOPED_TRACE(testing::Message() << "dtype " << static_cast<int>(dtype) << " op "
                                  << static_cast<int>(op) << (in_place ? " in place" : ""));
  const int64_t item = item_nbytes(dtype);
  const int64_t count = 3 * kStreamNbytes / item + 5;
  std::vector<std::vector<std::byte>> inputs(3);
  uint32_t state = 17;
  for (auto& input : inputs) {
    input.resize(static_cast<size_t>(count * item));
    for (std::byte& byte : input) {
      state = state * 1664525 + 1013904223;
      byte = static_cast<std::byte>((state >> 24) & 0x3f);  // small finite numbers in any dtype
    }
  }
  std::vector<std::byte> expected(inputs[0].size());
  for (int64_t from = 0; from < count; from += 1000) {
    std::vector<const std::byte*> at;
    for (const auto& input : inputs) at.push_back(input.data() + from * item);
    reduce_buffers(op, dtype, expected.data() + from * item, at,
                   std::min<int64_t>(1000, count - from));
  }
  std::vector<std::byte> other(expected.size());
  std::byte* const out = in_place ? inputs[1].data() : other.data();
  const std::vector<const std::byte*> sources{inputs[0].data(), inputs[1].data(), inputs[2].data()};
  reduce_buffers(op, dtype, out, sources, count);
  EXPECT_EQ(std::memcmp(out, expected.data(), expected.size()), 0);
}

TEST(ReduceBuffers, LargeOutputsHaveTheBitsOfSmallOnes) {
  for (const bool in_place : {false, true}) {
    for (const DType dtype :
         {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI64, DType::kU8}) {
      expect_large_equals_pieces(ReduceOp::kSum, dtype, in_place);
    }
    expect_large_equals_pieces(ReduceOp::kAvg, DType::kF32, in_place);
    expect_large_equals_pieces(ReduceOp::kMax, DType::kBF16, in_place);
  }
}
TEST(ReduceBuffers, IntegersWrapAround) {
  const int64_t large = INT64_MAX, two = 2, out_of_range = INT64_MIN + 1;
  const std::vector<const std::byte*> sources{reinterpret_cast<const std::byte*>(&large),
                                              reinterpret_cast<const std::byte*>(&two)};
  int64_t out = 0;
  reduce_buffers(ReduceOp::kSum, DType::kI64, reinterpret_cast<std::byte*>(&out), sources, 1);
  EXPECT_EQ(out, out_of_range);
  reduce_buffers(ReduceOp::kProduct, DType::kI64, reinterpret_cast<std::byte*>(&out), sources, 1);
  EXPECT_EQ(out, -2);
  const int8_t small = 127, one = 1;
  const std::vector<const std::byte*> bytes{reinterpret_cast<const std::byte*>(&small),
                                            reinterpret_cast<const std::byte*>(&one)};
  int8_t sum = 0;
  reduce_buffers(ReduceOp::kSum, DType::kI8, reinterpret_cast<std::byte*>(&sum), bytes, 1);
  EXPECT_EQ(sum, -128);
}
}  // namespace
}  // namespace muster
