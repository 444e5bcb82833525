#include "train/permutation.h"

#include "core/base/error.h"
#include "core/base/hash.h"

namespace muster {

Permutation::Permutation(int64_t n, uint64_t key)
    : n_(static_cast<uint64_t>(n)), key_(key), half_bits_(1) {
  MUSTER_CHECK(n >= 1, ErrorCode::kInvalidArgument, "permutation: at least one element; got {}", n);
  while (half_bits_ < 31 && uint64_t{1} << (2 * half_bits_) < n_) ++half_bits_;
}

uint64_t Permutation::encrypt(uint64_t value) const noexcept {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (uint64_t round = 0; round < 6; ++round) {
    const uint64_t mixed = hash_combine(hash_combine(key_, round), right);
    const uint64_t next = (left ^ (mixed >> 17)) & mask;
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

int64_t Permutation::operator()(int64_t position) const noexcept {
  // The domain is at most four times n: a few rounds of walking bring the value back into [0, n).
  uint64_t value = static_cast<uint64_t>(position);
  do {
    value = encrypt(value);
  } while (value >= n_);
  return static_cast<int64_t>(value);
}
}  // namespace muster
