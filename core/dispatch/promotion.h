#pragma once
/// The dtype in which operands of one call meet.
///
/// Tensors with dims outrank 0-dim tensors, which outrank numbers; a lower-ranked operand counts
/// only when its category is higher. Values are never inspected. @source torch.result_type

#include "core/dispatch/value.h"

namespace muster {

/// @error kInvalidArgument for a Value that is neither tensor nor number
DType result_type(std::span<const Value> operands);
inline DType result_type(const Value& a, const Value& b) {
  const Value both[] = {a, b};
  return result_type(both);
}

/// True when a result of type `from` may be stored into `to`: no float into integer, nothing but
/// bool into bool.
bool can_cast(DType from, DType to) noexcept;

}  // namespace muster
