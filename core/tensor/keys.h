#pragma once
/// Dispatch keys: which systems take part in a call. A set is a bit mask; the highest bit runs
/// first.
///
/// A tensor carries the keys of what it is; a thread adds or removes keys for the modes that are
/// on. The order is the contract (design: Tracer above Autocast above Autograd above the backends).

#include <bit>
#include <cstdint>
#include <string_view>

namespace muster {

enum class DispatchKey : uint8_t {
  kCpu,  ///< kernels on strided CPU memory
  kCuda,
  kMeta,           ///< shapes only, no data
  kFunctionalize,  ///< in-place writes become new values (capture)
  kDTensor,        ///< sharded tensors: placements decide, then the local call
  kAutograd,       ///< records the call when an input requires a gradient
  kAutocast,       ///< casts inputs before they are recorded
  kVmap,
  kTracer,  ///< records the program
};
inline constexpr int kNumDispatchKeys = 9;

/// "Cpu", "Autograd", ...
std::string_view to_string(DispatchKey key) noexcept;

class DispatchKeySet {
 public:
  constexpr DispatchKeySet() = default;
  constexpr DispatchKeySet(DispatchKey key)
      : bits_(static_cast<uint16_t>(1u << static_cast<int>(key))) {}  // NOLINT

  [[nodiscard]] constexpr bool has(DispatchKey key) const {
    return (bits_ & DispatchKeySet(key).bits_) != 0;
  }
  [[nodiscard]] constexpr bool empty() const { return bits_ == 0; }
  /// The key whose kernel runs. Only for a set that is not empty.
  [[nodiscard]] constexpr DispatchKey highest() const {
    return static_cast<DispatchKey>(std::bit_width(bits_) - 1);
  }
  constexpr DispatchKeySet operator|(DispatchKeySet other) const {
    return from_bits(bits_ | other.bits_);
  }
  constexpr DispatchKeySet operator&(DispatchKeySet other) const {
    return from_bits(bits_ & other.bits_);
  }
  constexpr DispatchKeySet operator-(DispatchKeySet other) const {
    return from_bits(bits_ & static_cast<uint16_t>(~other.bits_));
  }
  constexpr DispatchKeySet& operator|=(DispatchKeySet other) { return *this = *this | other; }
  constexpr bool operator==(const DispatchKeySet&) const = default;
  /// All keys below `key`: where a handler of `key` goes on.
  static constexpr DispatchKeySet below(DispatchKey key) {
    return from_bits((1u << static_cast<int>(key)) - 1u);
  }

 private:
  static constexpr DispatchKeySet from_bits(uint32_t bits) {
    DispatchKeySet set;
    set.bits_ = static_cast<uint16_t>(bits);
    return set;
  }
  uint16_t bits_ = 0;
};

}  // namespace muster
