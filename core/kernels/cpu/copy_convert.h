#pragma once
/// convert<D>(s): one element of any dtype as any other, by the rules of copy.h.

#include <cstdint>
#include <type_traits>

#include "core/tensor/dtype.h"

namespace muster::kernels::cpu {

template <typename T>
inline constexpr bool kIsStorageFloat = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

template <typename D, typename S>
inline D convert(S value) noexcept {
  if constexpr (std::is_same_v<D, S>) {
    return value;
  } else if constexpr (kIsStorageFloat<S>) {
    return convert<D>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<D, bool>) {
    return value != S{0};
  } else if constexpr (kIsStorageFloat<D>) {
    return D(static_cast<float>(value));
  } else if constexpr (std::is_floating_point_v<S> && std::is_integral_v<D> && sizeof(D) < 4) {
    // Through a wide integer, so that out-of-range values wrap the same way on every path.
    return static_cast<D>(static_cast<int64_t>(value));
  } else {
    return static_cast<D>(value);
  }
}

}  // namespace muster::kernels::cpu
