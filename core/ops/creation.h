#pragma once
/// Operators that make tensors: factories, copies, conversions, joins.
///
/// Names and argument order are PyTorch's. Factories use the thread's default device (DeviceGuard)
/// and f32 unless told otherwise. Nothing here returns a view, but contiguous and to may return
/// `self`.

#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "core/tensor/generator.h"
#include "core/tensor/scalar.h"
#include "core/tensor/tensor.h"

namespace muster {

using OptionalDType = std::optional<DType>;
using OptionalDevice = std::optional<Device>;

Tensor empty(Dims size, OptionalDType dtype = {}, OptionalDevice device = {});
Tensor zeros(Dims size, OptionalDType dtype = {}, OptionalDevice device = {});
Tensor ones(Dims size, OptionalDType dtype = {}, OptionalDevice device = {});
/// The dtype follows `fill_value` unless given: f32, i64 or bool.
Tensor full(Dims size, Scalar fill_value, OptionalDType dtype = {}, OptionalDevice device = {});
/// start, start + step, .. below `end`; i64 when all three are integers.
/// @error kInvalidArgument step 0, or of the wrong sign
Tensor arange(Scalar end, OptionalDType dtype = {}, OptionalDevice device = {});
Tensor arange(Scalar start, Scalar end, Scalar step = 1, OptionalDType dtype = {},
              OptionalDevice device = {});
Tensor linspace(Scalar start, Scalar end, int64_t steps, OptionalDType dtype = {},
                OptionalDevice device = {});
Tensor eye(int64_t n, std::optional<int64_t> m = {}, OptionalDType dtype = {},
           OptionalDevice device = {});

/// Sizes, layout, dtype and device of `self` unless told otherwise.
Tensor empty_like(const Tensor& self, OptionalDType dtype = {});
Tensor zeros_like(const Tensor& self, OptionalDType dtype = {});
Tensor ones_like(const Tensor& self, OptionalDType dtype = {});
Tensor full_like(const Tensor& self, Scalar fill_value, OptionalDType dtype = {});
/// Dtype and device of `self`, sizes as given.
Tensor new_empty(const Tensor& self, Dims size, OptionalDType dtype = {});
Tensor new_zeros(const Tensor& self, Dims size, OptionalDType dtype = {});
Tensor new_ones(const Tensor& self, Dims size, OptionalDType dtype = {});
Tensor new_full(const Tensor& self, Dims size, Scalar fill_value, OptionalDType dtype = {});

/// A CPU tensor of the values: f32 for floating literals, i64 for integers.
Tensor tensor(double value, OptionalDType dtype = {});
Tensor tensor(std::initializer_list<double> values, OptionalDType dtype = {});
Tensor tensor(std::initializer_list<int> values, OptionalDType dtype = {});
Tensor tensor(std::initializer_list<int64_t> values, OptionalDType dtype = {});
Tensor tensor(std::initializer_list<bool> values);
/// A CPU tensor of the values in row-major order; the values are copied.
/// @error kInvalidArgument when their number is not that of `size`
template <typename T>
Tensor from_span(std::span<const T> values, Dims size) {
  Tensor out = empty_from_spec(TensorSpec::contiguous(size, dtype_of<T>));
  MUSTER_CHECK(out.numel() == static_cast<int64_t>(values.size()), ErrorCode::kInvalidArgument,
               "from_span: sizes {} hold {} elements; got {} values", to_string(size), out.numel(),
               values.size());
  std::copy(values.begin(), values.end(), static_cast<T*>(out.data_ptr()));
  return out;
}
template <typename T>
Tensor from_vector(const std::vector<T>& values, Dims size) {
  return from_span(std::span<const T>(values), size);
}
template <typename T>
Tensor from_vector(const std::vector<T>& values) {
  return from_vector(values, {static_cast<int64_t>(values.size())});
}
/// The values in row-major order. @error kInvalidArgument when T is not the dtype
template <typename T>
std::vector<T> to_vector(const Tensor& self);

/// How a copy lies in memory.
enum class MemoryFormat : uint8_t {
  kPreserve,    ///< as self where self is dense, else with its order of dims
  kContiguous,  ///< row-major
};
Tensor clone(const Tensor& self, MemoryFormat memory_format = MemoryFormat::kPreserve);
/// Row-major: `self` when it is so already, else a copy.
Tensor contiguous(const Tensor& self);
/// Another dtype: `self` when it has it already, else a converted copy.
Tensor to(const Tensor& self, DType dtype);
/// Overwrites self with `src`, broadcast and converted. Returns self.
Tensor copy_(const Tensor& self, const Tensor& src, bool non_blocking = false);
Tensor fill_(const Tensor& self, Scalar value);
Tensor fill_(const Tensor& self, const Tensor& value);
Tensor zero_(const Tensor& self);

/// Joins tensors along an existing dim; dtypes are promoted. Empty 1-D tensors are skipped.
Tensor cat(std::span<const Tensor> tensors, int64_t dim = 0);
/// Joins tensors of equal sizes along a new dim.
Tensor stack(std::span<const Tensor> tensors, int64_t dim = 0);
inline Tensor cat(std::initializer_list<Tensor> tensors, int64_t dim = 0) {
  return cat(std::span<const Tensor>(tensors.begin(), tensors.size()), dim);
}
inline Tensor stack(std::initializer_list<Tensor> tensors, int64_t dim = 0) {
  return stack(std::span<const Tensor>(tensors.begin(), tensors.size()), dim);
}
/// Copies self repeats[i] times along dim i; more repeats than dims add dims in front.
Tensor repeat(const Tensor& self, Dims repeats);
Tensor flip(const Tensor& self, Dims dims);
/// Moves elements along dims, those past the end come back at the start; without dims along the
/// flattened tensor.
Tensor roll(const Tensor& self, Dims shifts, Dims dims = {});
/// Zero above (tril) or below (triu) the diagonal of the last two dims.
Tensor tril(const Tensor& self, int64_t diagonal = 0);
Tensor triu(const Tensor& self, int64_t diagonal = 0);

}  // namespace muster
