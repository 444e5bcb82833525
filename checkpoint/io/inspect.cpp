#include "checkpoint/io/inspect.h"

#include <fmt/format.h>

#include <map>

#include "checkpoint/io/digest.h"
#include "checkpoint/io/discovery.h"
#include "checkpoint/io/names.h"
#include "core/base/text.h"

namespace muster::checkpoint {
namespace {
std::string last_part(const std::string& path) {
  std::string trimmed = path;
  while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
  return trimmed.substr(trimmed.find_last_of('/') + 1);
}

Result<bool> is_one_checkpoint(FileSystem& fs, const std::string& path) {
  if (parse_folder_name(last_part(path))) return true;
  return MUSTER_TRY(fs.info(path_join(path, std::string(kManifestName)))).exists;
}

ListedCheckpoint list_one(FileSystem& fs, const std::string& path) {
  ListedCheckpoint listed;
  listed.name = last_part(path);
  listed.path = path;
  if (const auto folder = parse_folder_name(listed.name)) listed.step = folder->step;
  const Result<Checkpoint> opened = Checkpoint::open(fs, path);
  if (!opened.ok()) {
    listed.reason = opened.error().message();
    return listed;
  }
  const Manifest& manifest = opened->manifest();
  listed.step = manifest.step;
  listed.created = manifest.created;
  listed.world_size = manifest.world_size;
  listed.num_tensors = static_cast<int64_t>(manifest.tensors.size());
  listed.nbytes = manifest.total_nbytes() + opened->manifest_nbytes();
  listed.digest = manifest.digest;
  return listed;
}
}  // namespace

Result<std::vector<ListedCheckpoint>> list_checkpoints(FileSystem& fs, const std::string& path) {
  std::vector<ListedCheckpoint> listed;
  if (MUSTER_TRY(is_one_checkpoint(fs, path))) {
    listed.push_back(list_one(fs, path));
    return listed;
  }
  for (const Candidate& candidate : MUSTER_TRY(list_candidates(fs, path)))
    listed.push_back(list_one(fs, candidate.path));
  if (listed.empty())
    return make_error(ErrorCode::kNotFound, "{}: must be or hold a checkpoint; got neither", path);
  return listed;
}

Result<Checkpoint> open_checkpoint(FileSystem& fs, const std::string& path) {
  if (MUSTER_TRY(is_one_checkpoint(fs, path))) return Checkpoint::open(fs, path);
  const Newest newest = MUSTER_TRY(find_newest(fs, path));
  if (newest.candidate) return Checkpoint::open(fs, newest.candidate->path);
  if (newest.skipped.empty())
    return make_error(ErrorCode::kNotFound, "{}: must be or hold a checkpoint; got neither", path);
  Error error = make_error(ErrorCode::kCorruption,
                           "{}: one of {} checkpoints must be whole; got "
                           "damage in each",
                           path, newest.skipped.size());
  for (const Skipped& entry : newest.skipped) error.add_context(entry.name + ": " + entry.reason);
  return error;
}

Result<DigestReport> digest_checkpoint(const Checkpoint& checkpoint) {
  DigestReport report;
  report.step = checkpoint.manifest().step;
  TotalDigest total;
  for (const StoredTensor& tensor : checkpoint.manifest().tensors) {
    uint64_t sum = 0;
    for (const StoredBox& stored : tensor.boxes) {
      BoxDigest digest(tensor.dtype, tensor.global_sizes, stored.box);
      MUSTER_TRY(checkpoint.for_each_chunk(
          tensor, stored,
          [&](int64_t, std::span<const std::byte> bytes) { digest.update(bytes); }));
      sum += digest.sum();
    }
    const uint64_t digest = finish_digest(sum, tensor.dtype, tensor.global_sizes);
    report.tensors.push_back({tensor.name, tensor.dtype, tensor.global_sizes, hex64(digest)});
    total.add(tensor.name, digest);
  }
  report.total = hex64(total.value());
  return report;
}

std::vector<Box> slabs_of(const Dims& sizes, int64_t max_numel) {
  std::vector<Box> slabs;
  if (numel(sizes) == 0) return slabs;
  // Dims before `cut` are walked one by one, `cut` in groups of rows, those behind it are whole.
  size_t cut = sizes.size();
  int64_t inner = 1;
  while (cut > 0 && inner * sizes[cut - 1] <= max_numel) inner *= sizes[--cut];
  if (cut == 0) {
    slabs.push_back(full_box(sizes));
    return slabs;
  }
  --cut;
  const int64_t rows = std::max<int64_t>(1, max_numel / inner);
  Box box = full_box(sizes);
  for (size_t d = 0; d < cut; ++d) box.sizes[d] = 1;
  for (;;) {
    for (int64_t begin = 0; begin < sizes[cut]; begin += rows) {
      box.offsets[cut] = begin;
      box.sizes[cut] = std::min(rows, sizes[cut] - begin);
      slabs.push_back(box);
    }
    size_t d = cut;
    while (d > 0 && ++box.offsets[d - 1] == sizes[d - 1]) box.offsets[--d] = 0;
    if (d == 0) return slabs;
  }
}
}  // namespace muster::checkpoint
