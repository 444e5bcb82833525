#include "checkpoint/io/digest.h"

#include <fmt/format.h>

#include <cstring>

#include "core/base/error.h"
#include "core/base/hash.h"

namespace muster::checkpoint {
namespace {
// Odd constants with well-spread bits: the golden ratio and two from splitmix64.
constexpr uint64_t kPosition = 0x9E3779B97F4A7C15ull;
constexpr uint64_t kValue = 0xBF58476D1CE4E5B9ull;
constexpr uint64_t kFinal = 0x94D049BB133111EBull;

// The shift and multiply make the sum non-linear in position and value: without them a swap of two
// constant regions at a distance of a power of two could cancel.
inline uint64_t contribution(uint64_t bits, uint64_t position) noexcept {
  uint64_t x = bits * kValue + position;
  x ^= x >> 32;
  x *= kFinal;
  return x ^ (x >> 29);
}

template <typename Word>
[[gnu::always_inline]] inline uint64_t sum_words(const std::byte* bytes, size_t nbytes,
                                                 uint64_t first_index) noexcept {
  uint64_t sum = 0;
  for (size_t i = 0; i < nbytes / sizeof(Word); ++i) {
    Word word;
    std::memcpy(&word, bytes + i * sizeof(Word), sizeof(Word));
    sum += contribution(word, (first_index + i + 1) * kPosition);
  }
  return sum;
}

// AVX-512 has the 64-bit multiply that makes these loops run at memory speed (17 GB/s against 4 for
// f32 on one core). All clones give the same sum. Sanitizers cannot run before the loader's choice.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("default", "arch=x86-64-v4"), optimize("O3")))
#endif
uint64_t
sum_items(int64_t item_size, const std::byte* bytes, size_t nbytes, uint64_t first_index) {
  switch (item_size) {
    case 1:
      return sum_words<uint8_t>(bytes, nbytes, first_index);
    case 2:
      return sum_words<uint16_t>(bytes, nbytes, first_index);
    case 4:
      return sum_words<uint32_t>(bytes, nbytes, first_index);
    default:
      return sum_words<uint64_t>(bytes, nbytes, first_index);
  }
}
}  // namespace

uint64_t digest_run(DType dtype, std::span<const std::byte> bytes, int64_t first_index) noexcept {
  return sum_items(item_nbytes(dtype), bytes.data(), bytes.size(),
                   static_cast<uint64_t>(first_index));
}

uint64_t digest_box(DType dtype, const Dims& global_sizes, const Box& box,
                    std::span<const std::byte> bytes) {
  const int64_t item = item_nbytes(dtype);
  MUSTER_ASSERT(static_cast<int64_t>(bytes.size()) == numel(box.sizes) * item,
                "{} bytes for box {} of {}", bytes.size(), to_string(box), dtype);
  BoxDigest digest(dtype, global_sizes, box);
  digest.update(bytes);
  return digest.sum();
}

BoxDigest::BoxDigest(DType dtype, const Dims& global_sizes, const Box& box)
    : dtype_(dtype),
      item_nbytes_(item_nbytes(dtype)),
      walk_(run_walk(box, box, full_box(global_sizes))),
      index_(walk_.counts.size(), 0),
      run_begin_(walk_.begin_b) {}

void BoxDigest::update(std::span<const std::byte> bytes) {
  MUSTER_ASSERT(static_cast<int64_t>(bytes.size()) % item_nbytes_ == 0, "{} bytes of {}",
                bytes.size(), to_string(dtype_));
  while (!bytes.empty()) {
    const int64_t left = walk_.run_numel - done_in_run_;
    const int64_t n = std::min<int64_t>(left, static_cast<int64_t>(bytes.size()) / item_nbytes_);
    const size_t nbytes = static_cast<size_t>(n * item_nbytes_);
    sum_ += digest_run(dtype_, bytes.first(nbytes), run_begin_ + done_in_run_);
    bytes = bytes.subspan(nbytes);
    done_in_run_ += n;
    if (done_in_run_ == walk_.run_numel) next_run();
  }
}

void BoxDigest::next_run() {
  done_in_run_ = 0;
  for (size_t d = index_.size(); d-- > 0;) {
    run_begin_ += walk_.stride_b[d];
    if (++index_[d] < walk_.counts[d]) return;
    run_begin_ -= walk_.stride_b[d] * walk_.counts[d];
    index_[d] = 0;
  }
}

uint64_t finish_digest(uint64_t sum, DType dtype, const Dims& global_sizes) noexcept {
  uint64_t digest = hash_combine(hash_text(to_string(dtype)), sum);
  for (const int64_t n : global_sizes) digest = hash_combine(digest, static_cast<uint64_t>(n));
  return hash_combine(digest, global_sizes.size());
}

void TotalDigest::add(std::string_view name, uint64_t tensor_digest) noexcept {
  value_ = hash_combine(hash_combine(value_, hash_text(name)), tensor_digest);
}
}  // namespace muster::checkpoint
