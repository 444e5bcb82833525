// Views that cut one dim into pieces: split, split_with_sizes, chunk, tensor_split, unbind.
#include "core/ops/creation.h"
#include "core/ops/op_support.h"
#include "core/ops/views.h"

namespace muster::ops {
namespace {
// Each says the sizes of the pieces along the dim, from its size and the second argument.
struct BySize {
  static constexpr const char* kArgument = "split_size";
  static DimVector pieces(int64_t size, const Value& split_size) {
    const int64_t each = split_size.integer();
    MUSTER_CHECK(each > 0 || (each == 0 && size == 0), ErrorCode::kInvalidArgument,
                 "split: split_size can only be 0 if dimension size is 0, and expects a "
                 "non-negative value; got {} for dimension size {}",
                 each, size);
    DimVector parts;
    for (int64_t left = size; left > 0; left -= each) parts.push_back(std::min(each, left));
    if (size == 0) parts.push_back(0);
    return parts;
  }
};

struct BySizes {
  static constexpr const char* kArgument = "split_sizes";
  static DimVector pieces(int64_t size, const Value& sizes) {
    int64_t sum = 0;
    for (const int64_t piece : sizes.ints()) {
      MUSTER_CHECK(piece >= 0, ErrorCode::kInvalidArgument,
                   "split_with_sizes: split_sizes must have only non-negative entries; got {}",
                   to_string(sizes.ints()));
      sum += piece;
    }
    MUSTER_CHECK(sum == size, ErrorCode::kInvalidArgument,
                 "split_with_sizes: expects split_sizes to sum exactly to {} (the size of the "
                 "dimension); got {}",
                 size, to_string(sizes.ints()));
    return DimVector(sizes.ints());
  }
};

struct ByChunks {
  static constexpr const char* kArgument = "chunks";
  static DimVector pieces(int64_t size, const Value& chunks) {
    MUSTER_CHECK(chunks.integer() > 0, ErrorCode::kInvalidArgument,
                 "chunk: expects `chunks` to be greater than 0; got {}", chunks.integer());
    return chunk_sizes(size, chunks.integer());
  }
};

struct BySections {
  static constexpr const char* kArgument = "sections";
  static DimVector pieces(int64_t size, const Value& sections) {
    MUSTER_CHECK(sections.integer() > 0, ErrorCode::kInvalidArgument,
                 "tensor_split: number of sections must be larger than 0; got {}",
                 sections.integer());
    return tensor_split_sizes(size, sections.integer());
  }
};

int64_t size_at(Dims sizes, int64_t dim, const char* operation) {
  MUSTER_CHECK(!sizes.empty(), ErrorCode::kInvalidArgument,
               "{}: expects at least a 1-dimensional tensor; got a 0-dim one", operation);
  return sizes[static_cast<size_t>(wrap_dim(dim, static_cast<int64_t>(sizes.size()), operation))];
}

template <typename Cut>
size_t count_pieces(const OpArgs& args) {
  const Tensor& self = args.tensor(0);
  return Cut::pieces(size_at(self.sizes(), args[2].integer(), args.op_name()), args[1]).size();
}

template <typename Cut>
Layout piece_layout(const OpArgs& args, size_t index) {
  const Tensor& self = args.tensor(0);
  const int64_t dim = args[2].integer();
  const DimVector parts = Cut::pieces(size_at(self.sizes(), dim, args.op_name()), args[1]);
  int64_t start = 0;
  for (size_t i = 0; i < index; ++i) start += parts[i];
  return slice_layout(self.layout(), dim, start, start + parts[index], 1);
}

Tensor zeros_of(const BackwardContext& c, Dims sizes) {
  return zeros(sizes, c.spec("self").dtype, c.spec("self").device);
}

template <typename Cut>
GradList join_pieces(const BackwardContext& c) {
  static const Op& op = find_op("cat");
  const DimVector& whole = c.spec("self").sizes;
  const int64_t dim = wrap_dim(c.arg("dim").integer(), static_cast<int64_t>(whole.size()), "split");
  const DimVector parts = Cut::pieces(whole[static_cast<size_t>(dim)], c.arg(Cut::kArgument));
  std::vector<Tensor> grads;
  for (size_t i = 0; i < parts.size(); ++i) {
    DimVector sizes = whole;
    sizes[static_cast<size_t>(dim)] = parts[i];
    grads.push_back(c.grad(i).defined() ? c.grad(i) : zeros_of(c, sizes));
  }
  return {call_one(op, grads, dim)};
}

size_t unbind_count(const OpArgs& args) {
  return static_cast<size_t>(size_at(args.tensor(0).sizes(), args[1].integer(), "unbind"));
}

Layout unbind_layout(const OpArgs& args, size_t index) {
  return select_layout(args.tensor(0).layout(), args[1].integer(), static_cast<int64_t>(index));
}

GradList unbind_derivative(const BackwardContext& c) {
  const DimVector& whole = c.spec("self").sizes;
  const int64_t dim =
      wrap_dim(c.arg("dim").integer(), static_cast<int64_t>(whole.size()), "unbind");
  DimVector sizes = whole;
  sizes.erase(static_cast<size_t>(dim));
  std::vector<Tensor> grads;
  for (int64_t i = 0; i < whole[static_cast<size_t>(dim)]; ++i) {
    const Tensor& grad = c.grad(static_cast<size_t>(i));
    grads.push_back(grad.defined() ? grad : zeros_of(c, sizes));
  }
  return {stack(grads, dim)};
}

OpDef pieces(const char* schema, ViewFn layout, CountFn count, DerivativeFn derivative,
             std::vector<std::string> samples) {
  return OpDef(schema)
      .view(layout)
      .count(count)
      .derivative(derivative)
      .shard({"S(b) -> S(b) where b != dim", "P -> P"})
      .fusion(FusionClass::kView)
      .samples(std::move(samples));
}
}  // namespace

MUSTER_DEFINE_OPS(views_split) {
  table.add(pieces("split(Tensor(a) self, int split_size, int dim=0) -> Tensor(a)[]",
                   piece_layout<BySize>, count_pieces<BySize>, join_pieces<BySize>,
                   {"f(5,2), 2, 0", "f(2,4), 2, -1"}));
  table.add(pieces("split_with_sizes(Tensor(a) self, int[] split_sizes, int dim=0) -> Tensor(a)[]",
                   piece_layout<BySizes>, count_pieces<BySizes>, join_pieces<BySizes>,
                   {"f(5,2), [2,3], 0"}));
  table.add(pieces("chunk(Tensor(a) self, int chunks, int dim=0) -> Tensor(a)[]",
                   piece_layout<ByChunks>, count_pieces<ByChunks>, join_pieces<ByChunks>,
                   {"f(5,2), 3, 0"}));
  table.add(pieces("tensor_split(Tensor(a) self, int sections, int dim=0) -> Tensor(a)[]",
                   piece_layout<BySections>, count_pieces<BySections>, join_pieces<BySections>,
                   {"f(5,2), 3, 0"}));
  table.add(pieces("unbind(Tensor(a) self, int dim=0) -> Tensor(a)[]", unbind_layout, unbind_count,
                   unbind_derivative, {"f(3,2), 0", "f(3,2), -1"})
                .shard({"S(b) -> S(b/dim) where b != dim", "P -> P"}));
}
}  // namespace muster::ops

namespace muster {
using ops::call_list;
using ops::find_op;

std::vector<Tensor> split(const Tensor& self, int64_t split_size, int64_t dim) {
  static const Op& op = find_op("split");
  return call_list(op, self, split_size, dim);
}

std::vector<Tensor> split_with_sizes(const Tensor& self, Dims split_sizes, int64_t dim) {
  static const Op& op = find_op("split_with_sizes");
  return call_list(op, self, split_sizes, dim);
}

std::vector<Tensor> chunk(const Tensor& self, int64_t chunks, int64_t dim) {
  static const Op& op = find_op("chunk");
  return call_list(op, self, chunks, dim);
}

std::vector<Tensor> tensor_split(const Tensor& self, int64_t sections, int64_t dim) {
  static const Op& op = find_op("tensor_split");
  return call_list(op, self, sections, dim);
}

std::vector<Tensor> unbind(const Tensor& self, int64_t dim) {
  static const Op& op = find_op("unbind");
  return call_list(op, self, dim);
}
}  // namespace muster
