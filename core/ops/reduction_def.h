#pragma once
/// What the tables of reductions share: dims, output views, and gradients brought back to full
/// size.

#include "core/kernels/cpu/reduce.h"
#include "core/ops/op_support.h"

namespace muster::ops {

/// The output of a reduction as its kernel wants it: with size 1 at each reduced dim.
class ReducedView {
 public:
  ReducedView(const Tensor& out, Dims in_sizes, Dims dims)
      : sizes_(reduced_sizes(in_sizes, dims, /*keepdim=*/true)),
        strides_(contiguous_strides(sizes_)),
        view_(out.data_ptr(), out.dtype(), sizes_, strides_) {}
  ReducedView(const ReducedView&) = delete;
  ReducedView& operator=(const ReducedView&) = delete;
  operator const TensorView&() const noexcept { return view_; }  // NOLINT

 private:
  DimVector sizes_;
  DimVector strides_;
  TensorView view_;
};

/// Metadata of a reduction: row-major, as PyTorch's.
TensorSpec reduced_spec(const Tensor& self, const Value& dims, bool keepdim, DType dtype,
                        const char* operation);

/// A reduced tensor with its dims back as size 1; `keepdim` says whether they are there already.
Tensor with_dims(const Tensor& reduced, Dims dims, bool keepdim);
/// A gradient of a reduction, expanded over the reduced dims.
Tensor unreduced(const Tensor& grad, Dims sizes, Dims dims, bool keepdim);

/// Dims of the recorded call, from its argument `dim`.
inline DimVector dims_of(const BackwardContext& c) {
  return normalized_dims(c.arg("dim"), static_cast<int64_t>(c.spec("self").sizes.size()), "dim");
}

/// Refuses to reduce a dim of size 0 where no element could be the result.
/// @error kInvalidArgument
void check_not_empty(const Tensor& self, Dims dims, const char* operation);

/// Rules of a reduction over argument `dim`: kept dims stay sharded; a reduced one gives `partial`
/// ("P", "P(max)"), or nothing where the shards' results do not combine.
std::vector<std::string> reduction_rules(const char* partial = nullptr);

}  // namespace muster::ops
