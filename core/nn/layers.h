#pragma once
/// Layers: modules with parameters around one operator each.
///
/// Made under DeviceGuard(kMetaDevice) they have shapes only; to_empty() and reset_parameters(seed)
/// then give them values. Parameters begin uninitialised: call reset_parameters or load_state.

#include <optional>

#include "core/nn/module.h"

namespace muster {

struct LinearOptions {
  int64_t in_features = 0;
  int64_t out_features = 0;
  bool bias = true;
  /// Of the weight; by default uniform in +-1/sqrt(in_features), as PyTorch. The bias is zero
  /// unless this is absent.
  std::optional<InitSpec> weight_init = {};
};

/// x @ weight^T + bias. @shape weight [out, in]
class Linear final : public Module {
 public:
  explicit Linear(const LinearOptions& options);
  [[nodiscard]] const Tensor& weight() const noexcept { return weight_; }
  [[nodiscard]] const Tensor& bias() const noexcept { return bias_; }

 protected:
  Tensor compute(const Tensor& input) override;

 private:
  Tensor weight_;
  Tensor bias_;
};

/// Rows of a table. Input: i64 indices.
class Embedding final : public Module {
 public:
  Embedding(int64_t num_embeddings, int64_t embedding_dim, InitSpec init = InitSpec::normal(1.0));
  [[nodiscard]] const Tensor& weight() const noexcept { return weight_; }

 protected:
  Tensor compute(const Tensor& input) override;

 private:
  Tensor weight_;
};

class LayerNorm final : public Module {
 public:
  explicit LayerNorm(int64_t size, double eps = 1e-5, bool bias = true);

 protected:
  Tensor compute(const Tensor& input) override;

 private:
  double eps_;
  Tensor weight_;
  Tensor bias_;
};

class RmsNorm final : public Module {
 public:
  explicit RmsNorm(int64_t size, double eps = 1e-6);

 protected:
  Tensor compute(const Tensor& input) override;

 private:
  double eps_;
  Tensor weight_;
};

/// Zeroes elements in training mode; draws from the thread's default generator.
class Dropout final : public Module {
 public:
  /// @error kInvalidArgument p outside [0, 1]
  explicit Dropout(double p);
  [[nodiscard]] double p() const noexcept { return p_; }

 protected:
  Tensor compute(const Tensor& input) override;

 private:
  double p_;
};

/// `approximate` is "none" or "tanh".
class Gelu final : public Module {
 public:
  explicit Gelu(std::string approximate = "none")
      : Module("Gelu"), approximate_(std::move(approximate)) {}

 protected:
  Tensor compute(const Tensor& input) override;

 private:
  std::string approximate_;
};

}  // namespace muster
