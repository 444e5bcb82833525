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

// (x, from sizes, strides, offset, to sizes, strides, offset, mean)
TensorSpec through_infer(const OpArgs& args) {
  return TensorSpec::contiguous(args[4].ints(), args.tensor(0).dtype(), args.tensor(0).device());
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

// Lays x over a flat buffer in one layout, summing what overlaps, and reads it in another. Where
// elements of the whole tensor share memory each takes an equal part: `divide_out` says that the
// whole is the result, else it is x.
void through_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const Dims from = args[1].ints(), from_strides = args[2].ints();
  const Dims to = args[4].ints(), to_strides = args[5].ints();
  const bool divide_out = args[7].boolean();
  const int64_t low = std::min(args[3].integer(), args[6].integer());
  const int64_t from_start = args[3].integer() - low, to_start = args[6].integer() - low;
  const auto extent = static_cast<size_t>(std::max(storage_extent({from, from_strides, from_start}),
                                                   storage_extent({to, to_strides, to_start})));
  std::vector<double> sums(extent), sharers(extent);
  for_each_offset(
      divide_out ? to : from, divide_out ? to_strides : from_strides, [&](int64_t, int64_t offset) {
        sharers[static_cast<size_t>(offset + (divide_out ? to_start : from_start))] += 1;
      });
  const Tensor x = dense(cast_to(args.tensor(0), DType::kF64));
  const double* read = x.data<double>();
  for_each_offset(from, from_strides, [&](int64_t i, int64_t offset) {
    const auto at = static_cast<size_t>(offset + from_start);
    sums[at] += divide_out ? read[i] : read[i] / sharers[at];
  });
  const Tensor result = scratch(to, DType::kF64);
  double* write = result.data<double>();
  for_each_offset(to, to_strides, [&](int64_t i, int64_t offset) {
    const auto at = static_cast<size_t>(offset + to_start);
    write[i] = divide_out ? sums[at] / sharers[at] : sums[at];
  });
  kernels::cpu::copy(outs[0], result);
}

GradList as_strided_derivative(const BackwardContext& c) {
  static const Op& op = find_op("through_storage");
  const TensorSpec& self = c.spec("self");
  return {call_one(op, c.grad(), c.arg("size"), c.arg("stride"), c.arg("storage_offset"),
                   self.sizes, self.strides, 0, true)};
}

GradList through_derivative(const BackwardContext& c) {
  static const Op& op = find_op("through_storage");
  return {call_one(op, c.grad(), c.arg("to_size"), c.arg("to_stride"), c.arg("to_offset"),
                   c.arg("from_size"), c.arg("from_stride"), c.arg("from_offset"),
                   !c.arg("divide_out").boolean())};
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
  table.add(OpDef("through_storage(Tensor x, int[] from_size, int[] from_stride, int from_offset, "
                  "int[] to_size, int[] to_stride, int to_offset, bool divide_out) -> Tensor")
                .infer(through_infer)
                .kernel(DeviceType::kCpu, through_kernel)
                .derivative(through_derivative)
                .replicate_only(kStorage)
                .samples({"f(3,2), [3,2], [4,1], 1, [12], [1], 0, true"}));
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
