#pragma once
/// Small f64 inputs for gradcheck, in the layouts and sizes that derivatives must survive.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "core/autograd/autograd.h"
#include "core/autograd/gradcheck.h"
#include "core/ops/op_registry.h"
#include "core/ops/ops.h"

namespace muster::testing {

/// Values in (-1, 1), a pure function of sizes and seed, that want a gradient.
inline Tensor leaf(Dims sizes, uint64_t seed = 1) {
  Generator generator(seed);
  return requires_grad_(uniform_(empty(sizes, DType::kF64), -1, 1, &generator));
}

/// The same values, without gradient.
inline Tensor constant(Dims sizes, uint64_t seed = 1) { return detach(leaf(sizes, seed)); }

/// A leaf whose last two dims are transposed in memory.
inline Tensor transposed_leaf(Dims sizes, uint64_t seed = 1) {
  DimVector swapped(sizes);
  std::swap(swapped[swapped.size() - 1], swapped[swapped.size() - 2]);
  return requires_grad_(detach(transpose(constant(swapped, seed), -1, -2)));
}

/// First and second derivatives by differences.
inline void expect_gradients(const GradcheckFunction& function, const std::vector<Tensor>& inputs,
                             const std::string& what = "", bool second = true) {
  std::string why;
  EXPECT_TRUE(gradcheck(function, inputs, &why)) << what << ": " << why;
  if (second) {
    EXPECT_TRUE(gradgradcheck(function, inputs, &why)) << what << " twice: " << why;
  }
}

/// Gradients under a gradient of stride 0 and one of another layout equal those under a dense one.
inline void expect_any_grad_layout(const std::function<Tensor(std::span<const Tensor>)>& function,
                                   const std::vector<Tensor>& inputs) {
  const Tensor out = function(inputs);
  const GradOptions unused{.retain_graph = true, .allow_unused = true};
  const auto run = [&](const Tensor& grad_out) {
    return grad(std::span<const Tensor>(&out, 1), inputs, std::span<const Tensor>(&grad_out, 1),
                unused);
  };
  const auto compare = [&](const Tensor& strange, const char* what) {
    const std::vector<Tensor> wanted = run(clone(strange, MemoryFormat::kContiguous));
    const std::vector<Tensor> got = run(strange);
    for (size_t i = 0; i < inputs.size(); ++i) {
      ASSERT_EQ(wanted[i].defined(), got[i].defined()) << what << " input " << i;
      if (!wanted[i].defined() || wanted[i].numel() == 0) continue;
      EXPECT_LT(amax(abs(sub(wanted[i], got[i]))).item(), 1e-12) << what << " input " << i;
    }
  };
  compare(expand(full({}, 0.5, out.dtype()), out.sizes()), "stride 0");
  if (out.ndim() >= 2) {
    DimVector swapped(out.sizes());
    std::swap(swapped[swapped.size() - 1], swapped[swapped.size() - 2]);
    compare(transpose(to(constant(swapped, 77), out.dtype()), -1, -2), "transposed");
  }
}

}  // namespace muster::testing
