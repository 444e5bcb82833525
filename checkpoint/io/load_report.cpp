#include "checkpoint/io/load_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "checkpoint/plan/shard_map.h"

namespace muster::checkpoint {
namespace {
std::vector<Box> boxes_of(const StoredTensor& tensor) {
  std::vector<Box> boxes;
  for (const StoredBox& stored : tensor.boxes) boxes.push_back(stored.box);
  return boxes;
}

// What is wrong between a slot and the tensor that it names.
std::vector<std::string> slot_faults(const TensorSlot& slot, const StoredTensor& stored) {
  std::vector<std::string> faults;
  if (slot.dtype != stored.dtype) {
    faults.push_back(fmt::format("dtype: \"{}\" is {} in the model and {} in the checkpoint",
                                 slot.name, slot.dtype, stored.dtype));
  }
  if (slot.global_sizes != stored.global_sizes) {
    faults.push_back(fmt::format("shape: \"{}\" is {} in the model and {} in the checkpoint",
                                 slot.name, to_string(slot.global_sizes),
                                 to_string(stored.global_sizes)));
    return faults;
  }
  if (!is_inside(slot.box, slot.global_sizes)) {
    faults.push_back(fmt::format("coverage: \"{}\" box {} lies outside of sizes {}", slot.name,
                                 to_string(slot.box), to_string(slot.global_sizes)));
    return faults;
  }
  const int64_t wanted_nbytes = numel(slot.box.sizes) * item_nbytes(slot.dtype);
  if (static_cast<int64_t>(slot.destination.size()) != wanted_nbytes) {
    faults.push_back(fmt::format("coverage: \"{}\" box {} of {} needs {} bytes; the slot has {}",
                                 slot.name, to_string(slot.box), slot.dtype, wanted_nbytes,
                                 slot.destination.size()));
  }
  const std::vector<Box> saved = boxes_of(stored);
  if (const auto fault = tiling_fault(stored.global_sizes, saved))
    faults.push_back(fmt::format("coverage: \"{}\" is not whole: {}", slot.name, *fault));
  return faults;
}

void compare_aliases(const Manifest& manifest, const Aliases& wanted,
                     std::vector<std::string>& faults) {
  for (const auto& [alias, name] : wanted) {
    const auto stored = manifest.aliases.find(alias);
    if (stored == manifest.aliases.end()) {
      faults.push_back(fmt::format(
          "alias: the model ties \"{}\" to \"{}\", the checkpoint does not", alias, name));
    } else if (stored->second != name) {
      faults.push_back(
          fmt::format("alias: the model ties \"{}\" to \"{}\", the checkpoint ties it to \"{}\"",
                      alias, name, stored->second));
    }
  }
  for (const auto& [alias, name] : manifest.aliases) {
    if (wanted.count(alias) == 0) {
      faults.push_back(fmt::format(
          "alias: the checkpoint ties \"{}\" to \"{}\", the model does not", alias, name));
    }
  }
}
}  // namespace

std::string unexpected_fault(const Manifest& manifest, const std::string& name) {
  const StoredTensor* stored = manifest.find(name);
  if (stored == nullptr) return fmt::format("unexpected: \"{}\"", name);
  return fmt::format("unexpected: \"{}\" {} {} is in the checkpoint and not in the model", name,
                     stored->dtype, to_string(stored->global_sizes));
}

LoadReport compare_with_slots(const Manifest& manifest, std::span<const TensorSlot> slots,
                              const Aliases& aliases) {
  LoadReport report;
  std::set<std::string> names;
  for (const TensorSlot& slot : slots) {
    names.insert(slot.name);
    const StoredTensor* stored = manifest.find(slot.name);
    if (stored != nullptr) {
      for (std::string& fault : slot_faults(slot, *stored))
        report.faults.push_back(std::move(fault));
    } else if (manifest.aliases.count(slot.name) == 0) {  // else an alias fault says it better
      report.faults.push_back(
          fmt::format("missing: \"{}\" {} {} is in the model and not in the checkpoint", slot.name,
                      slot.dtype, to_string(slot.global_sizes)));
    }
  }
  compare_aliases(manifest, aliases, report.faults);
  for (const StoredTensor& tensor : manifest.tensors)
    if (names.count(tensor.name) == 0) report.unused.push_back(tensor.name);
  std::sort(report.faults.begin(), report.faults.end());
  report.faults.erase(std::unique(report.faults.begin(), report.faults.end()), report.faults.end());
  return report;
}
}  // namespace muster::checkpoint
