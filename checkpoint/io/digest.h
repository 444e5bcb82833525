#pragma once
/// Layout-independent digest of tensors.
///
/// Each element contributes a 64-bit mix of its bits and of its row-major position in the global
/// tensor; contributions add up modulo 2^64. So the parts of a tensor can be digested anywhere, in
/// any order and in any cut, and their sums add to the digest of the whole. It proves that a
/// reshard put every element where it belongs. Not a cryptographic hash, and not a checksum of
/// files: those cover bytes as stored (hash.h).

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/plan/box.h"
#include "core/tensor/dtype.h"

namespace muster::checkpoint {

/// The sum of the contributions of consecutive elements, the first one at `first_index`.
uint64_t digest_run(DType dtype, std::span<const std::byte> bytes, int64_t first_index) noexcept;

/// The sum over a box of a tensor, from the box's row-major bytes.
uint64_t digest_box(DType dtype, const Dims& global_sizes, const Box& box,
                    std::span<const std::byte> bytes);

/// digest_box() for bytes that arrive in pieces of whole elements, in order.
class BoxDigest {
 public:
  BoxDigest(DType dtype, const Dims& global_sizes, const Box& box);
  void update(std::span<const std::byte> bytes);
  [[nodiscard]] uint64_t sum() const noexcept { return sum_; }

 private:
  void next_run();

  DType dtype_;
  int64_t item_nbytes_;
  RunWalk walk_;
  Dims index_;
  int64_t run_begin_;
  int64_t done_in_run_ = 0;
  uint64_t sum_ = 0;
};

/// The digest of a whole tensor from the sum over all its elements; covers dtype and shape too.
uint64_t finish_digest(uint64_t sum, DType dtype, const Dims& global_sizes) noexcept;

/// The digest of a set of tensors: add each, by ascending name.
class TotalDigest {
 public:
  void add(std::string_view name, uint64_t tensor_digest) noexcept;
  [[nodiscard]] uint64_t value() const noexcept { return value_; }

 private:
  uint64_t value_ = 0;
};

}  // namespace muster::checkpoint
