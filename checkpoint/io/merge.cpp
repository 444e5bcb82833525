#include <fmt/format.h>

#include <map>

#include "checkpoint/io/digest.h"
#include "checkpoint/io/save_session.h"
#include "checkpoint/plan/shard_map.h"

namespace muster::checkpoint {
namespace {
struct Merged {
  StoredTensor tensor;
  uint64_t digest_sum = 0;
  size_t first_rank = 0;
};

Result<void> add_box(const WrittenBox& box, size_t global_rank, size_t first_file,
                     std::map<std::string, Merged>& tensors) {
  auto [it, is_new] = tensors.try_emplace(box.name);
  Merged& merged = it->second;
  if (is_new) {
    merged.tensor = {box.name, box.dtype, box.global_sizes, 0, {}};
    merged.first_rank = global_rank;
  }
  const StoredTensor& known = merged.tensor;
  if (known.dtype != box.dtype || known.global_sizes != box.global_sizes) {
    return make_error(ErrorCode::kMismatch,
                      "tensor \"{}\" must be the same on all ranks; got {} {} on global rank {} "
                      "and {} {} on global rank {}",
                      box.name, known.dtype, to_string(known.global_sizes), merged.first_rank,
                      box.dtype, to_string(box.global_sizes), global_rank);
  }
  // A tensor without elements is announced by each rank that has it; one announcement is enough.
  if (!is_new && box.stored.nbytes == 0) return {};
  merged.tensor.boxes.push_back(box.stored);
  merged.tensor.boxes.back().file += first_file;
  merged.digest_sum += box.digest_sum;
  return {};
}
}  // namespace

Result<void> merge_written(const std::vector<WrittenFiles>& by_rank, Manifest& manifest) {
  std::map<std::string, Merged> tensors;
  for (size_t global_rank = 0; global_rank < by_rank.size(); ++global_rank) {
    const size_t first_file = manifest.files.size();
    const WrittenFiles& written = by_rank[global_rank];
    manifest.files.insert(manifest.files.end(), written.files.begin(), written.files.end());
    for (const WrittenBox& box : written.boxes)
      MUSTER_TRY(add_box(box, global_rank, first_file, tensors));
  }
  for (auto& [name, merged] : tensors) {
    StoredTensor& tensor = merged.tensor;
    std::vector<Box> boxes;
    for (const StoredBox& stored : tensor.boxes) boxes.push_back(stored.box);
    if (const auto fault = tiling_fault(tensor.global_sizes, boxes)) {
      return make_error(ErrorCode::kMismatch,
                        "tensor \"{}\": the pieces of all ranks must tile it; got {}; check the "
                        "boxes and the holders of its pieces",
                        name, *fault);
    }
    tensor.digest = finish_digest(merged.digest_sum, tensor.dtype, tensor.global_sizes);
    manifest.tensors.push_back(std::move(tensor));
  }
  finish_manifest(manifest);
  return {};
}
}  // namespace muster::checkpoint
