// Backward needs the values that forward saw: a write to one of them is noticed, not ignored.
//
// Aliases of a storage share one version counter. square() saves x with its version; when backward
// comes and the counter has moved, the saved value is gone and the call is refused.
#include "core/autograd/autograd.h"
#include "core/autograd/gradcheck.h"
#include "examples/show.h"

using namespace muster;
using examples::show_number;

namespace {
Tensor make_x() { return requires_grad_(tensor({3.0}, DType::kF64)); }
Tensor loss_of(const Tensor& x) { return sum(square(x)); }
}  // namespace

int main() {
  {
    const Tensor x = make_x();
    backward(loss_of(x));
    fmt::print("gradient at x=3: {}\n", show_number(grad_of(x)));
  }
  {
    const Tensor x = make_x();
    const Tensor loss = loss_of(x);
    add_(detach(x), 1.0);  // the same storage as the saved x
    const Result<void> done = catch_error([&] { backward(loss); });
    MUSTER_ASSERT(!done.ok(), "the saved value has changed, so backward must refuse");
    fmt::print("detached alias mutation: rejected during backward\n");
  }
  {
    const Tensor x = make_x();
    const Tensor loss = loss_of(x);
    const Tensor independent = clone(detach(x));
    add_(independent, 1.0);  // a storage of its own
    backward(loss);
    MUSTER_ASSERT(x.item() == 3.0 && independent.item() == 4.0, "only the clone changes");
    MUSTER_ASSERT(grad_of(x).item() == 6.0, "the gradient must be 2 x");
    const auto function = [](std::span<const Tensor> inputs) {
      return std::vector<Tensor>{loss_of(inputs[0])};
    };
    MUSTER_ASSERT(gradcheck(function, std::vector<Tensor>{make_x()}),
                  "the derivative must agree with finite differences");
    fmt::print("independent clone: original gradient preserved; gradcheck passed\n");
  }
}
