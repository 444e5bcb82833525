// as_strided: any layout inside the storage.
//
// The recorded operator counts its offset from self's first element, so that its derivative needs
// no storage: as_strided itself translates the absolute offset.
#include <algorithm>
#include <vector>

#include "core/kernels/cpu/copy.h"
#include "core/ops/op_support.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
Layout as_strided_layout(const OpArgs& args, size_t) {
  const Dims sizes = args[1].ints(), strides = args[2].ints();
  MUSTER_CHECK(sizes.size() == strides.size(), ErrorCode::kInvalidArgument,
               "as_strided: as many strides as sizes; got {} and {}", to_string(sizes),
               to_string(strides));
  checked_numel(sizes);
  for (const int64_t stride : strides) {
    MUSTER_CHECK(stride >= 0, ErrorCode::kInvalidArgument,
                 "as_strided: negative strides are not supported; got {}", to_string(strides));
  }
  return {sizes, strides, args.tensor(0).storage_offset() + args[3].integer()};
}

// What a gradient of an as_strided view adds to each element of self: both are laid over one flat
// buffer, so that overlapping elements sum. Elements of self that share memory get their mean.
TensorSpec as_strided_backward_infer(const OpArgs& args) {
  return TensorSpec::contiguous(args[1].ints(), args.tensor(0).dtype(), args.tensor(0).device());
}

template <typename Body>
void for_each_offset(Dims sizes, Dims strides, Body&& body) {
  const int64_t n = numel_of(sizes);
  DimVector index(sizes.size());
  int64_t offset = 0;
  for (int64_t i = 0; i < n; ++i) {
    body(i, offset);
    for (size_t d = sizes.size(); d-- > 0;) {
      offset += strides[d];
      if (++index[d] < sizes[d]) break;
      offset -= strides[d] * sizes[d];
      index[d] = 0;
    }
  }
}

void as_strided_backward_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Dims self_sizes = args[1].ints(), self_strides = args[2].ints();
  const Dims sizes = args[3].ints(), strides = args[4].ints();
  const int64_t start = args[5].integer();
  const int64_t low = std::min<int64_t>(start, 0);
  const int64_t extent = std::max(storage_extent({self_sizes, self_strides, -low}),
                                  storage_extent({sizes, strides, start - low}));
  const Tensor grad = dense(cast_to(args.tensor(0), DType::kF64));
  std::vector<double> flat(static_cast<size_t>(extent)), times(static_cast<size_t>(extent));
  const double* from = grad.data<double>();
  for_each_offset(sizes, strides, [&](int64_t i, int64_t offset) {
    flat[static_cast<size_t>(offset + start - low)] += from[i];
  });
  for_each_offset(self_sizes, self_strides,
                  [&](int64_t, int64_t offset) { times[static_cast<size_t>(offset - low)] += 1; });
  Tensor sums = scratch(self_sizes, DType::kF64);
  double* to = sums.data<double>();
  for_each_offset(self_sizes, self_strides, [&](int64_t i, int64_t offset) {
    const auto at = static_cast<size_t>(offset - low);
    to[i] = flat[at] / times[at];
  });
  kernels::cpu::copy(outs[0], sums);
}

GradList as_strided_derivative(const BackwardContext& c) {
  static const Op& op = find_op("as_strided_backward");
  const TensorSpec& self = c.spec("self");
  return {call_one(op, c.grad(), self.sizes, self.strides, c.arg("size"), c.arg("stride"),
                   c.arg("storage_offset"))};
}

void as_strided_composite(const OpArgs& args, std::span<Tensor> outs) {
  static const Op& op = find_op("as_strided_relative");
  const Tensor& self = args.tensor(0);
  const int64_t offset = args[3].is_none() ? 0 : args[3].integer() - self.storage_offset();
  outs[0] = call_one(op, self, args[1], args[2], offset);
}

constexpr const char* kStorage = "it names storage, which a shard does not have whole";
}  // namespace

MUSTER_DEFINE_OPS(as_strided) {
  table.add(OpDef("as_strided_relative(Tensor(a) self, int[] size, int[] stride, int "
                  "storage_offset) -> Tensor(a)")
                .view(as_strided_layout)
                .derivative(as_strided_derivative)
                .replicate_only(kStorage)
                .fusion(FusionClass::kView)
                .samples({"f(12), [3,2], [4,1], 1", "f(6), [4,3], [1,1], 0"}));
  table.add(OpDef("as_strided_backward(Tensor grad, int[] self_size, int[] self_stride, int[] "
                  "size, int[] stride, int storage_offset) -> Tensor")
                .infer(as_strided_backward_infer)
                .kernel(DeviceType::kCpu, as_strided_backward_kernel)
                .not_differentiable("as_strided is differentiated once")
                .replicate_only(kStorage)
                .samples({"f(3,2), [12], [1], [3,2], [4,1], 1"}));
  table.add(OpDef("as_strided(Tensor(a) self, int[] size, int[] stride, int? storage_offset=None) "
                  "-> Tensor(a)")
                .composite(as_strided_composite)
                .samples({"f(12), [3,2], [4,1], 1"}));
}
}  // namespace muster::ops

namespace muster {
Tensor as_strided(const Tensor& self, Dims size, Dims stride,
                  std::optional<int64_t> storage_offset) {
  static const Op& op = ops::find_op("as_strided");
  return call_one(op, self, size, stride, storage_offset);
}
}  // namespace muster
