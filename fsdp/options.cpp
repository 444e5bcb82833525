#include "fsdp/options.h"

#include <cmath>

namespace muster::fsdp {
DivideFactors divide_factors(DType dtype, double factor) {
  if (dtype != DType::kF16) return {1, factor};
  double before = 1;
  while (std::fmod(factor, before) == 0 && factor / before > before) before *= 2;
  return {before, factor / before};
}
}  // namespace muster::fsdp
