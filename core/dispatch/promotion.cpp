#include "core/dispatch/promotion.h"

#include <optional>

namespace muster {
namespace {
int category(DType dtype) { return dtype == DType::kBool ? 0 : is_integral(dtype) ? 1 : 2; }

void join(std::optional<DType>& current, DType dtype) {
  current = current ? promote_types(*current, dtype) : dtype;
}

DType combine(std::optional<DType> higher, std::optional<DType> lower) {
  if (!higher) return *lower;
  if (!lower || category(*lower) <= category(*higher)) return *higher;
  return promote_types(*higher, *lower);
}
}  // namespace

DType result_type(std::span<const Value> operands) {
  // The common call: two tensors of one dtype.
  if (operands.size() == 2 && operands[0].is_tensor() && operands[1].is_tensor()) {
    const DType a = operands[0].tensor().dtype();
    if (a == operands[1].tensor().dtype()) return a;
  }
  std::optional<DType> dims, zero_dims, numbers;
  for (const Value& operand : operands) {
    if (operand.is_tensor()) {
      const Tensor& tensor = operand.tensor();
      join(tensor.ndim() > 0 ? dims : zero_dims, tensor.dtype());
    } else if (operand.is_tensor_list()) {
      for (const Tensor& tensor : operand.tensors())
        join(tensor.ndim() > 0 ? dims : zero_dims, tensor.dtype());
    } else if (!operand.is_none()) {
      join(numbers, operand.scalar().dtype());
    }
  }
  MUSTER_CHECK(dims || zero_dims || numbers, ErrorCode::kInvalidArgument,
               "result_type: at least one operand");
  if (!zero_dims && !numbers) return *dims;
  if (!zero_dims) return combine(dims, numbers);
  return combine(dims, numbers ? combine(zero_dims, numbers) : zero_dims);
}

bool can_cast(DType from, DType to) noexcept {
  if (is_floating(from) && !is_floating(to)) return false;
  return from == DType::kBool || to != DType::kBool;
}
}  // namespace muster
