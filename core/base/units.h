#pragma once
/// Sizes with units. A raw integer elsewhere says its unit in the name (`numel`, `nbytes`).

#include <compare>
#include <cstdint>
#include <string>

namespace muster {

/// A number of bytes.
struct Bytes {
  int64_t count = 0;
  auto operator<=>(const Bytes&) const = default;
  Bytes operator+(Bytes other) const { return {count + other.count}; }
  Bytes operator-(Bytes other) const { return {count - other.count}; }
  Bytes& operator+=(Bytes other) {
    count += other.count;
    return *this;
  }
};

constexpr Bytes operator""_B(unsigned long long n) { return {static_cast<int64_t>(n)}; }
constexpr Bytes operator""_KiB(unsigned long long n) { return {static_cast<int64_t>(n << 10)}; }
constexpr Bytes operator""_MiB(unsigned long long n) { return {static_cast<int64_t>(n << 20)}; }
constexpr Bytes operator""_GiB(unsigned long long n) { return {static_cast<int64_t>(n << 30)}; }

/// "64 KiB", "1.5 MiB", "7 B".
std::string format_bytes(Bytes bytes);

}  // namespace muster
