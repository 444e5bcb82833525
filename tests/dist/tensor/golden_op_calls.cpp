#include "tests/dist/tensor/golden_op_calls.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "core/ops/ops.h"
#include "dist/tensor/redistribute.h"

namespace muster::testing {
namespace {
using Tensors = std::vector<Tensor>;

DTensorCall one(std::function<Tensor(const Tensor&)> f) {
  return [f = std::move(f)](const Tensors& x) { return Tensors{f(x[0])}; };
}
DTensorCall two(std::function<Tensor(const Tensor&, const Tensor&)> f) {
  return [f = std::move(f)](const Tensors& x) { return Tensors{f(x[0], x[1])}; };
}
DTensorCall three(std::function<Tensor(const Tensor&, const Tensor&, const Tensor&)> f) {
  return [f = std::move(f)](const Tensors& x) { return Tensors{f(x[0], x[1], x[2])}; };
}
DTensorCall view_of(DimVector sizes) {
  return one([sizes](const Tensor& x) { return view(x, sizes); });
}

#define ONE(expression) one([](const Tensor& x) { return expression; })
#define TWO(expression) two([](const Tensor& x, const Tensor& y) { return expression; })
#define THREE(expression) \
  three([](const Tensor& x, const Tensor& y, const Tensor& z) { return expression; })

void add_elementwise(std::map<std::string, DTensorCall>& ops) {
  ops["neg"] = ONE(neg(x));
  ops["mul scalar"] = ONE(mul(x, 3));
  ops["div scalar"] = ONE(div(x, 4));
  ops["add scalar"] = ONE(add(x, 8));
  ops["rsub scalar"] = ONE(sub(8, x));
  ops["abs"] = ONE(abs(x));
  ops["relu"] = ONE(relu(x));
  ops["exp"] = ONE(exp(div(x, 16)));
  ops["square"] = ONE(square(x));
  ops["clamp"] = ONE(clamp(x, std::nullopt, 8));
  ops["pow"] = ONE(pow(x, 2));
  ops["clone"] = ONE(clone(x));
  ops["contiguous"] = ONE(contiguous(x));
  ops["gelu"] = ONE(gelu(x));
  ops["to f32"] = ONE(to(x, DType::kF32));
  ops["dropout p=0"] = ONE(dropout(x, 0.0));
  ops["tril"] = ONE(tril(x));
  ops["view_as self"] = ONE(view_as(x, x));
  ops["isnan"] = ONE(isnan(x));
  ops["gt scalar"] = ONE(gt(x, 0));
  ops["sign"] = ONE(sign(x));
  ops["zeros_like"] = ONE(zeros_like(x));
  ops["ones_like"] = ONE(ones_like(x));
  ops["full_like"] = ONE(full_like(x, 3.0));
  ops["new_zeros"] = ONE(new_zeros(x, {2, 2}));
  ops["detach"] = ONE(detach(x));
  ops["add"] = ops["add of two P(max)"] = TWO(add(x, y));
  ops["add broadcast row"] = TWO(add(x, y));
  ops["add alpha"] = TWO(add(x, y, 2));
  ops["sub"] = TWO(sub(x, y));
  ops["mul"] = ops["mul broadcast column"] = TWO(mul(x, y));
  ops["div"] = TWO(div(x, y));
  ops["maximum"] = ops["maximum of two P(max)"] = TWO(maximum(x, y));
  ops["where"] = TWO(where(gt(x, 0), x, y));
  ops["masked_fill"] = TWO(masked_fill(x, gt(y, 0), 0.0));
  ops["add_ in place"] = TWO(add_(clone(x), y));
  ops["mul_ scalar in place"] = ONE(mul_(clone(x), 2));
  ops["copy_"] = TWO(copy_(clone(x), y));
}

void add_reductions(std::map<std::string, DTensorCall>& ops) {
  ops["sum"] = ONE(sum(x));
  ops["sum 0"] = ONE(sum(x, 0));
  ops["sum 1"] = ONE(sum(x, 1));
  ops["sum 0 keepdim"] = ONE(sum(x, 0, true));
  ops["mean"] = ONE(mean(x));
  ops["mean 0"] = ONE(mean(x, 0));
  ops["mean 1"] = ONE(mean(x, 1));
  ops["amax 0"] = ONE(amax(x, {0}));
  ops["amin 1"] = ONE(amin(x, {1}));
  ops["max all"] = ONE(muster::max(x));
  ops["max dim 0 values"] = ONE(muster::max(x, 0)[0]);
  ops["max dim 0 indices"] = ONE(muster::max(x, 0)[1]);
  ops["prod 0"] = ONE(prod(div(x, 8), 0));
  ops["var 0"] = ONE(var(x, DimVector{0}));
  ops["logsumexp 0"] = ONE(logsumexp(div(x, 16), {0}));
  ops["norm 2"] = ONE(vector_norm(x));
  ops["norm 1 of dim 0"] = ONE(vector_norm(x, 1, {0}));
  ops["norm inf"] = ONE(vector_norm(x, std::numeric_limits<double>::infinity()));
  ops["cumsum 0"] = ONE(cumsum(x, 0));
  ops["cumsum 1"] = ONE(cumsum(x, 1));
  ops["softmax 0"] = ONE(softmax(div(x, 16), 0));
  ops["softmax 1"] = ONE(softmax(div(x, 16), 1));
  ops["log_softmax 1"] = ONE(log_softmax(div(x, 16), 1));
  ops["argmax"] = ONE(argmax(x));
  ops["argmax 0"] = ONE(argmax(x, 0));
  ops["argmax 1"] = ONE(argmax(x, 1));
  ops["argmin 0"] = ONE(argmin(x, 0));
  ops["any"] = ONE(any(gt(x, 20)));
  ops["all 0"] = ONE(muster::all(gt(x, -100), {0}));
  ops["count_nonzero"] = ONE(sum(ne(x, 0)));
}

void add_products(std::map<std::string, DTensorCall>& ops) {
  ops["addmm"] = THREE(addmm(x, y, z));
  ops["mm"] = TWO(mm(x, y));
  ops["bmm"] = TWO(bmm(x, y));
  ops["matmul 3d by 2d"] = TWO(matmul(x, y));
  ops["linear"] = THREE(linear(x, y, z));
  ops["mv"] = TWO(mv(x, y));
  ops["layer_norm"] = THREE(layer_norm(x, {x.size(-1)}, y, z));
  ops["rms_norm"] = TWO(rms_norm(x, {x.size(-1)}, y));
  ops["embedding"] = TWO(embedding(x, y));
  ops["cross_entropy mean"] = TWO(cross_entropy(div(x, 16), y));
  ops["cross_entropy sum"] = TWO(cross_entropy(div(x, 16), y, {}, Reduction::kSum));
  ops["mse_loss"] = TWO(mse_loss(x, y));
  ops["sdpa math"] = ops["sdpa default kernel"] = THREE(scaled_dot_product_attention(x, y, z));
  ops["sdpa math causal"] = three([](const Tensor& q, const Tensor& k, const Tensor& v) {
    SdpaOptions options;
    options.causal = CausalAlignment::kUpperLeft;
    return scaled_dot_product_attention(q, k, v, options);
  });
  ops["sdpa math mask"] = [](const Tensors& x) {
    SdpaOptions options;
    options.attn_mask = x[3];
    return Tensors{scaled_dot_product_attention(x[0], x[1], x[2], options)};
  };
}

void add_shapes(std::map<std::string, DTensorCall>& ops) {
  ops["t"] = ONE(t(x));
  ops["view flat"] = ops["reshape flat"] = ONE(reshape(x, {-1}));
  ops["unsqueeze 0"] = ONE(unsqueeze(x, 0));
  ops["expand"] = ONE(expand(unsqueeze(x, 0), {3, -1, -1}));
  ops["repeat 2 1"] = ONE(repeat(x, {2, 1}));
  ops["slice 1:3 of dim 0"] = ONE(slice(x, 0, 1, 3));
  ops["slice 1:3 of dim 1"] = ONE(slice(x, 1, 1, 3));
  ops["select 0"] = ONE(select(x, 0, 0));
  ops["select 1 of dim 1"] = ONE(select(x, 1, 1));
  ops["index_select 0"] = TWO(index_select(x, 0, y));
  ops["index list"] = TWO(index(x, {y}));
  ops["gather 0"] = TWO(gather(x, 0, y));
  ops["gather 1"] = TWO(gather(x, 1, y));
  ops["scatter_add 0"] = THREE(scatter_add(x, 0, y, z));
  ops["cat 0"] = TWO(cat({x, y}, 0));
  ops["cat 1"] = TWO(cat({x, y}, 1));
  ops["stack 0"] = TWO(stack({x, y}));
  ops["split 2 of dim 0"] = [](const Tensors& x) { return split(x[0], 2, 0); };
  ops["chunk 2 of dim 1"] = [](const Tensors& x) { return chunk(x[0], 2, 1); };
  ops["unbind 0"] = [](const Tensors& x) { return unbind(x[0], 0); };
  ops["flip 0"] = ONE(flip(x, {0}));
  ops["roll 1 0"] = ONE(roll(x, {1}, {0}));
  ops["permute"] = ONE(permute(x, {2, 0, 1}));
  ops["transpose 0 1"] = ONE(transpose(x, 0, 1));
  ops["flatten 0 1"] = ONE(reshape(x, {x.size(0) * x.size(1), x.size(2)}));
  ops["flatten 1 2"] = ONE(reshape(x, {x.size(0), x.size(1) * x.size(2)}));
  ops["flatten then unflatten"] =
      ONE(unflatten(flatten(x, 0, 1), 0, DimVector{x.size(0), x.size(1)}));
  for (const DimVector& sizes : {DimVector{24, 2},
                                 {4, 12},
                                 {2, 2, 6, 2},
                                 {4, 2, 3, 2},
                                 {4, 3, 2, 2},
                                 {8, 6},
                                 {3, 8},
                                 {6, 2, 2}}) {
    std::string name = "view";
    for (const int64_t size : sizes) name += " " + std::to_string(size);
    ops[name] = view_of(sizes);
  }
}

}  // namespace

const std::map<std::string, DTensorCall>& golden_calls() {
  static const std::map<std::string, DTensorCall> calls = [] {
    std::map<std::string, DTensorCall> ops;
    add_elementwise(ops);
    add_reductions(ops);
    add_products(ops);
    add_shapes(ops);
    return ops;
  }();
  return calls;
}

std::string golden_call_name(const nlohmann::json& golden) {
  std::string id = golden["id"].get<std::string>();
  for (const char* tail : {" even", " uneven", " of 4x6x2", " of 3x4x2"}) {
    if (id.ends_with(tail)) id.resize(id.size() - std::string_view(tail).size());
  }
  return id;
}

Tensor golden_placed(const Tensor& full, const MeshRef& mesh, Placement placement) {
  if (!placement.is_partial()) return distribute_tensor(full, mesh, {placement});
  const bool is_first = mesh->coordinate()[0] == 0;
  Tensor share;
  switch (placement.op) {
    case PartialOp::kSum:
      share = is_first ? sub(full, 12) : full_like(full, 12.0);
      break;
    case PartialOp::kAvg:
      share = is_first ? add(full, 12) : sub(full, 12);
      break;
    case PartialOp::kMax:
      share = is_first ? sub(full, 2) : clone(full);
      break;
    default:
      share = is_first ? add(full, 2) : clone(full);
  }
  return from_local(share, mesh, {placement}, DimVector(full.sizes()));
}

}  // namespace muster::testing
