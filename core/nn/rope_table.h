#pragma once
/// Angles of rotary position embedding: frequencies by their scaling, and tables of cosine and
/// sine.
///
/// Frequencies and angles are computed in f64 and rounded once, whatever the model's dtype. A table
/// grows with the longest sequence seen and is shared by the blocks of a model. Rotation itself is
/// the operator `rope`.

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "core/tensor/tensor.h"

namespace muster {

struct RopeConfig {
  enum class Scaling : uint8_t {
    kNone,
    kLinear,  ///< every frequency divided by `factor`: positions are interpolated
    kLlama3,  ///< low frequencies divided by `factor`, high ones kept, a ramp between
  };
  double theta = 10000.0;  ///< base: frequency i is theta^(-2i / dim)
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_positions = 8192;
};

/// Radians per position of each pair of features; `dim` features turn.
/// @error kInvalidArgument an odd dim, or a scaling that makes no sense
/// @source transformers 5.24, ROPE_INIT_FUNCTIONS "default", "linear" and "llama3"
std::vector<double> rope_frequencies(const RopeConfig& config, int64_t dim);

class RopeTable {
 public:
  RopeTable(const RopeConfig& config, int64_t dim) : frequencies_(rope_frequencies(config, dim)) {}

  /// Cosines and sines of positions [first, first + length), for tensors [B, length, heads, dim] of
  /// `like`'s dtype and device. @shape both [length, 1, dim / 2], f32 (f64 for f64) @thread any
  std::pair<Tensor, Tensor> at(int64_t first, int64_t length, const Tensor& like);

 private:
  void grow(int64_t length, DType dtype);

  const std::vector<double> frequencies_;
  std::mutex mutex_;  // guards what follows: stages of a pipeline may run on several threads
  Tensor cos_, sin_;
};

}  // namespace muster
