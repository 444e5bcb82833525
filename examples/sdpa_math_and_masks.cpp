// Attention is a formula, a mask and a choice of kernel.
//
// The formula is softmax(q k^T / sqrt(dim)) v. A boolean mask is true where a key is kept. The
// causal triangle may start at the upper left (training) or at the lower right (one new query and a
// cache of keys), and the two differ when there are fewer queries than keys.
#include "core/autograd/autograd.h"
#include "examples/show.h"

using namespace muster;
using examples::is_close;
using examples::show;

int main() {
  const SdpaKernelGuard math_only({SdpaKernel::kMath});
  const DimVector shape = {1, 1, 2, 2};  // batch, heads, sequence, dim
  const Tensor q = requires_grad_(from_vector<double>({1, 0, 0, 1}, shape));
  const Tensor k = requires_grad_(from_vector<double>({1, 0, 0, 1}, shape));
  const Tensor v = requires_grad_(from_vector<double>({10, 0, 0, 20}, shape));

  const Tensor actual = scaled_dot_product_attention(q, k, v);
  const Tensor weights = softmax(matmul(q, transpose(k, -2, -1)) / std::sqrt(2.0), -1);
  const Tensor reference = matmul(weights, v);
  MUSTER_ASSERT(is_close(actual, reference), "attention must match its formula");
  const Tensor inputs[] = {q, k, v};
  const Tensor losses[] = {sum(square(actual)), sum(square(reference))};
  const std::vector<Tensor> actual_grads = grad({&losses[0], 1}, inputs);
  const std::vector<Tensor> reference_grads = grad({&losses[1], 1}, inputs);
  for (size_t i = 0; i < 3; ++i) {
    MUSTER_ASSERT(is_close(actual_grads[i], reference_grads[i]), "gradients must match, too");
  }
  fmt::print("CPU math: forward and all Q/K/V gradients match the formula\n");

  const Tensor keep_first = view(tensor({true, false, true, false}), {2, 2});
  const Tensor masked = scaled_dot_product_attention(q, k, v, {.attn_mask = keep_first});
  fmt::print("True means keep: {}\n", show(detach(masked)));

  const Tensor last_query = slice(q, 2, 0, 1);
  const Tensor upper_left =
      scaled_dot_product_attention(last_query, k, v, {.causal = CausalAlignment::kUpperLeft});
  const Tensor cached_last =
      scaled_dot_product_attention(last_query, k, v, {.causal = CausalAlignment::kLowerRight});
  MUSTER_ASSERT(is_close(upper_left, slice(masked, 2, 0, 1)), "upper left: key 0 alone");
  MUSTER_ASSERT(is_close(cached_last, slice(reference, 2, 0, 1)), "lower right: both keys");
  MUSTER_ASSERT(!is_close(upper_left, cached_last), "and the two must differ");
  fmt::print("one query, two keys: upper-left causal sees key 0; cached-last sees both\n");
}
