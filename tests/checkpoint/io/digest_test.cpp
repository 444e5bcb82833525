#include "checkpoint/io/digest.h"

#include <cstring>

#include "tests/checkpoint/random_layout.h"
#include "tests/support/matchers.h"

namespace muster::checkpoint {
namespace {

std::vector<std::byte> random_bytes(Rng& rng, int64_t nbytes) {
  std::vector<std::byte> bytes(static_cast<size_t>(nbytes));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng());
  return bytes;
}

std::vector<std::byte> cut(const std::vector<std::byte>& full, const Dims& sizes, const Box& box,
                           int64_t item) {
  std::vector<std::byte> part(static_cast<size_t>(numel(box.sizes) * item));
  for_each_run(box, box, full_box(sizes), [&](int64_t to, int64_t from, int64_t n) {
    std::memcpy(part.data() + to * item, full.data() + from * item, static_cast<size_t>(n * item));
  });
  return part;
}

TEST(Digest, AnyTilingAddsUpToTheWholeForEveryDType) {
  Rng rng(31);
  for (int i = 0; i < 2500; ++i) {
    SCOPED_TRACE(i);
    const DType dtype = static_cast<DType>(i % kNumDTypes);
    const int64_t item = item_nbytes(dtype);
    const Dims sizes = random_sizes(rng);
    const std::vector<std::byte> full = random_bytes(rng, numel(sizes) * item);
    uint64_t sum = 0;
    for (const Box& box : random_tiling(rng, sizes)) {
      const std::vector<std::byte> part =
          numel(box.sizes) == 0 ? std::vector<std::byte>() : cut(full, sizes, box, item);
      sum += digest_box(dtype, sizes, box, part);
    }
    ASSERT_EQ(sum, digest_box(dtype, sizes, full_box(sizes), full));
  }
}

TEST(Digest, EveryBitAndEveryPositionCounts) {
  Rng rng(32);
  const Dims sizes{64};
  std::vector<std::byte> bytes = random_bytes(rng, 64 * 4);
  const uint64_t before = digest_box(DType::kF32, sizes, full_box(sizes), bytes);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    ASSERT_NE(digest_box(DType::kF32, sizes, full_box(sizes), bytes), before) << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }
}

// A sum that is linear in value or position misses this one: regions of equal values, exchanged at
// a distance of a power of two.
TEST(Digest, ExchangedConstantRegionsAreNoticed) {
  for (const int64_t half : {4, 64, 1024, 65536}) {
    std::vector<float> values(static_cast<size_t>(2 * half), 1.0f);
    std::fill_n(values.begin(), half, 0.0f);
    const Dims sizes{2 * half};
    const auto digest = [&] {
      return digest_box(DType::kF32, sizes, full_box(sizes), std::as_bytes(std::span(values)));
    };
    const uint64_t before = digest();
    std::rotate(values.begin(), values.begin() + half, values.end());
    EXPECT_NE(digest(), before) << half;
  }
}

TEST(Digest, ShapeAndDTypeArePartOfATensorsDigest) {
  EXPECT_NE(finish_digest(5, DType::kF32, {2, 3}), finish_digest(5, DType::kF32, {3, 2}));
  EXPECT_NE(finish_digest(5, DType::kF32, {2}), finish_digest(5, DType::kI32, {2}));
  EXPECT_NE(finish_digest(0, DType::kF32, {0}), finish_digest(0, DType::kF32, {0, 0}));
}

// Stored checkpoints hold digests, so the function can never change.
TEST(Digest, ValuesAreFixedForEver) {
  const std::vector<float> values{0.0f, 1.0f, -2.5f};
  const uint64_t sum = digest_run(DType::kF32, std::as_bytes(std::span(values)), 7);
  EXPECT_EQ(sum, 15208242011734488921u);
  EXPECT_EQ(finish_digest(sum, DType::kF32, {10}), 12128523440070739822u);
  TotalDigest total;
  total.add("a", 1);
  total.add("b", 2);
  EXPECT_EQ(total.value(), 1523780629837264808u);
}
}  // namespace
}  // namespace muster::checkpoint
