#include "fsdp/param_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"

namespace muster::fsdp {
namespace {
int64_t row_numel(Dims sizes) {
  int64_t n = 1;
  for (size_t i = 1; i < sizes.size(); ++i) n *= sizes[i];
  return n;
}

// Rows [offset, offset + size) of a contiguous tensor, as raw memory that autograd does not see.
Tensor rows_of(const Tensor& whole, int64_t offset, int64_t size) {
  const Tensor plain = shallow_detach(whole);
  Layout layout = plain.layout();
  layout.offset += offset * row_numel(whole.sizes());
  layout.sizes[0] = size;
  return shallow_detach(alias_with_layout(plain, std::move(layout)));
}

// A 0-dim parameter is cut as one row.
DimVector at_least_one_dim(Dims sizes) { return sizes.empty() ? DimVector{1} : DimVector(sizes); }

void copy_rows(std::byte* to, const Tensor& from) {
  if (from.numel() > 0) std::memcpy(to, from.data_ptr(), static_cast<size_t>(from.nbytes()));
}
}  // namespace

ParamGroup::ParamGroup(std::string name, std::vector<ShardedParam> params, const Options& options)
    : name_(std::move(name)), params_(std::move(params)), options_(options) {
  MUSTER_CHECK(options_.mesh && options_.mesh->num_axes() == 1, ErrorCode::kInvalidArgument,
               "fully_shard: a mesh of one axis; got {}",
               options_.mesh ? options_.mesh->describe() : "none");
  std::vector<Tensor> whole;
  for (ShardedParam& param : params_) whole.push_back(*param.slots.front());
  dtype_ = whole.empty() ? kDefaultDType : whole.front().dtype();
  for (size_t i = 0; i < whole.size(); ++i) {
    MUSTER_CHECK(whole[i].dtype() == dtype_ && is_floating(dtype_), ErrorCode::kInvalidArgument,
                 "fully_shard: parameters of one group have one floating dtype; got {} for {} "
                 "beside {} for {}",
                 whole[i].dtype(), params_[i].name, dtype_, params_[0].name);
    MUSTER_CHECK(whole[i].is_contiguous(), ErrorCode::kInvalidArgument,
                 "fully_shard: parameters must be contiguous; got strides {} for {}",
                 to_string(whole[i].strides()), params_[i].name);
  }
  gather_dtype_ = options_.mixed_precision.param_dtype.value_or(dtype_);
  make_local_pieces(whole);
  make_unsharded();
}

void ParamGroup::make_local_pieces(const std::vector<Tensor>& whole) {
  const std::vector<Placement> placements = {Placement::shard(0)};
  int64_t flat_numel = 0;
  for (size_t i = 0; i < params_.size(); ++i) {
    ShardedParam& param = params_[i];
    param.sizes = at_least_one_dim(whole[i].sizes());
    const DTensorSpec spec{options_.mesh, placements, param.sizes, dtype_};
    param.box = spec.local_box();
    param.requires_grad = whole[i].requires_grad();
    param.is_initialized = !whole[i].is_meta();
    flat_numel += numel_of(param.box.sizes);
  }
  flat_ = empty_from_spec(TensorSpec::contiguous({flat_numel}, dtype_),
                          &group().communication_allocator());
  int64_t at = 0;
  for (size_t i = 0; i < params_.size(); ++i) {
    ShardedParam& param = params_[i];
    const Tensor piece =
        alias_with_layout(flat_, {param.box.sizes, contiguous_strides(param.box.sizes), at});
    at += piece.numel();
    if (param.is_initialized) {
      copy_rows(static_cast<std::byte*>(piece.data_ptr()),
                rows_of(view(whole[i].requires_grad() ? detach(whole[i]) : whole[i], param.sizes),
                        param.box.offsets[0], param.box.sizes[0]));
    }
    param.local = requires_grad_(shallow_detach(piece), param.requires_grad);
    param.sharded = make_dtensor(param.local, {options_.mesh, placements, param.sizes, dtype_});
    requires_grad_(param.sharded, param.requires_grad);
    for (Tensor* slot : param.slots) *slot = param.sharded;
  }
}

// Whole parameters exist as objects from now on; their memory only while they are gathered.
void ParamGroup::make_unsharded() {
  const int world = group().world_size();
  for (ShardedParam& param : params_) {
    const Tensor whole = empty_from_spec(TensorSpec::contiguous(param.sizes, gather_dtype_));
    param.unsharded = requires_grad_(whole, param.requires_grad);
    if (param.requires_grad) {
      ++num_wanted_;
      register_post_accumulate_grad_hook(param.unsharded, [this](const Tensor&) {
        ++num_arrived_;
        if (on_gradient_) on_gradient_();
      });
    }
    param.unsharded.storage()->release_memory();
  }
  for (int rank = 0; rank < world; ++rank) {
    for (const ShardedParam& param : params_) {
      const ChunkRange range = chunk_range(param.sizes[0], world, rank);
      pieces_.push_back(
          rows_of(param.unsharded, std::min(range.offset, param.sizes[0]), range.size));
    }
  }
}

Tensor ParamGroup::gather_input() {
  if (gather_dtype_ == dtype_) return flat_;
  const NoGradGuard no_grad;
  const Tensor cast = empty_from_spec(TensorSpec::contiguous(flat_.sizes(), gather_dtype_),
                                      &group().communication_allocator());
  copy_(cast, flat_);
  return cast;
}

void ParamGroup::start_unshard(bool async_op) {
  if (state_ != State::kSharded) return;
  for (const ShardedParam& param : params_) {
    MUSTER_CHECK(
        param.is_initialized, ErrorCode::kFailedPrecondition,
        "fsdp: parameter {} of group {} was built on the meta device and has no values yet\n"
        "  fix: call fsdp::init_parameters or load a checkpoint before the first forward",
        param.name, name_);
    param.unsharded.storage()->restore_memory();
  }
  gather_input_ = gather_input();
  gather_ = group().all_gather(pieces_, gather_input_, async_op);
  ++num_gathers_;
  state_ = State::kGathering;
}

void ParamGroup::unshard() {
  start_unshard(false);
  if (state_ == State::kUnsharded) return;
  group().run(gather_);
  gather_.reset();
  gather_input_.reset();
  for (ShardedParam& param : params_) {
    for (Tensor* slot : param.slots) *slot = param.unsharded;
  }
  state_ = State::kUnsharded;
}

void ParamGroup::reshard() {
  if (state_ == State::kGathering) unshard();
  if (state_ == State::kSharded) return;
  for (ShardedParam& param : params_) {
    for (Tensor* slot : param.slots) *slot = param.sharded;
    param.unsharded.storage()->release_memory();
  }
  state_ = State::kSharded;
}

void ParamGroup::install_gradient(ShardedParam& param, const Tensor& reduced) {
  const Tensor existing = grad_of(param.local);
  if (existing.defined()) {
    add_(existing, reduced);
    return;
  }
  const Tensor gradient = reduced.dtype() == dtype_ ? reduced : to(reduced, dtype_);
  set_grad(param.local, gradient);
  set_grad(param.sharded,
           make_dtensor(gradient, {options_.mesh, {Placement::shard(0)}, param.sizes, dtype_}));
}

void ParamGroup::reduce_gradients() {
  const NoGradGuard no_grad;
  const int world = group().world_size();
  num_arrived_ = 0;
  std::vector<ShardedParam*> with_grad;
  int64_t padded = 0;
  for (ShardedParam& param : params_) {
    if (!param.requires_grad || !grad_of(param.unsharded).defined()) continue;
    with_grad.push_back(&param);
    padded += chunk_range(param.sizes[0], world, 0).size * row_numel(param.sizes);
  }
  if (with_grad.empty()) return;
  const DType reduce_dtype = options_.mixed_precision.reduce_dtype.value_or(gather_dtype_);
  Allocator& arena = group().communication_allocator();
  const Tensor send =
      empty_from_spec(TensorSpec::contiguous({world * padded}, reduce_dtype), &arena);
  const int64_t item = item_nbytes(reduce_dtype);
  int64_t at = 0;
  for (ShardedParam* param : with_grad) {
    const Tensor whole = to(contiguous(grad_of(param->unsharded)), reduce_dtype);
    set_grad(param->unsharded, {});
    const int64_t row = row_numel(param->sizes);
    const int64_t most = chunk_range(param->sizes[0], world, 0).size;
    for (int rank = 0; rank < world; ++rank) {
      const ChunkRange range = chunk_range(param->sizes[0], world, rank);
      auto* to = static_cast<std::byte*>(send.data_ptr()) + (rank * padded + at) * item;
      copy_rows(to, rows_of(whole, std::min(range.offset, param->sizes[0]), range.size));
      std::memset(to + range.size * row * item, 0,
                  static_cast<size_t>((most - range.size) * row * item));
    }
    at += most * row;
  }
  // The reduced rows become gradients as they lie: no copy out.
  const Tensor received = empty_from_spec(TensorSpec::contiguous({padded}, reduce_dtype));
  group().run(group().reduce_scatter_tensor(received, send, options_.reduce_op));
  at = 0;
  for (ShardedParam* param : with_grad) {
    const DimVector& sizes = param->box.sizes;
    const Tensor rows = alias_with_layout(received, {sizes, contiguous_strides(sizes), at});
    install_gradient(*param, shallow_detach(rows));
    at += chunk_range(param->sizes[0], world, 0).size * row_numel(param->sizes);
  }
}
}  // namespace muster::fsdp
