#pragma once
/// A number argument: integer, floating or bool. Its type takes part in promotion, its value never.

#include <cstdint>

#include "core/tensor/dtype.h"

namespace muster {

class Scalar {
 public:
  Scalar(int value) : Scalar(static_cast<int64_t>(value)) {}       // NOLINT
  Scalar(int64_t value) : kind_(Kind::kInt), int_(value) {}        // NOLINT
  Scalar(double value) : kind_(Kind::kDouble), double_(value) {}   // NOLINT
  Scalar(float value) : kind_(Kind::kDouble), double_(value) {}    // NOLINT
  Scalar(bool value) : kind_(Kind::kBool), int_(value ? 1 : 0) {}  // NOLINT

  [[nodiscard]] bool is_floating() const noexcept { return kind_ == Kind::kDouble; }
  [[nodiscard]] bool is_bool() const noexcept { return kind_ == Kind::kBool; }
  [[nodiscard]] double to_double() const noexcept {
    return is_floating() ? double_ : static_cast<double>(int_);
  }
  [[nodiscard]] int64_t to_int() const noexcept {
    return is_floating() ? static_cast<int64_t>(double_) : int_;
  }
  /// f32 for a floating scalar, i64 for an integer, bool for a bool.
  [[nodiscard]] DType dtype() const noexcept {
    return is_floating() ? kDefaultDType : is_bool() ? DType::kBool : DType::kI64;
  }

 private:
  enum class Kind : uint8_t { kInt, kDouble, kBool };
  Kind kind_;
  union {
    int64_t int_;
    double double_;
  };
};

}  // namespace muster
