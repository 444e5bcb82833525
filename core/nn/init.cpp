#include "core/nn/init.h"

#include "core/base/hash.h"
#include "core/dispatch/mode.h"
#include "core/ops/creation.h"
#include "core/ops/random.h"

namespace muster {

void init_parameter(const Tensor& tensor, const InitSpec& spec, uint64_t seed,
                    std::string_view name, Dims global_sizes, Dims box_start) {
  const NoGradGuard no_grad;
  const PhiloxStream stream{seed, hash_text(name), DimVector(global_sizes), DimVector(box_start)};
  switch (spec.kind) {
    case InitSpec::Kind::kNone:
      return;
    case InitSpec::Kind::kConstant:
      fill_(tensor, spec.a);
      return;
    case InitSpec::Kind::kNormal:
      normal_(tensor, spec.a, spec.b, stream);
      return;
    case InitSpec::Kind::kUniform:
      uniform_(tensor, spec.a, spec.b, stream);
      return;
  }
}
}  // namespace muster
