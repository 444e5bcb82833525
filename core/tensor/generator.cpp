#include "core/tensor/generator.h"

namespace muster {
Generator& default_generator() noexcept {
  thread_local Generator generator;
  return generator;
}
void manual_seed(uint64_t seed) noexcept { default_generator().set_state(seed, 0); }
}  // namespace muster
