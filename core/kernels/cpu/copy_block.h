#pragma once
/// Blocks: short contiguous runs of one compute type, in which kernels see operands of any dtype
/// and layout.
///
/// A BlockReader hands out the operand's own memory where that is contiguous and of the compute
/// type and copies into the caller's buffer otherwise; a BlockWriter mirrors it. Both are plain
/// values.

#include <cstdint>

#include "core/kernels/cpu/iterate.h"
#include "core/tensor/tensor_view.h"

namespace muster::kernels::cpu {

/// The types in which arithmetic runs. Smaller ones widen on load and narrow on store.
enum class ComputeType : uint8_t { kF32, kF64, kI64, kI32 };
inline constexpr int kNumComputeTypes = 4;
inline constexpr int64_t kBlockNumel = 512;

ComputeType compute_type(DType dtype) noexcept;
/// The dtype that a compute type is stored in without conversion.
DType dtype_of_compute(ComputeType type) noexcept;

/// A buffer for one block of any compute type.
struct BlockBuffer {
  alignas(64) std::byte bytes[kBlockNumel * 8];  // NOLINT: left unset
};

using LoadBlock = void (*)(void* to, const void* from, int64_t stride, int64_t count);
using StoreBlock = void (*)(void* to, int64_t stride, const void* from, int64_t count);
LoadBlock block_loader(DType from, ComputeType to) noexcept;
StoreBlock block_storer(ComputeType from, DType to) noexcept;

class BlockReader {
 public:
  BlockReader() = default;
  /// `data` is the address of the nest's element 0.
  BlockReader(const void* data, DType dtype, const LoopNest& nest, int operand, ComputeType type);
  BlockReader(const TensorView& view, const LoopNest& nest, int operand, ComputeType type)
      : BlockReader(view.data, view.dtype, nest, operand, type) {}

  /// Elements [begin, begin + count) of the nest, moved by `base` elements, as compute type;
  /// perhaps in `buffer`, which must hold `count`.
  const void* read(int64_t begin, int64_t count, void* buffer, int64_t base = 0) const;

 private:
  const std::byte* data_ = nullptr;
  const LoopNest* nest_ = nullptr;
  int operand_ = 0;
  int64_t item_ = 0;
  int64_t compute_item_ = 0;
  bool same_type_ = false;
  bool contiguous_ = false;
  LoadBlock load_ = nullptr;
};

class BlockWriter {
 public:
  BlockWriter(const TensorView& view, const LoopNest& nest, int operand, ComputeType type);

  /// Where to compute elements [begin, begin + count): in place if possible, else `buffer`.
  void* target(int64_t begin, int64_t count, void* buffer) const;
  /// Stores what was computed; nothing to do if `from` is the place itself.
  void write(int64_t begin, int64_t count, const void* from) const;

 private:
  [[nodiscard]] std::byte* direct(int64_t begin, int64_t count) const;
  std::byte* data_;
  const LoopNest* nest_;
  int operand_;
  int64_t item_;
  int64_t compute_item_;
  bool same_type_;
  bool contiguous_;
  StoreBlock store_;
};

/// Cuts [begin, end) into blocks of at most kBlockNumel that, where the innermost dim is long
/// enough to pay, do not cross its ends: `body(block_begin, count)`.
template <typename Body>
void for_each_block(const LoopNest& nest, int64_t begin, int64_t end, const Body& body) {
  constexpr int64_t kLongRow = 128;
  const int64_t inner = nest.inner_size();
  const bool cut_rows = nest.ndim > 1 && inner >= kLongRow;
  while (begin < end) {
    int64_t count = end - begin < kBlockNumel ? end - begin : kBlockNumel;
    if (cut_rows) {
      const int64_t to_row_end = inner - begin % inner;
      if (to_row_end < count) count = to_row_end;
    }
    body(begin, count);
    begin += count;
  }
}

}  // namespace muster::kernels::cpu
