#pragma once
/// Random numbers: fills, factories and dropout, all drawn from Philox by element index.
///
/// Each call takes one offset of a Generator (the thread's default one unless given), and element i
/// of the logical tensor draws number i under (seed, offset). So results depend on neither layout,
/// threads nor sharding: a shard passes a PhiloxStream that says which box of the whole it is.

#include <optional>

#include "core/ops/creation.h"
#include "core/tensor/generator.h"

namespace muster {

/// Which random numbers one call draws.
struct PhiloxStream {
  uint64_t seed = 0;
  uint64_t offset = 0;
  DimVector global_sizes = {};  ///< sizes of the whole tensor; empty: self is the whole
  DimVector box_start = {};     ///< where in it self's element (0, .., 0) lies

  /// The next offset of a generator, or of the thread's default one.
  static PhiloxStream next(Generator* generator = nullptr);
};

Tensor normal_(const Tensor& self, double mean = 0, double std = 1, Generator* generator = nullptr);
Tensor normal_(const Tensor& self, double mean, double std, const PhiloxStream& stream);
/// In [from, to).
Tensor uniform_(const Tensor& self, double from = 0, double to = 1, Generator* generator = nullptr);
Tensor uniform_(const Tensor& self, double from, double to, const PhiloxStream& stream);
/// 1 with probability p, else 0. @error kInvalidArgument p outside [0, 1]
Tensor bernoulli_(const Tensor& self, double p = 0.5, Generator* generator = nullptr);
Tensor bernoulli_(const Tensor& self, double p, const PhiloxStream& stream);
/// 1 with the probability that each element states.
Tensor bernoulli(const Tensor& self, Generator* generator = nullptr);
/// Density rate * exp(-rate * x).
Tensor exponential_(const Tensor& self, double rate = 1, Generator* generator = nullptr);
/// A normal distribution conditioned on [a, b], by inversion: one draw per element.
/// @error kInvalidArgument a > b, or std <= 0
Tensor trunc_normal_(const Tensor& self, double mean = 0, double std = 1, double a = -2,
                     double b = 2, Generator* generator = nullptr);
/// Integers in [low, high), in any dtype.
Tensor random_(const Tensor& self, int64_t low, int64_t high, Generator* generator = nullptr);

Tensor rand(Dims size, OptionalDType dtype = {}, OptionalDevice device = {},
            Generator* generator = nullptr);
Tensor randn(Dims size, OptionalDType dtype = {}, OptionalDevice device = {},
             Generator* generator = nullptr);
/// i64 unless told otherwise. @error kInvalidArgument high <= low
Tensor randint(int64_t low, int64_t high, Dims size, OptionalDType dtype = {},
               OptionalDevice device = {}, Generator* generator = nullptr);
/// A permutation of 0 .. n-1, i64. Not sharded.
Tensor randperm(int64_t n, Generator* generator = nullptr);
Tensor rand_like(const Tensor& self, Generator* generator = nullptr);
Tensor randn_like(const Tensor& self, Generator* generator = nullptr);

/// Zeroes each element with probability p and divides the others by 1 - p, when `train`; else
/// `input` itself. Keeps (seed, offset), not the mask. @error kInvalidArgument p outside [0, 1]
Tensor dropout(const Tensor& input, double p = 0.5, bool train = true,
               Generator* generator = nullptr);
Tensor dropout(const Tensor& input, double p, const PhiloxStream& stream);

}  // namespace muster
