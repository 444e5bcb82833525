// Autocast lowers matrix products to bf16, and backward needs no autocast of its own.
//
// Casts are recorded like any call, so the gradient of an f32 weight comes back in f32. Written out
// by hand, with no autocast anywhere, the same program gives the same bits: that is what a compiler
// stages when it assumes that backward runs outside of autocast.
#include "core/autograd/autocast.h"
#include "core/autograd/autograd.h"
#include "examples/show.h"

using namespace muster;

int main() {
  manual_seed(0);
  const Tensor inputs = randn({4, 3});
  const Tensor weight = requires_grad_(randn({3, 2}));
  const Tensor staged_weight = requires_grad_(clone(detach(weight)));

  Tensor loss;
  {
    const AutocastGuard autocast(DeviceType::kCpu, DType::kBF16);
    loss = mean(square(matmul(inputs, weight)));
  }
  backward(loss);
  MUSTER_ASSERT(loss.dtype() == DType::kBF16, "the loss must follow the product's dtype");
  MUSTER_ASSERT(grad_of(weight).dtype() == DType::kF32, "a gradient must have its leaf's dtype");

  const Tensor product = matmul(to(inputs, DType::kBF16), to(staged_weight, DType::kBF16));
  const Tensor staged_loss = mean(square(product));
  backward(staged_loss);
  MUSTER_ASSERT(equal(loss, staged_loss), "both losses must have the same bits");
  MUSTER_ASSERT(equal(grad_of(weight), grad_of(staged_weight)), "and both gradients");
  fmt::print("CPU BF16 autocast: backward outside autocast matches with assumption off\n");
}
