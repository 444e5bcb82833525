#include "checkpoint/plan/save_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "core/base/error.h"

namespace muster::checkpoint {
namespace {
// A box is cut into slabs when it is larger than 1/16 of a holder's fair share: what is left whole
// then unbalances the holders by less than that.
constexpr int64_t kSharesPerHolder = 16;
// Below this a slab costs more in bookkeeping than it brings.
constexpr int64_t kSmallestSlabNbytes = 4096;

struct Slab {
  size_t held;
  int64_t begin_row;
  int64_t num_rows;
  int64_t row_nbytes;
  size_t dim;
};

// The outermost dim with more than one row: slabs along it are contiguous.
size_t slab_dim(const Box& box) {
  for (size_t d = 0; d < box.sizes.size(); ++d)
    if (box.sizes[d] != 1) return d;
  return 0;
}

SaveItem make_item(const HeldBox& held, const Slab& slab) {
  SaveItem item{slab.held, held.box, slab.begin_row * slab.row_nbytes,
                slab.num_rows * slab.row_nbytes};
  if (!held.box.sizes.empty()) {
    item.box.offsets[slab.dim] += slab.begin_row;
    item.box.sizes[slab.dim] = slab.num_rows;
  }
  return item;
}

Slab whole(std::span<const HeldBox> held, size_t index) {
  const Box& box = held[index].box;
  const size_t dim = slab_dim(box);
  const int64_t nbytes = numel(box.sizes) * held[index].item_nbytes;
  const int64_t rows = box.sizes.empty() ? 1 : box.sizes[dim];
  return {index, 0, rows, rows == 0 ? 0 : nbytes / rows, dim};
}

void check_holders(const HeldBox& held, int global_rank) {
  const bool strictly_ascending =
      std::adjacent_find(held.holders.begin(), held.holders.end(),
                         [](int a, int b) { return a >= b; }) == held.holders.end();
  const bool is_holder = held.holders.empty() ||
                         std::binary_search(held.holders.begin(), held.holders.end(), global_rank);
  MUSTER_CHECK(strictly_ascending && is_holder, ErrorCode::kInvalidArgument,
               "save plan: holders of \"{}\" must be ascending and name global rank {}; got [{}]",
               held.name, global_rank, fmt::join(held.holders, ", "));
}

// The share of one holder in the boxes that exactly the same ranks hold.
void plan_group(std::span<const HeldBox> held, std::vector<size_t> group, int global_rank,
                std::vector<SaveItem>& items) {
  const std::vector<int>& holders = held[group[0]].holders;
  const size_t num_holders = holders.size();
  int64_t total = 0;
  for (const size_t i : group) total += numel(held[i].box.sizes) * held[i].item_nbytes;
  const int64_t limit = std::max<int64_t>(
      total / (static_cast<int64_t>(num_holders) * kSharesPerHolder), kSmallestSlabNbytes);
  const auto nbytes_of = [&](size_t i) { return numel(held[i].box.sizes) * held[i].item_nbytes; };
  std::sort(group.begin(), group.end(), [&](size_t x, size_t y) {
    if (nbytes_of(x) != nbytes_of(y)) return nbytes_of(x) > nbytes_of(y);
    if (held[x].name != held[y].name) return held[x].name < held[y].name;
    return held[x].box.offsets < held[y].box.offsets;
  });
  std::vector<int64_t> load(num_holders, 0);
  const auto give = [&](const Slab& slab, size_t to) {
    load[to] += slab.num_rows * slab.row_nbytes;
    if (holders[to] == global_rank) items.push_back(make_item(held[slab.held], slab));
  };
  for (const size_t i : group) {
    const Slab all = whole(held, i);
    if (nbytes_of(i) > limit && all.num_rows > 1) {
      const int64_t n = static_cast<int64_t>(num_holders);
      for (int64_t part = 0; part < n; ++part) {
        const int64_t begin = all.num_rows * part / n;
        const int64_t end = all.num_rows * (part + 1) / n;
        if (end > begin)
          give({i, begin, end - begin, all.row_nbytes, all.dim}, static_cast<size_t>(part));
      }
    } else {
      give(all, static_cast<size_t>(std::min_element(load.begin(), load.end()) - load.begin()));
    }
  }
}
}  // namespace

std::vector<SaveItem> plan_save(std::span<const HeldBox> held, int global_rank) {
  std::vector<SaveItem> items;
  std::map<std::vector<int>, std::vector<size_t>> groups;
  for (size_t i = 0; i < held.size(); ++i) {
    check_holders(held[i], global_rank);
    if (numel(held[i].global_sizes) > 0 && numel(held[i].box.sizes) == 0) continue;
    if (held[i].holders.size() > 1)
      groups[held[i].holders].push_back(i);
    else
      items.push_back(make_item(held[i], whole(held, i)));
  }
  for (auto& [holders, group] : groups) plan_group(held, std::move(group), global_rank, items);
  std::sort(items.begin(), items.end(), [](const SaveItem& a, const SaveItem& b) {
    return std::pair(a.held, a.source_nbytes) < std::pair(b.held, b.source_nbytes);
  });
  return items;
}
}  // namespace muster::checkpoint
