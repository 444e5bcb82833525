#pragma once
/// Operand: a tensor or a number, where an operator takes either.
///
/// `mul(x, y)`, `mul(x, 2.0)` and `pow(2, x)` are one function each. A number takes part in type
/// promotion as a number and no 0-dim tensor is made of it. Valid for the call only.

#include <optional>

#include "core/dispatch/value.h"

namespace muster {

class Operand : public Value {
 public:
  Operand(const Tensor& tensor) noexcept : Value(tensor) {}  // NOLINT(google-explicit-constructor)
  Operand(Scalar number) noexcept : Value(number) {}         // NOLINT
  Operand(int number) noexcept : Value(number) {}            // NOLINT
  Operand(int64_t number) noexcept : Value(number) {}        // NOLINT
  Operand(double number) noexcept : Value(number) {}         // NOLINT
  Operand(bool number) noexcept : Value(number) {}           // NOLINT
  /// No bound, for operators such as clamp.
  Operand(std::nullopt_t) noexcept {}  // NOLINT
  explicit Operand(const Value& value) noexcept : Value(value) {}
};

}  // namespace muster
