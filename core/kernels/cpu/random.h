#pragma once
/// Random fills: pure functions of (seed, offset, index of the element in the logical tensor).
///
/// Element i draws 32-bit word i % 4 of Philox counter i / 4 under (seed, offset); normals use the
/// words in pairs, 64-bit draws two words each. So a shard draws what the whole tensor has at its
/// place, in any layout, on any number of threads. Floats other than f64 draw in f32 and round. An
/// operator takes one offset from its Generator; no state is kept here.

#include "core/tensor/generator.h"
#include "core/tensor/scalar.h"
#include "core/tensor/tensor_view.h"

namespace muster::kernels::cpu {

/// The stream of one operator, and which box of its logical tensor a view is.
struct RandomStream {
  uint64_t seed = 0;
  uint64_t offset = 0;
  Dims global_sizes = {};  ///< sizes of the logical tensor; empty: the view is all of it
  Dims box_start = {};     ///< where in it the view's element (0, .., 0) lies
};

/// The word that element `index` draws: the definition that all kernels here follow.
inline uint32_t random_word(uint64_t seed, uint64_t offset, uint64_t index) noexcept {
  return philox4x32(seed, offset, index / 4)[index % 4];
}
/// In [0, 1), a multiple of 2^-24.
inline float uniform_from_word(uint32_t word) noexcept {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}
/// True with probability p: what bernoulli and dropout decide by. Exact for p = 0 and 1.
inline bool bernoulli_from_word(uint32_t word, double p) noexcept {
  return static_cast<double>(word) < p * 0x1p32;
}

/// lo + (hi - lo) * u with u in [0, 1); f64 has 53 bits.
void uniform(const TensorView& out, double lo, double hi, const RandomStream& stream);

/// mean + std * z, z by Box-Muller.
void normal(const TensorView& out, double mean, double std, const RandomStream& stream);

/// 1 with probability p, else 0. @error kInvalidArgument  p outside [0, 1]
void bernoulli(const TensorView& out, double p, const RandomStream& stream);
/// The same with a probability per element. @shape p as out
void bernoulli(const TensorView& out, const TensorView& p, const RandomStream& stream);

/// out = in / (1 - p) with probability 1 - p, else 0; 0 throughout for p = 1. The same call on the
/// gradient is the backward. Kept where bernoulli(p) under the same stream gives 0. `out` may be
/// in.
/// @error kInvalidArgument  p outside [0, 1]
void dropout(const TensorView& out, const TensorView& in, double p, const RandomStream& stream);

/// Integers in [low, high). @error kInvalidArgument  high <= low
void randint(const TensorView& out, int64_t low, int64_t high, const RandomStream& stream);

/// -log(1 - u) / rate.
void exponential(const TensorView& out, double rate, const RandomStream& stream);

/// A permutation of 0 .. n-1. @shape out [n]; not sharded
void randperm(const TensorView& out, uint64_t seed, uint64_t offset);

}  // namespace muster::kernels::cpu
