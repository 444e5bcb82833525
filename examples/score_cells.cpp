// How many scores attention has: why long sequences need kernels that never hold all of them.
#include "core/dispatch/mode.h"
#include "examples/show.h"

using namespace muster;

namespace {
// Each of the queries meets each of the keys, in every head of every sample.
int64_t score_cells(int64_t batch, int64_t heads, int64_t sequence) {
  const DeviceGuard shapes_only(kMetaDevice);  // tensors without memory
  const Tensor query = empty({batch, heads, sequence, 8});
  const Tensor key = empty({batch, heads, sequence, 8});
  return matmul(query, transpose(key, -2, -1)).numel();
}
}  // namespace

int main() {
  fmt::print("{}\n", score_cells(1, 2, 8192));
  MUSTER_ASSERT(score_cells(1, 2, 4) == 32, "two heads of 4 x 4 scores");
}
