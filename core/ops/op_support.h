#pragma once
/// What the definitions of operators share: shape rules of elementwise operators, operands made
/// ready for kernels, and small helpers.
///
/// For core/ops only. Nothing here allocates on the path of a call whose operands have one dtype
/// and one contiguous shape. Functions called "not dispatched" work on memory and record nothing.

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "core/dispatch/op_def.h"
#include "core/dispatch/promotion.h"
#include "core/ops/op_registry.h"
#include "core/tensor/tensor_view.h"

namespace muster::ops {

/// Metadata of an elementwise result: broadcast sizes, and strides that follow the operands as
/// PyTorch's do. Numbers and "none" among the operands are ignored.
/// @error kInvalidArgument sizes do not broadcast
/// @source TensorIterator: fast set-ups and reorder_dimensions
TensorSpec pointwise_spec(std::span<const Value> operands, DType dtype, const char* operation);

struct StridedShape {
  Dims sizes;
  Dims strides;
};
/// Strides of a fresh result of sizes `shape`: dims in the order that the operands, the first ones
/// first, lie in memory. Broadcast dims (stride 0) decide nothing.
DimVector result_strides(std::span<const StridedShape> operands, Dims shape);

/// The dtype for operators that are floating for all inputs: f32 for integers and bool.
inline DType float_type(DType dtype) noexcept { return is_floating(dtype) ? dtype : kDefaultDType; }

/// The device of the result of a call: the first that is not the CPU, if any.
Device common_device(std::span<const Value> values) noexcept;

inline bool same_sizes(Dims a, Dims b) noexcept {
  if (a.size() != b.size()) return false;
  // Few elements: a loop beats the call of memcmp that std::equal makes.
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

/// One operand of an elementwise kernel, broadcast to `sizes` by stride 0. A tensor keeps its
/// dtype; a number becomes one element of `number_dtype`.
class KernelOperand {
 public:
  KernelOperand(const Value& value, DType number_dtype, Dims sizes) {
    if (value.is_tensor()) {
      view_ = TensorView(value.tensor());
      if (same_sizes(view_.sizes, sizes)) return;
    }
    adapt(value, number_dtype, sizes);
  }
  KernelOperand(const KernelOperand&) = delete;
  KernelOperand& operator=(const KernelOperand&) = delete;
  operator const TensorView&() const noexcept { return view_; }  // NOLINT

 private:
  void adapt(const Value& value, DType number_dtype, Dims sizes);

  TensorView view_;
  DimVector strides_;
  alignas(8) std::array<std::byte, 8> number_;
};

/// A copy in another dtype, in the layout that preserve_format gives; the tensor itself when it has
/// that dtype. Not dispatched.
Tensor cast_to(const Tensor& tensor, DType dtype);
/// An uninitialised tensor, row-major. Not dispatched.
Tensor scratch(Dims sizes, DType dtype);
/// The tensor in row-major order: itself, or a copy. Not dispatched.
Tensor dense(const Tensor& tensor);
/// The tensor's memory in another layout. `layout` must outlive the view.
TensorView view_with(const Tensor& tensor, const Layout& layout);

/// `dims` wrapped, in rising order; all dims of the tensor when `dims` is none or empty.
/// @error kOutOfRange; kInvalidArgument for a dim named twice
DimVector normalized_dims(const Value& dims, int64_t ndim, const char* operation);
/// Sizes after a reduction over `dims` (wrapped).
DimVector reduced_sizes(Dims sizes, Dims dims, bool keepdim);

/// An operator made of others.
inline OpDef composed(const char* schema, CompositeFn fn, std::vector<std::string> samples) {
  return OpDef(schema).composite(fn).samples(std::move(samples));
}

/// Runs an operator that returns a list.
template <typename... Arguments>
std::vector<Tensor> call_list(const Op& op, const Arguments&... arguments) {
  const Value values[] = {Value(arguments)...};
  const Args args(values, sizeof...(arguments));
  std::vector<Tensor> outs(op.num_outputs(args));
  op.call(args, outs);
  return outs;
}

}  // namespace muster::ops
