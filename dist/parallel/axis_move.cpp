#include "dist/parallel/axis_move.h"

#include <numeric>

#include "core/autograd/autograd_meta.h"
#include "core/dispatch/mode.h"
#include "core/ops/ops.h"
#include "dist/tensor/redistribute_local.h"

namespace muster::parallel {
namespace {
Placement with_dim_from_front(Placement placement, int64_t ndim) {
  if (placement.is_shard()) {
    placement.dim = static_cast<int32_t>(wrap_dim(placement.dim, ndim, "tensor parallel"));
  }
  return placement;
}

// The move with dims that count from the front, and what it moves.
struct Transfer {
  AxisMove move;
  DTensorSpec whole;  // of the value before the move
};

Transfer transfer_of(const Tensor& local, AxisMove move) {
  ProcessGroup& group = *move.axis->group(0);
  const int world = group.world_size();
  move.from = with_dim_from_front(move.from, local.ndim());
  move.to = with_dim_from_front(move.to, local.ndim());
  DimVector sizes(local.sizes());
  if (move.from.is_shard()) {
    int64_t& size = sizes[static_cast<size_t>(move.from.dim)];
    const int64_t whole = move.whole_size.value_or(size * world);
    MUSTER_CHECK(chunk_range(whole, world, group.group_rank()).size == size,
                 ErrorCode::kInvalidArgument,
                 "tensor parallel: dim {} of {} elements over {} ranks leaves group rank {} {}; "
                 "got a piece {}",
                 move.from.dim, whole, world, group.group_rank(),
                 chunk_range(whole, world, group.group_rank()).size, local);
    size = whole;
  }
  DTensorSpec whole{move.axis, {move.from}, std::move(sizes), local.dtype()};
  return {std::move(move), std::move(whole)};
}

Tensor run(const Tensor& local, const Transfer& transfer, bool may_overwrite) {
  const AxisMove& move = transfer.move;
  const NoGradGuard no_grad;
  ProcessGroup& group = *move.axis->group(0);
  // Where peers cannot read memory in place anyway, no copy is made for them.
  const bool is_plain = &group.communication_allocator() == &cpu_allocator();
  if (move.from.is_partial() && move.to.is_replicate() && may_overwrite && is_plain &&
      local.is_contiguous()) {
    group.run(group.all_reduce(local));
    return shallow_detach(local);
  }
  const Placement target[] = {move.to};
  const Tensor moved = redistribute_local(local, transfer.whole, target);
  return moved.is_same(local) ? shallow_detach(local) : moved;
}

// The move that the gradient makes.
AxisMove backward_of(const AxisMove& forward, const DTensorSpec& whole) {
  AxisMove back{.axis = forward.axis, .from = forward.to, .to = forward.from};
  if (forward.to.is_replicate() && forward.partial_gradient) back.from = Placement::partial();
  if (forward.from.is_partial()) back.to = Placement::replicate();
  back.partial_gradient = forward.from.is_partial();
  if (back.from.is_shard()) back.whole_size = whole.sizes[static_cast<size_t>(back.from.dim)];
  return back;
}

class MoveNode final : public Node {
 public:
  MoveNode(AxisMove back, bool has_bias) : back_(std::move(back)), has_bias_(has_bias) {}
  GradList apply(GradList&& grads, bool /*create_graph*/) override {
    if (!grads[0].defined()) return GradList(has_bias_ ? 2 : 1);
    Tensor moved = move(contiguous(grads[0]), back_);
    if (!has_bias_) return {std::move(moved)};
    std::vector<int64_t> leading(static_cast<size_t>(moved.ndim() - 1));
    std::iota(leading.begin(), leading.end(), 0);
    Tensor of_bias = leading.empty() ? moved : sum(moved, Dims(leading));
    return {std::move(moved), std::move(of_bias)};
  }
  [[nodiscard]] std::string name() const override { return "parallel_move"; }

 private:
  AxisMove back_;
  bool has_bias_;
};

Tensor record(const Tensor& input, const Tensor& bias, Tensor output, AxisMove back) {
  const bool wanted = input.requires_grad() || (bias.defined() && bias.requires_grad());
  if (!grad_enabled() || !wanted) return output;
  const Ref<Node> node = make_ref<MoveNode>(std::move(back), bias.defined());
  node->add_next_edge(gradient_edge(input));
  if (bias.defined()) node->add_next_edge(gradient_edge(bias));
  node->add_output({DimVector(output.sizes()), output.dtype()});
  set_history(output, node, 0);
  return output;
}

bool is_identity(const AxisMove& move) {
  return move.from == move.to && !(move.to.is_replicate() && move.partial_gradient);
}
}  // namespace

Tensor move(const Tensor& local, const AxisMove& move) {
  const Transfer transfer = transfer_of(local, move);
  if (is_identity(transfer.move)) return local;
  return record(local, {}, run(local, transfer, false), backward_of(transfer.move, transfer.whole));
}

Tensor reduce_and_add_bias(const Tensor& partial, const Tensor& bias, const AxisMove& move) {
  MUSTER_ASSERT(move.from.is_partial(), "a partial sum is reduced; got {}", to_string(move.from));
  const Transfer transfer = transfer_of(partial, move);
  Tensor reduced = run(partial, transfer, true);
  if (bias.defined()) {
    const NoGradGuard no_grad;
    add_(reduced, bias);
  }
  return record(partial, bias, std::move(reduced), backward_of(transfer.move, transfer.whole));
}
}  // namespace muster::parallel
