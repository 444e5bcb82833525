#pragma once
/// How parameters begin: a spec per parameter, and values that are a pure function of it.
///
/// A value depends on (seed, parameter name, index in the whole parameter) alone. So a model that
/// is built on the meta device, sharded and then initialised equals, bit for bit, one that is
/// initialised and then sharded; and no parameter depends on the order of the others.

#include <cstdint>
#include <string>
#include <string_view>

#include "core/tensor/tensor.h"

namespace muster {

struct InitSpec {
  enum class Kind : uint8_t {
    kNone,  ///< left as it is
    kConstant,
    kNormal,
    kUniform,
  };
  Kind kind = Kind::kNone;
  double a = 0.0;  ///< the constant, the mean, or the lower bound
  double b = 0.0;  ///< the standard deviation, or the upper bound

  static constexpr InitSpec zeros() { return {Kind::kConstant, 0.0, 0.0}; }
  static constexpr InitSpec ones() { return {Kind::kConstant, 1.0, 0.0}; }
  static constexpr InitSpec normal(double std, double mean = 0.0) {
    return {Kind::kNormal, mean, std};
  }
  static constexpr InitSpec uniform(double low, double high) { return {Kind::kUniform, low, high}; }
  constexpr bool operator==(const InitSpec&) const = default;
};

/// Fills `tensor` as `spec` says; `name` is the dotted name of the parameter in the model.
///
/// A shard passes the sizes of the whole parameter and where its own element (0, .., 0) lies in it;
/// without them the tensor is the whole parameter. Records nothing.
/// @error kInvalidArgument the box leaves the whole parameter
void init_parameter(const Tensor& tensor, const InitSpec& spec, uint64_t seed,
                    std::string_view name, Dims global_sizes = {}, Dims box_start = {});

}  // namespace muster
