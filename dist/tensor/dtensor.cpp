#include "dist/tensor/dtensor.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/tensor/wrapper_hooks.h"
#include "dist/tensor/dtensor_dispatch.h"

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

Tensor detach_dtensor(const Tensor& source) {
  const auto& from = impl_of(source, "detach");
  const auto impl = make_ref<DTensorImpl>(from.local, from.spec);
  impl->is_copied_view = from.is_copied_view;
  const Tensor copy(impl);
  copy.impl()->set_layout(source.layout());
  copy.impl()->is_inference = from.is_inference;
  return copy;
}

Tensor readable_local(const Tensor& source) {
  const auto& from = impl_of(source, "item");
  const auto& placements = from.spec.placements;
  MUSTER_CHECK(std::all_of(placements.begin(), placements.end(),
                           [](Placement placement) { return placement.is_replicate(); }),
               ErrorCode::kFailedPrecondition,
               "item: the value must be replicated, else each rank reads another one; got {}\n"
               "  fix: read full_tensor(x).item()",
               from.spec.describe());
  return from.local;
}

Tensor replicated_beside(const Tensor& plain, const Tensor& wrapper) {
  const DTensorSpec& like = impl_of(wrapper, "constant").spec;
  return make_dtensor(plain, {like.mesh, std::vector<Placement>(like.placements.size()),
                              DimVector(plain.sizes()), plain.dtype()});
}
}  // namespace

void install_dtensor() {
  static const bool installed = [] {
    set_wrapper_hooks(
        {.detach = detach_dtensor, .readable = readable_local, .replicated = replicated_beside});
    set_key_handler(DispatchKey::kDTensor, dispatch_dtensor);
    return true;
  }();
  static_cast<void>(installed);
}

ShardBox DTensorSpec::box_of(std::span<const int> coordinate) const {
  return shard_box(sizes, axis_sizes(*mesh), coordinate, placements);
}

ShardBox DTensorSpec::local_box() const { return box_of(mesh->coordinate()); }

DimVector DTensorSpec::local_sizes() const {
  return shard_sizes(sizes, axis_sizes(*mesh), mesh->coordinate(), placements);
}

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
  install_dtensor();
  const DimVector wanted = spec.local_sizes();
  MUSTER_CHECK(
      std::equal(wanted.begin(), wanted.end(), local.sizes().begin(), local.sizes().end()) &&
          local.dtype() == spec.dtype,
      ErrorCode::kInvalidArgument, "dtensor: the local piece must be {}{} for {}; got {}",
      spec.dtype, to_string(Dims(wanted)), spec.describe(), local);
  return Tensor(make_ref<DTensorImpl>(std::move(local), std::move(spec)));
}
}  // namespace muster
