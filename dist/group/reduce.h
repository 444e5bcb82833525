#pragma once
/// Element-wise reduction of several buffers in a fixed order: rank 0 first, then 1, 2, ...
///
/// Every backend reduces with it, in group order, so that a job's numbers do not depend on how its
/// ranks are connected.

#include <cstdint>
#include <span>

#include "core/tensor/dtype.h"
#include "dist/group/collective_kind.h"

namespace muster {

/// out[i] = op over sources[r][i], r ascending, for `count` elements. `out` may be one of the
/// sources. bf16 and f16 are reduced in f32 and rounded once. kAvg divides by the number of
/// sources.
void reduce_buffers(ReduceOp op, DType dtype, std::byte* out,
                    std::span<const std::byte* const> sources, int64_t count);

}  // namespace muster
