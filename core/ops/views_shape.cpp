// Views that rearrange dims: view, as_strided, expand, permute and what is made of them.
#include "core/dispatch/mode.h"
#include "core/ops/creation.h"
#include "core/ops/op_support.h"
#include "core/ops/reduction.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
Layout view_layout(const OpArgs& args, size_t) {
  const Tensor& self = args.tensor(0);
  const DimVector sizes = infer_size(args[1].ints(), self.numel(), "view");
  const std::optional<DimVector> strides = view_strides(self.sizes(), self.strides(), sizes);
  MUSTER_CHECK(strides.has_value(), ErrorCode::kInvalidArgument,
               "view: sizes {} cannot view strides {} of sizes {} without a copy; use reshape or "
               "contiguous",
               to_string(Dims(sizes)), to_string(self.strides()), to_string(self.sizes()));
  return {sizes, *strides, self.storage_offset()};
}

Layout expand_view_layout(const OpArgs& args, size_t) {
  return expand_layout(args.tensor(0).layout(), args[1].ints());
}

Layout permute_view_layout(const OpArgs& args, size_t) {
  return permute_layout(args.tensor(0).layout(), args[1].ints());
}

Layout transpose_view_layout(const OpArgs& args, size_t) {
  return transpose_layout(args.tensor(0).layout(), args[1].integer(), args[2].integer());
}

Layout t_layout(const OpArgs& args, size_t) {
  const Tensor& self = args.tensor(0);
  MUSTER_CHECK(self.ndim() <= 2, ErrorCode::kInvalidArgument,
               "t: at most 2 dims, self has {}; got {}; use transpose", self.ndim(), self);
  return self.ndim() < 2 ? self.layout() : transpose_layout(self.layout(), 0, 1);
}

Layout squeeze_view_layout(const OpArgs& args, size_t) {
  const Tensor& self = args.tensor(0);
  DimVector dims = normalized_dims(args[1], self.ndim(), "squeeze");
  Layout out = self.layout();
  for (size_t k = dims.size(); k-- > 0;) {
    if (self.ndim() > 0) out = squeeze_layout(out, dims[k]);
  }
  return out;
}

Layout unsqueeze_view_layout(const OpArgs& args, size_t) {
  return unsqueeze_layout(args.tensor(0).layout(), args[1].integer());
}

Layout alias_layout(const OpArgs& args, size_t) { return args.tensor(0).layout(); }

GradList permute_derivative(const BackwardContext& c) {
  const Dims dims = c.arg("dims").ints();
  const auto n = static_cast<int64_t>(dims.size());
  DimVector inverse(dims.size());
  for (int64_t i = 0; i < n; ++i) {
    inverse[static_cast<size_t>(wrap_dim(dims[static_cast<size_t>(i)], n, "permute"))] = i;
  }
  return {permute(c.grad(), inverse)};
}

GradList as_self(const BackwardContext& c) { return {reshape(c.grad(), c.spec("self").sizes)}; }

void reshape_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  const DimVector sizes = infer_size(args[1].ints(), self.numel(), "reshape");
  if (view_strides(self.sizes(), self.strides(), sizes)) {
    outs[0] = view(self, sizes);
  } else {
    outs[0] = view(clone(self, MemoryFormat::kContiguous), sizes);
  }
}

void flatten_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  const int64_t first = wrap_dim(args[1].integer(), self.ndim(), "flatten");
  const int64_t last = wrap_dim(args[2].integer(), self.ndim(), "flatten");
  MUSTER_CHECK(first <= last, ErrorCode::kInvalidArgument,
               "flatten: start_dim cannot come after end_dim; got {} and {}", first, last);
  if (self.ndim() == 0) {
    outs[0] = reshape(self, {1});
  } else if (first == last) {
    outs[0] = self;
  } else {
    DimVector sizes;
    int64_t joined = 1;
    for (int64_t d = 0; d < self.ndim(); ++d) {
      if (d >= first && d <= last) joined *= self.size(d);
      if (d < first || d > last) sizes.push_back(self.size(d));
      if (d == last) sizes.push_back(joined);
    }
    outs[0] = reshape(self, sizes);
  }
}

void unflatten_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  const auto dim = static_cast<size_t>(wrap_dim(args[1].integer(), self.ndim(), "unflatten"));
  MUSTER_CHECK(!args[2].ints().empty(), ErrorCode::kInvalidArgument,
               "unflatten: sizes must be non-empty; got []");
  const DimVector parts =
      infer_size(args[2].ints(), self.size(static_cast<int64_t>(dim)), "unflatten");
  DimVector sizes;
  for (size_t d = 0; d < self.sizes().size(); ++d) {
    if (d != dim) sizes.push_back(self.sizes()[d]);
    if (d == dim) {
      for (const int64_t part : parts) sizes.push_back(part);
    }
  }
  outs[0] = view(self, sizes);
}

void movedim_composite(const OpArgs& args, std::span<Tensor> outs) {
  const Tensor& self = args.tensor(0);
  const Dims source = args[1].ints(), destination = args[2].ints();
  MUSTER_CHECK(source.size() == destination.size(), ErrorCode::kInvalidArgument,
               "movedim: source and destination must have the same number of dims; got {} and {}",
               to_string(source), to_string(destination));
  const auto n = static_cast<size_t>(self.ndim());
  DimVector order(n, -1);
  uint64_t taken = 0;
  for (size_t k = 0; k < source.size(); ++k) {
    const int64_t from = wrap_dim(source[k], self.ndim(), "movedim");
    const auto to = static_cast<size_t>(wrap_dim(destination[k], self.ndim(), "movedim"));
    MUSTER_CHECK((taken >> from & 1) == 0, ErrorCode::kInvalidArgument,
                 "movedim: repeated dim in `source` ({})", to_string(source));
    if (n == 0) continue;
    MUSTER_CHECK(order[to] < 0, ErrorCode::kInvalidArgument,
                 "movedim: repeated dim in `destination` ({})", to_string(destination));
    order[to] = from;
    taken |= uint64_t{1} << from;
  }
  int64_t next = 0;
  for (size_t i = 0; i < n; ++i) {
    if (order[i] >= 0) continue;
    while ((taken >> next & 1) != 0) ++next;
    order[i] = next++;
  }
  outs[0] = permute(self, order);
}

// An alias that forgets: neither history nor base, so that writes to it are not recorded.
void detach_composite(const OpArgs& args, std::span<Tensor> outs) {
  static const Op& alias = find_op("alias");
  const NoGradGuard no_grad;
  alias.redispatch(DispatchKeySet::below(DispatchKey::kAutograd), args.values(), outs);
  outs[0].impl()->base.reset();
  outs[0].impl()->creation = ViewCreation::kDefault;
}

// Sizes and dims of a call are those of the whole tensor: which shard a dim becomes is
// dist/tensor's to derive; what these rules state is that a sum of views is the view of the sum.
OpDef shape_view(const char* schema, ViewFn layout, DerivativeFn derivative,
                 std::vector<std::string> samples) {
  return OpDef(schema)
      .view(layout)
      .derivative(derivative)
      .shard({"P -> P"})
      .fusion(FusionClass::kView)
      .samples(std::move(samples));
}
}  // namespace

MUSTER_DEFINE_OPS(views_shape) {
  table.add(shape_view("view(Tensor(a) self, int[] size) -> Tensor(a)", view_layout, as_self,
                       {"f(2,6), [3,4]", "f(4), [-1,2]", "f(0,3), [3,0]"}));
  table.add(shape_view("expand(Tensor(a) self, int[] size) -> Tensor(a)", expand_view_layout,
                       [](const BackwardContext& c) -> GradList {
                         return {sum_to_size(c.grad(), c.spec("self").sizes)};
                       },
                       {"f(3,1), [3,4]", "f(1), [2,-1]", "f(), [2]"}));
  table.add(shape_view("permute(Tensor(a) self, int[] dims) -> Tensor(a)", permute_view_layout,
                       permute_derivative, {"f(2,3,4), [2,0,1]", "f(3), [-1]"}));
  table.add(shape_view(
                "transpose(Tensor(a) self, int dim0, int dim1) -> Tensor(a)", transpose_view_layout,
                [](const BackwardContext& c) -> GradList {
                  return {transpose(c.grad(), c.arg("dim0").integer(), c.arg("dim1").integer())};
                },
                {"f(2,3), 0, 1", "f(2,3,4), -1, 0"})
                .shard({"P -> P", "S(b) -> S(b) where b != dim0 and b != dim1"}));
  table.add(shape_view("t(Tensor(a) self) -> Tensor(a)", t_layout,
                       [](const BackwardContext& c) -> GradList { return {t(c.grad())}; },
                       {"f(2,3)", "f(3)"}));
  table.add(shape_view("squeeze(Tensor(a) self, int[]? dim=None) -> Tensor(a)", squeeze_view_layout,
                       as_self, {"f(1,3,1)", "f(1,3,1), [0]", "f(2,1), [0,1]"}));
  table.add(shape_view("unsqueeze(Tensor(a) self, int dim) -> Tensor(a)", unsqueeze_view_layout,
                       as_self, {"f(2,3), 0", "f(2,3), -1", "f(), 0"}));
  table.add(shape_view("alias(Tensor(a) self) -> Tensor(a)", alias_layout,
                       [](const BackwardContext& c) -> GradList { return {c.grad()}; }, {"f(2,3)"})
                .shard({"P -> P", "S(b) -> S(b)"}));

  table.add(composed("reshape(Tensor(a) self, int[] shape) -> Tensor(a)", reshape_composite,
                     {"f(2,6), [3,4]", "f(4,3).t, [12]"}));
  table.add(composed("flatten(Tensor(a) self, int start_dim=0, int end_dim=-1) -> Tensor(a)",
                     flatten_composite, {"f(2,3,4), 0, -1", "f(2,3,4), 1, 2", "f(), 0, -1"}));
  table.add(composed("unflatten(Tensor(a) self, int dim, int[] sizes) -> Tensor(a)",
                     unflatten_composite, {"f(2,6), 1, [2,3]", "f(2,6), -1, [-1,2]"}));
  table.add(composed("movedim(Tensor(a) self, int[] source, int[] destination) -> Tensor(a)",
                     movedim_composite, {"f(2,3,4), [0], [2]", "f(2,3,4), [0,1], [1,2]"}));
  table.add(composed("detach(Tensor(a) self) -> Tensor(a)", detach_composite, {"f(2,3)"}));
}
}  // namespace muster::ops

namespace muster {
using ops::find_op;

Tensor view(const Tensor& self, Dims size) {
  static const Op& op = find_op("view");
  return call_one(op, self, size);
}

Tensor view_as(const Tensor& self, const Tensor& other) { return view(self, other.sizes()); }

Tensor reshape(const Tensor& self, Dims shape) {
  static const Op& op = find_op("reshape");
  return call_one(op, self, shape);
}

Tensor flatten(const Tensor& self, int64_t start_dim, int64_t end_dim) {
  static const Op& op = find_op("flatten");
  return call_one(op, self, start_dim, end_dim);
}

Tensor unflatten(const Tensor& self, int64_t dim, Dims sizes) {
  static const Op& op = find_op("unflatten");
  return call_one(op, self, dim, sizes);
}

Tensor expand(const Tensor& self, Dims size) {
  static const Op& op = find_op("expand");
  return call_one(op, self, size);
}

Tensor expand_as(const Tensor& self, const Tensor& other) { return expand(self, other.sizes()); }

Tensor permute(const Tensor& self, Dims dims) {
  static const Op& op = find_op("permute");
  return call_one(op, self, dims);
}

Tensor transpose(const Tensor& self, int64_t dim0, int64_t dim1) {
  static const Op& op = find_op("transpose");
  return call_one(op, self, dim0, dim1);
}

Tensor t(const Tensor& self) {
  static const Op& op = find_op("t");
  return call_one(op, self);
}

Tensor movedim(const Tensor& self, int64_t source, int64_t destination) {
  return movedim(self, Dims(&source, 1), Dims(&destination, 1));
}

Tensor movedim(const Tensor& self, Dims source, Dims destination) {
  static const Op& op = find_op("movedim");
  return call_one(op, self, source, destination);
}

Tensor squeeze(const Tensor& self) {
  static const Op& op = find_op("squeeze");
  return call_one(op, self, std::nullopt);
}

Tensor squeeze(const Tensor& self, int64_t dim) { return squeeze(self, Dims(&dim, 1)); }

Tensor squeeze(const Tensor& self, Dims dim) {
  static const Op& op = find_op("squeeze");
  return call_one(op, self, dim);
}

Tensor unsqueeze(const Tensor& self, int64_t dim) {
  static const Op& op = find_op("unsqueeze");
  return call_one(op, self, dim);
}

Tensor detach(const Tensor& self) {
  static const Op& op = find_op("detach");
  return call_one(op, self);
}
}  // namespace muster
