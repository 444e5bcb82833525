#pragma once
/// Size classes of small blocks: 64-byte steps up to 512 bytes, then eight steps per doubling.
///
/// Pure arithmetic. Slabs of 2 MiB (8 MiB for the largest classes) are cut into spans, a span holds
/// blocks of one class: so a program that uses many classes a little still touches few huge pages.
/// A block of more than 512 bytes wastes at most 1/9 of itself; smaller ones lose what 64-byte
/// alignment costs anyway. Blocks above kMaxSmallNbytes are not classed.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace muster::internal {

inline constexpr int64_t kMaxSmallNbytes = int64_t{1} << 20;
inline constexpr size_t kNumSizeClasses = 96;
inline constexpr int64_t kHugePageNbytes = int64_t{2} << 20;

/// The class of a request. Only for 1 <= nbytes <= kMaxSmallNbytes.
constexpr size_t size_class_of(int64_t nbytes) noexcept {
  const auto last = static_cast<uint64_t>(nbytes - 1);
  if (last < 512) return last >> 6;
  const auto width = static_cast<uint64_t>(std::bit_width(last));
  return (width - 9) * 8 + (last >> (width - 4)) - 8;
}

namespace detail {
constexpr std::array<int64_t, kNumSizeClasses> make_class_nbytes() {
  std::array<int64_t, kNumSizeClasses> nbytes{};
  for (size_t i = 0; i < kNumSizeClasses; ++i) {
    const int64_t step = i < 8 ? 64 : int64_t{64} << (i / 8 - 1);
    nbytes[i] = i < 8 ? static_cast<int64_t>(i + 1) * 64 : static_cast<int64_t>(9 + i % 8) * step;
  }
  return nbytes;
}
inline constexpr auto kClassNbytes = make_class_nbytes();
}  // namespace detail

/// Bytes of a block of a class; a multiple of 64.
constexpr int64_t class_nbytes(size_t size_class) noexcept {
  return detail::kClassNbytes[size_class];
}

/// Bytes of the span that a class carves its blocks from: at least 8 blocks, so that what is left
/// after the last block stays below 1/8.
constexpr int64_t span_nbytes(size_t size_class) noexcept {
  const int64_t wanted = 8 * class_nbytes(size_class);
  if (wanted <= int64_t{64} << 10) return int64_t{64} << 10;
  if (wanted <= int64_t{512} << 10) return int64_t{512} << 10;
  return wanted <= kHugePageNbytes ? kHugePageNbytes : 4 * kHugePageNbytes;
}

constexpr int64_t blocks_per_span(size_t size_class) noexcept {
  return span_nbytes(size_class) / class_nbytes(size_class);
}

}  // namespace muster::internal
