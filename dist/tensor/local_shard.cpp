#include "dist/tensor/local_shard.h"

#include <algorithm>

namespace muster {
namespace {
class LocalShardImpl final : public TensorImpl {
 public:
  LocalShardImpl(const Tensor& local, LocalShard shard_in)
      : TensorImpl(local.storage(), local.dtype(), DispatchKey::kCpu, local.layout()),
        shard(std::move(shard_in)) {
    keys_own = local.impl()->keys_own - DispatchKey::kAutograd;
  }
  const LocalShard shard;
};

// The runs of consecutive indices, as {first index, length}.
std::vector<ChunkRange> runs_of(const std::vector<int64_t>& indices) {
  std::vector<ChunkRange> runs;
  for (const int64_t index : indices) {
    if (runs.empty() || runs.back().offset + runs.back().size != index) runs.push_back({index, 0});
    ++runs.back().size;
  }
  return runs;
}
}  // namespace

Tensor make_local_shard(const Tensor& local, LocalShard shard) {
  const DimVector wanted = shard.whole.local_sizes();
  MUSTER_CHECK(
      std::equal(wanted.begin(), wanted.end(), local.sizes().begin(), local.sizes().end()) &&
          local.dtype() == shard.whole.dtype && !is_dtensor(local),
      ErrorCode::kInvalidArgument, "local shard: the piece must be {}{} for {}; got {}",
      shard.whole.dtype, to_string(Dims(wanted)), shard.whole.describe(), local);
  return Tensor(make_ref<LocalShardImpl>(local, std::move(shard)));
}

const LocalShard* local_shard_of(const Tensor& tensor) noexcept {
  const auto* impl = dynamic_cast<const LocalShardImpl*>(tensor.impl());
  return impl == nullptr ? nullptr : &impl->shard;
}

std::vector<LocalBox> local_boxes(const DTensorSpec& spec) {
  ShardBox around{DimVector(spec.sizes.size()), spec.sizes};
  std::vector<ChunkRange> rows;
  for (size_t dim = 0; dim < spec.sizes.size(); ++dim) {
    const std::vector<int64_t> held =
        shard_indices(spec.sizes[dim], static_cast<int32_t>(dim), spec.mesh->sizes(),
                      spec.mesh->coordinate(), spec.placements);
    std::vector<ChunkRange> runs = runs_of(held);
    if (runs.empty()) runs.push_back({spec.sizes[dim], 0});
    MUSTER_CHECK(dim == 0 || runs.size() == 1, ErrorCode::kUnimplemented,
                 "local_boxes: only dim 0 can be cut into several runs; got {}", spec.describe());
    around.offsets[dim] = runs.front().offset;
    around.sizes[dim] = runs.front().size;
    if (dim == 0) rows = std::move(runs);
  }
  if (rows.empty()) return {{around, 0}};  // a 0-dim tensor
  std::vector<LocalBox> boxes;
  int64_t at = 0;
  for (const ChunkRange& run : rows) {
    LocalBox piece{around, at};
    piece.box.offsets[0] = run.offset;
    piece.box.sizes[0] = run.size;
    boxes.push_back(std::move(piece));
    at += run.size;
  }
  return boxes;
}

std::vector<int> replica_ranks(const DTensorSpec& spec) {
  const std::vector<int> sizes = spec.mesh->sizes();
  const std::vector<int>& own = spec.mesh->coordinate();
  std::vector<int> ranks;
  for (int i = 0; i < spec.mesh->size(); ++i) {
    const std::vector<int> at = coordinate_of(sizes, i);
    bool is_same = true;
    for (size_t axis = 0; axis < at.size(); ++axis) {
      is_same &= at[axis] == own[axis] || !spec.placements[axis].is_shard();
    }
    if (is_same) ranks.push_back(spec.mesh->global_ranks()[static_cast<size_t>(i)]);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

Tensor rows_of(const Tensor& whole, int64_t first, int64_t count) {
  const Tensor plain = shallow_detach(whole);
  if (plain.ndim() == 0) return plain;
  Layout layout = plain.layout();
  layout.offset += first * layout.strides[0];
  layout.sizes[0] = count;
  return shallow_detach(alias_with_layout(plain, std::move(layout)));
}
}  // namespace muster
