#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dist/tensor/shard_geometry.h"
#include "tests/support/golden_case.h"

namespace muster {
namespace {
using Json = nlohmann::json;
using Ints = std::vector<int64_t>;

// "S(0)", "_S(0,4)" and "P(sum)" as the golden files write them.
Placement golden_placement(std::string text) {
  if (text.starts_with('_')) {
    text.insert(text.find(',') + 1, " ");
    text.erase(0, 1);
  }
  return parse_placement(text).value();
}

Ints iota_from(int64_t first, int64_t count) {
  Ints list(static_cast<size_t>(count));
  for (size_t i = 0; i < list.size(); ++i) list[i] = first + static_cast<int64_t>(i);
  return list;
}

void check_shard(const Json& golden) {
  const int ranks = golden["ranks"].get<int>();
  for (int rank = 0; rank < ranks; ++rank) {
    const ChunkRange range = chunk_range(golden["n"].get<int64_t>(), ranks, rank);
    EXPECT_EQ(range.size, golden["sizes"][static_cast<size_t>(rank)].get<int64_t>());
    EXPECT_EQ(range.offset, golden["offsets"][static_cast<size_t>(rank)].get<int64_t>());
  }
}

void check_strided(const Json& golden) {
  const int ranks = golden["ranks"].get<int>();
  const Placement placements[] = {Placement::strided_shard(0, golden["split_factor"].get<int>())};
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(shard_indices(golden["n"].get<int64_t>(), 0, std::span(&ranks, 1),
                            std::span(&rank, 1), placements),
              golden["indices"][static_cast<size_t>(rank)].get<Ints>())
        << "rank " << rank;
  }
}

void check_layout(const Json& golden) {
  const auto mesh = golden["mesh"].get<std::vector<int>>();
  const auto sizes = golden["global_shape"].get<Ints>();
  std::vector<Placement> placements;
  bool is_box = true;
  for (const Json& text : golden["placements"]) {
    placements.push_back(golden_placement(text.get<std::string>()));
    is_box &= placements.back().kind != Placement::Kind::kStridedShard;
  }
  for (const Json& rank : golden["ranks"]) {
    const auto coordinate = rank["coordinate"].get<std::vector<int>>();
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      EXPECT_EQ(shard_indices(sizes[dim], static_cast<int32_t>(dim), mesh, coordinate, placements),
                rank["indices"][dim].get<Ints>());
    }
    if (!is_box) continue;
    const ShardBox box =
        shard_box(Dims(std::span<const int64_t>(sizes)), mesh, coordinate, placements);
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      EXPECT_EQ(box.sizes[dim], rank["shape"][dim].get<int64_t>());
      // An empty piece lies nowhere: nested cuts place it where its outer piece ends, PyTorch at
      // the end of the dim.
      if (box.sizes[dim] > 0) {
        EXPECT_EQ(box.offsets[dim], rank["offset"][dim].get<int64_t>());
      }
      EXPECT_EQ(iota_from(box.offsets[dim], box.sizes[dim]), rank["indices"][dim].get<Ints>());
    }
  }
}

TEST(ShardBox, AgreesWithGoldenLayouts) {
  size_t checked = 0;
  for (const Json& golden : testing::GoldenFile::load("parallel/dtensor_layout").cases()) {
    SCOPED_TRACE(golden["id"].get<std::string>());
    const auto kind = golden["kind"].get<std::string>();
    if (kind == "shard") check_shard(golden);
    if (kind == "strided") check_strided(golden);
    if (kind == "layout") check_layout(golden);
    ++checked;
  }
  EXPECT_EQ(checked, 262u);
}
}  // namespace
}  // namespace muster
