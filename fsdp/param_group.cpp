#include "fsdp/param_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "fsdp/rows.h"

namespace muster::fsdp {
namespace {

// Of each parameter in a shared buffer, in bytes.
constexpr int64_t kAlignment = 64;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A 0-dim parameter is cut as one row.
DimVector at_least_one_dim(Dims sizes) { return sizes.empty() ? DimVector{1} : DimVector(sizes); }

}  // namespace

ParamGroup::ParamGroup(std::string name, std::vector<ShardedParam> params, const Options& options)
    : name_(std::move(name)), params_(std::move(params)), options_(options) {
  MUSTER_CHECK(options_.mesh && options_.mesh->num_axes() <= 2, ErrorCode::kInvalidArgument,
               "fully_shard: a mesh of one axis, or of two: {{replicate, shard}}; got {}",
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
  MUSTER_CHECK(options_.gradient_divide_factor.value_or(1) > 0, ErrorCode::kInvalidArgument,
               "fully_shard: gradient_divide_factor must be above 0; got {}",
               *options_.gradient_divide_factor);
  gather_dtype_ = options_.mixed_precision.param_dtype.value_or(dtype_);
  for (size_t i = 0; i < params_.size(); ++i) describe(params_[i], whole[i]);
  make_flat();
  make_local_pieces(whole);
  make_unsharded();
}

void ParamGroup::describe(ShardedParam& param, const Tensor& whole) const {
  const LocalShard* piece = local_shard_of(whole);
  const LocalShard* first = local_shard_of(*params_.front().slots.front());
  MUSTER_CHECK((piece == nullptr) == (first == nullptr), ErrorCode::kInvalidArgument,
               "fully_shard: all parameters of a group are tensor parallel pieces, or none; got {} "
               "for {}, unlike {}\n  fix: parallelize the whole model before fully_shard",
               whole, param.name, params_.front().name);
  param.requires_grad = whole.requires_grad();
  param.is_initialized = !whole.is_meta();
  param.gathered_sizes = at_least_one_dim(whole.sizes());
  if (piece == nullptr) {
    param.sizes = param.gathered_sizes;
    param.spec = {options_.mesh, {}, param.sizes, dtype_};
  } else {
    // In the order of the cuts, so that uneven pieces of uneven pieces come out as they are.
    param.sizes = at_least_one_dim(piece->whole.sizes);
    param.spec = {DeviceMesh::concatenate({piece->whole.mesh, options_.mesh}),
                  piece->whole.placements, param.sizes, dtype_};
    param.has_partial_gradient = piece->has_partial_gradient;
  }
  if (replicas() != nullptr) param.spec.placements.push_back(Placement::replicate());
  param.spec.placements.push_back(Placement::shard(0));
  param.boxes = local_boxes(param.spec);
}

// Gathered in another dtype, rows are cast and sent.
void ParamGroup::make_flat() {
  const int64_t item = item_nbytes(dtype_);
  int64_t numel = 0, own_numel = 0;
  for (ShardedParam& param : params_) {
    param.first_element = numel;
    numel += round_up(numel_of(param.gathered_sizes), kAlignment / item);
    own_numel += numel_of(param.spec.local_sizes());
  }
  if (gather_dtype_ == dtype_ && group().world_size() > 1 && numel > 0)
    shared_ = group().share(numel * item, "parameters of " + name_);
  if (shared_) {
    flat_ = tensor_from_memory(shared_.get(), {numel}, dtype_, [memory = shared_] {});
  } else {
    flat_ = empty_from_spec(TensorSpec::contiguous({own_numel}, dtype_),
                            &group().communication_allocator());
  }
}

void ParamGroup::make_local_pieces(const std::vector<Tensor>& whole) {
  int64_t packed = 0;
  for (size_t i = 0; i < params_.size(); ++i) {
    ShardedParam& param = params_[i];
    const ChunkRange own = own_rows(param);
    const DimVector sizes = param.spec.local_sizes();
    const int64_t at =
        shared_ ? param.first_element + own.offset * row_numel(param.gathered_sizes) : packed;
    const Tensor piece = alias_with_layout(flat_, {sizes, contiguous_strides(sizes), at});
    packed += piece.numel();
    if (param.is_initialized) {
      copy_rows(static_cast<std::byte*>(piece.data_ptr()),
                rows_of(view(whole[i].requires_grad() ? detach(whole[i]) : whole[i],
                             param.gathered_sizes),
                        own.offset, own.size));
    }
    param.local = requires_grad_(shallow_detach(piece), param.requires_grad);
    param.sharded = make_dtensor(param.local, param.spec);
    requires_grad_(param.sharded, param.requires_grad);
    for (Tensor* slot : param.slots) *slot = param.sharded;
  }
}

// Whole parameters exist as objects from now on; their memory only while they are gathered.
void ParamGroup::make_unsharded() {
  const int world = group().world_size();
  for (ShardedParam& param : params_) {
    const Tensor whole =
        empty_from_spec(TensorSpec::contiguous(param.gathered_sizes, gather_dtype_));
    param.unsharded = requires_grad_(whole, param.requires_grad);
    if (param.requires_grad) {
      ++num_wanted_;
      register_post_accumulate_grad_hook(param.unsharded,
                                         [this, &param](const Tensor&) { note_gradient(param); });
    }
    param.unsharded.storage()->release_memory();
  }
  for (int rank = 0; rank < world; ++rank) {
    for (const ShardedParam& param : params_) {
      const ChunkRange range = chunk_range(param.gathered_sizes[0], world, rank);
      pieces_.push_back(rows_of(param.unsharded, range.offset, range.size));
    }
  }
}

// A recomputed module brings its gradients in several parts.
void ParamGroup::note_gradient(ShardedParam& param) {
  if (!param.has_arrived) {
    param.has_arrived = true;
    ++num_arrived_;
  }
  if (on_gradient_) on_gradient_();
}

void ParamGroup::forget_arrivals() noexcept {
  num_arrived_ = 0;
  for (ShardedParam& param : params_) param.has_arrived = false;
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
    Storage& storage = *param.unsharded.storage();
    if (shared_) {
      std::byte* const at = shared_.get() + param.first_element * item_nbytes(dtype_);
      storage.adopt_memory(at, storage.nbytes(), [memory = shared_] {});
    } else {
      storage.restore_memory();
    }
  }
  if (params_.empty()) {  // a root whose blocks hold everything
    state_ = State::kUnsharded;
    return;
  }
  ++num_gathers_;
  gather_ = start_gather(async_op);
  state_ = State::kGathering;
}

ProcessGroup::WorkPtr ParamGroup::start_gather(bool async_op) {
  const auto site = ProcessGroup::Site::current();
  const std::string label = fmt::format("{}, gather {}", name_, ++gathers_of_pass_);
  if (shared_) return group().all_gather_in_place(flat_, async_op, site, label);
  gather_input_ = gather_input();
  return group().all_gather(pieces_, gather_input_, async_op, site, label);
}

void ParamGroup::unshard() {
  may_be_read_ = !params_.empty();
  start_unshard(false);
  if (state_ == State::kGathering) {
    group().run(gather_);
    gather_.reset();
    gather_input_.reset();
    state_ = State::kUnsharded;
  }
  for (ShardedParam& param : params_) {
    for (Tensor* slot : param.slots) *slot = param.unsharded;
  }
}

void ParamGroup::show_shards() noexcept {
  for (ShardedParam& param : params_) {
    for (Tensor* slot : param.slots) *slot = param.sharded;
  }
}

void ParamGroup::reshard() {
  if (state_ == State::kGathering) unshard();
  if (state_ == State::kSharded) return;
  show_shards();
  for (ShardedParam& param : params_) param.unsharded.storage()->release_memory();
  state_ = State::kSharded;
  if (shared_ && std::exchange(may_be_read_, false)) {
    group().run(group().barrier(false, ProcessGroup::Site::current(),
                                fmt::format("{}, release {}", name_, gathers_of_pass_)));
  }
}

int64_t ParamGroup::shard_nbytes() const noexcept {
  int64_t nbytes = 0;
  for (const ShardedParam& param : params_) nbytes += param.local.nbytes();
  return nbytes;
}

ReduceOp ParamGroup::reduce_op() const noexcept {
  return options_.gradient_divide_factor ? ReduceOp::kSum : options_.reduce_op;
}
DType ParamGroup::reduce_dtype() const noexcept {
  return options_.mixed_precision.reduce_dtype.value_or(gather_dtype_);
}
int64_t ParamGroup::padded_numel(const ShardedParam& param) const {
  return most_rows(param) * row_numel(param.gathered_sizes);
}
int64_t ParamGroup::most_rows(const ShardedParam& param) const {
  return chunk_range(param.gathered_sizes[0], group().world_size(), 0).size;
}
ChunkRange ParamGroup::own_rows(const ShardedParam& param) const {
  return chunk_range(param.gathered_sizes[0], group().world_size(), group().group_rank());
}

GroupMemory ParamGroup::memory(bool reshards) const {
  std::vector<ParamShape> shapes;
  for (const ShardedParam& param : params_) {
    shapes.push_back({param.name, param.gathered_sizes[0], row_numel(param.gathered_sizes),
                      param.requires_grad});
  }
  GroupMemory memory = group_memory(name_, std::move(shapes), dtype_, options_.mixed_precision,
                                    group().world_size(), group().group_rank(), reshards);
  if (shared_) memory.gathered = 0;
  if (reduces_in_place())
    memory.reduce_input -= memory.reduce_input / group().world_size();  // its own rows
  return memory;
}
}  // namespace muster::fsdp
