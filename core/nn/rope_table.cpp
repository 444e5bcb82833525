#include "core/nn/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/autograd/autograd.h"
#include "core/ops/creation.h"
#include "core/ops/views.h"

namespace muster {
namespace {
constexpr int64_t kMinRows = 64;

double llama3_frequency(const RopeConfig& config, double frequency) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const auto old = static_cast<double>(config.original_max_positions);
  if (wavelength > old / config.low_freq_factor) return frequency / config.factor;
  if (wavelength < old / config.high_freq_factor) return frequency;
  const double ramp = (old / wavelength - config.low_freq_factor) /
                      (config.high_freq_factor - config.low_freq_factor);
  return (1.0 - ramp) * frequency / config.factor + ramp * frequency;
}
}  // namespace

std::vector<double> rope_frequencies(const RopeConfig& config, int64_t dim) {
  MUSTER_CHECK(dim > 0 && dim % 2 == 0 && config.theta > 0, ErrorCode::kInvalidArgument,
               "rope: the number of features must be even and theta above 0; got {} and {}", dim,
               config.theta);
  const bool is_llama3 = config.scaling == RopeConfig::Scaling::kLlama3;
  const bool is_linear = config.scaling == RopeConfig::Scaling::kLinear;
  MUSTER_CHECK(!is_linear || config.factor > 0, ErrorCode::kInvalidArgument,
               "rope: linear scaling needs a factor above 0; got {}", config.factor);
  MUSTER_CHECK(!is_llama3 || (config.factor > 0 && config.low_freq_factor > 0 &&
                              config.high_freq_factor > config.low_freq_factor &&
                              config.original_max_positions > 0),
               ErrorCode::kInvalidArgument,
               "rope: llama3 scaling needs 0 < low_freq_factor < high_freq_factor, factor and "
               "original_max_positions above 0; got {}, {}, {} and {}",
               config.low_freq_factor, config.high_freq_factor, config.factor,
               config.original_max_positions);
  std::vector<double> frequencies;
  for (int64_t i = 0; i < dim; i += 2) {
    const double plain =
        1.0 / std::pow(config.theta, static_cast<double>(i) / static_cast<double>(dim));
    const double scaled = is_linear ? plain / config.factor : plain;
    frequencies.push_back(is_llama3 ? llama3_frequency(config, plain) : scaled);
  }
  return frequencies;
}

void RopeTable::grow(int64_t length, DType dtype) {
  int64_t rows = kMinRows;
  while (rows < length) rows *= 2;
  const auto half = static_cast<int64_t>(frequencies_.size());
  std::vector<double> cos, sin;
  cos.reserve(static_cast<size_t>(rows * half));
  sin.reserve(static_cast<size_t>(rows * half));
  for (int64_t position = 0; position < rows; ++position) {
    for (const double frequency : frequencies_) {
      const double angle = static_cast<double>(position) * frequency;
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
  }
  const NoGradGuard no_grad;
  cos_ = to(from_vector(cos, {rows, 1, half}), dtype);
  sin_ = to(from_vector(sin, {rows, 1, half}), dtype);
}

std::pair<Tensor, Tensor> RopeTable::at(int64_t first, int64_t length, const Tensor& like) {
  const DType dtype = like.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  if (like.is_meta()) {
    const auto half = static_cast<int64_t>(frequencies_.size());
    const Tensor none = empty({length, 1, half}, dtype, like.device());
    return {none, none};
  }
  const std::lock_guard lock(mutex_);
  if (!cos_.defined() || cos_.dtype() != dtype || cos_.size(0) < first + length) {
    grow(first + length, dtype);
  }
  return {narrow(cos_, 0, first, length), narrow(sin_, 0, first, length)};
}
}  // namespace muster
