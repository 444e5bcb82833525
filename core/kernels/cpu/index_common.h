#pragma once
/// What the index kernels share: reading i64 and i32 indices, the bounds error, moving elements by
/// size.
///
/// Internal to index*.cpp and gather.cpp.

#include <cstdint>
#include <type_traits>

#include "core/base/error.h"
#include "core/kernels/cpu/copy_convert.h"
#include "core/kernels/cpu/iterate.h"
#include "core/kernels/parallel.h"
#include "core/tensor/tensor_view.h"

namespace muster::kernels::cpu {

inline constexpr int64_t kIndexGrain = 1 << 15;

/// Reads one index by offset.
class IndexReader {
 public:
  /// @error kInvalidArgument  another dtype than i64 and i32
  IndexReader(const char* operation, const TensorView& view) : data_(view.data) {
    MUSTER_CHECK(view.dtype == DType::kI64 || view.dtype == DType::kI32,
                 ErrorCode::kInvalidArgument, "{}: indices must be i64 or i32; got {}", operation,
                 view.dtype);
    is_wide_ = view.dtype == DType::kI64;
  }
  [[nodiscard]] int64_t at(int64_t offset) const noexcept {
    return is_wide_ ? static_cast<const int64_t*>(data_)[offset]
                    : static_cast<const int32_t*>(data_)[offset];
  }

 private:
  const void* data_;
  bool is_wide_;
};

constexpr bool is_in_range(int64_t index, int64_t size) noexcept {
  return static_cast<uint64_t>(index) < static_cast<uint64_t>(size);
}

/// Finds the first index of the view, in row-major order, outside [low, size) and throws. @error
/// kOutOfRange
[[noreturn]] void throw_bad_index(const char* operation, const TensorView& index, int64_t low,
                                  int64_t size, int64_t dim);

/// Calls `body(T{})` with an unsigned integer of that many bytes: enough to move elements.
template <typename Body>
void visit_item_size(int64_t nbytes, Body&& body) {
  switch (nbytes) {
    case 1:
      return body(uint8_t{});
    case 2:
      return body(uint16_t{});
    case 4:
      return body(uint32_t{});
    default:
      return body(uint64_t{});
  }
}

/// Elements per tile where each element is written in one fixed order whatever the tiles: long rows
/// for few threads, so that they stream.
inline int64_t grain_of_ordered_writes(int64_t numel, int64_t writes_per_element) {
  const int64_t share = (numel + num_threads() - 1) / num_threads();
  const int64_t enough = kIndexGrain / (writes_per_element > 0 ? writes_per_element : 1);
  const int64_t grain = share > enough ? share : enough;
  return grain > 16 ? grain : 16;
}

/// a + b as PyTorch adds in the dtype: 16-bit floats through f32, bool as or, integers wrap.
template <typename T>
T add_elements(T a, T b) noexcept {
  if constexpr (kIsStorageFloat<T>) {
    return T(static_cast<float>(a) + static_cast<float>(b));
  } else if constexpr (std::is_same_v<T, bool>) {
    return a || b;
  } else if constexpr (std::is_floating_point_v<T>) {
    return a + b;
  } else {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
}

}  // namespace muster::kernels::cpu
