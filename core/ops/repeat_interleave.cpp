// repeat_interleave: a number of repeats is a view and a copy; a tensor of them is made a list of
// indices first, whose length depends on data.
#include "core/ops/creation.h"
#include "core/ops/indexing.h"
#include "core/ops/op_support.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
// The counts as i64, row-major.
std::vector<int64_t> counts_of(const Tensor& repeats) {
  MUSTER_CHECK(!repeats.is_meta(), ErrorCode::kFailedPrecondition,
               "repeat_interleave: the size of the result depends on data; got {}", repeats);
  const Tensor wide = dense(cast_to(repeats, DType::kI64));
  const int64_t* data = wide.data<int64_t>();
  std::vector<int64_t> counts(data, data + wide.numel());
  for (const int64_t count : counts) {
    MUSTER_CHECK(count >= 0, ErrorCode::kInvalidArgument,
                 "repeat_interleave: repeats can not be negative; got {}", count);
  }
  return counts;
}

TensorSpec indices_infer(const OpArgs& args) {
  const Tensor& repeats = args.tensor(0);
  MUSTER_CHECK(
      repeats.ndim() == 1 && (repeats.dtype() == DType::kI64 || repeats.dtype() == DType::kI32),
      ErrorCode::kInvalidArgument,
      "repeat_interleave: repeats must be 0-dim or 1-dim tensor of i64 or i32; got {}", repeats);
  int64_t total = 0;
  for (const int64_t count : counts_of(repeats)) total += count;
  return TensorSpec::contiguous({total}, repeats.dtype(), repeats.device());
}

template <typename T>
void write_indices(T* out, const std::vector<int64_t>& counts) {
  for (size_t i = 0; i < counts.size(); ++i) {
    out = std::fill_n(out, counts[i], static_cast<T>(i));
  }
}

void indices_kernel(const OpArgs& args, std::span<Tensor> outs) {
  const std::vector<int64_t> counts = counts_of(args.tensor(0));
  if (outs[0].dtype() == DType::kI64) {
    write_indices(outs[0].data<int64_t>(), counts);
  } else {
    write_indices(outs[0].data<int32_t>(), counts);
  }
}

Tensor indices_of(const Tensor& repeats) {
  static const Op& op = find_op("repeat_interleave_indices");
  return call_one(op, repeats);
}

Tensor by_number(const Tensor& self, int64_t repeats, int64_t dim) {
  MUSTER_CHECK(repeats >= 0, ErrorCode::kInvalidArgument,
               "repeat_interleave: repeats can not be negative; got {}", repeats);
  const Tensor apart = unsqueeze(self, dim + 1);
  DimVector wide(apart.sizes()), joined(self.sizes());
  wide[static_cast<size_t>(dim) + 1] = repeats;
  joined[static_cast<size_t>(dim)] *= repeats;
  return view(clone(expand(apart, wide), MemoryFormat::kContiguous), joined);
}

Tensor by_tensor(const Tensor& self, const Tensor& repeats, int64_t dim) {
  Tensor counts = repeats.ndim() == 0 ? reshape(repeats, {1}) : repeats;
  if (counts.ndim() == 1 && counts.size(0) == 1) counts = expand(counts, {self.size(dim)});
  MUSTER_CHECK(counts.ndim() != 1 || counts.size(0) == self.size(dim), ErrorCode::kInvalidArgument,
               "repeat_interleave: repeats must have the same size as input along dim; got {} "
               "repeats for size {}",
               counts.size(0), self.size(dim));
  return index_select(self, dim, indices_of(counts));
}

// (self, repeats, dim); without repeats self is the repeats, and the result indices.
void composite(const OpArgs& args, std::span<Tensor> outs) {
  if (args[1].is_none()) {
    outs[0] = indices_of(args.tensor(0));
    return;
  }
  const bool flat = args[2].is_none() || args.tensor(0).ndim() == 0;
  const Tensor self = flat ? reshape(args.tensor(0), {-1}) : args.tensor(0);
  const int64_t dim =
      args[2].is_none() ? 0 : wrap_dim(args[2].integer(), self.ndim(), "repeat_interleave");
  outs[0] = args[1].is_tensor() ? by_tensor(self, args.tensor(1), dim)
                                : by_number(self, args[1].integer(), dim);
}
}  // namespace

MUSTER_DEFINE_OPS(repeat_interleave) {
  table.add(OpDef("repeat_interleave_indices(Tensor repeats) -> Tensor")
                .infer(indices_infer)
                .kernel(DeviceType::kCpu, indices_kernel)
                .not_differentiable("the result is places")
                .replicate_only("the size of the result depends on data")
                .samples({"x3(4)"}));
  table.add(composed(
      "repeat_interleave(Tensor self, Tensor? repeats=None, int? dim=None) -> Tensor", composite,
      {"f(2,3), 2, 1", "f(2,3), 3, None", "f(2,3), x3(3), -1", "x3(4), None, None"}));
}
}  // namespace muster::ops

namespace muster {
Tensor repeat_interleave(const Tensor& self, const Operand& repeats, std::optional<int64_t> dim) {
  static const Op& op = ops::find_op("repeat_interleave");
  return call_one(op, self, repeats, dim);
}
}  // namespace muster
