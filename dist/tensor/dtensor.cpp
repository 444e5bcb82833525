#include "dist/tensor/dtensor.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster {
namespace {
std::vector<int> axis_sizes(const DeviceMesh& mesh) {
  std::vector<int> sizes;
  for (const DeviceMesh::Axis& axis : mesh.axes()) sizes.push_back(axis.size);
  return sizes;
}

const DTensorImpl& impl_of(const Tensor& tensor, const char* operation) {
  MUSTER_CHECK(is_dtensor(tensor), ErrorCode::kInvalidArgument, "{}: a DTensor is wanted; got {}",
               operation, tensor);
  return *static_cast<const DTensorImpl*>(tensor.impl());
}
}  // namespace

ShardBox DTensorSpec::box_of(std::span<const int> coordinate) const {
  return shard_box(sizes, axis_sizes(*mesh), coordinate, placements);
}

ShardBox DTensorSpec::local_box() const { return box_of(mesh->coordinate()); }

std::string DTensorSpec::describe() const {
  return fmt::format("{}{} as {} on {}", dtype, to_string(Dims(sizes)), to_string(placements),
                     mesh->describe());
}

DTensorImpl::DTensorImpl(Tensor local_in, DTensorSpec spec_in)
    : TensorImpl(
          local_in.storage(), spec_in.dtype, DispatchKey::kDTensor,
          Layout{spec_in.sizes, contiguous_strides(spec_in.sizes), local_in.storage_offset()}),
      local(std::move(local_in)),
      spec(std::move(spec_in)) {
  keys_own |= local.impl()->keys_own - DispatchKey::kAutograd;
}

const DTensorSpec& dtensor_spec(const Tensor& tensor) {
  return impl_of(tensor, "dtensor_spec").spec;
}
const Tensor& local_tensor(const Tensor& tensor) { return impl_of(tensor, "local_tensor").local; }

Tensor make_dtensor(Tensor local, DTensorSpec spec) {
  const ShardBox box = spec.local_box();
  MUSTER_CHECK(
      std::equal(box.sizes.begin(), box.sizes.end(), local.sizes().begin(), local.sizes().end()) &&
          local.dtype() == spec.dtype,
      ErrorCode::kInvalidArgument, "dtensor: the local piece must be {}{} for {}; got {}",
      spec.dtype, to_string(Dims(box.sizes)), spec.describe(), local);
  return Tensor(make_ref<DTensorImpl>(std::move(local), std::move(spec)));
}
}  // namespace muster
