// Checkpoint::verify_deep: all that can be wrong with a folder, found in one pass over its bytes.
#include <fmt/format.h>

#include <map>
#include <set>

#include "checkpoint/io/digest.h"
#include "checkpoint/io/names.h"
#include "checkpoint/io/reader.h"
#include "checkpoint/io/safetensors.h"
#include "checkpoint/plan/shard_map.h"
#include "core/base/text.h"

namespace muster::checkpoint {
namespace {
void note(std::vector<Damage>& damages, std::string file, std::string tensor, const Error& error) {
  damages.push_back({std::move(file), std::move(tensor), error.message()});
}

void verify_tensor(const Checkpoint& checkpoint, const StoredTensor& tensor,
                   std::vector<Damage>& damages) {
  std::vector<Box> boxes;
  uint64_t sum = 0;
  const size_t before = damages.size();
  for (const StoredBox& stored : tensor.boxes) {
    const std::string& file = checkpoint.manifest().files[stored.file].name;
    boxes.push_back(stored.box);
    BoxDigest digest(tensor.dtype, tensor.global_sizes, stored.box);
    const Result<void> read = checkpoint.for_each_chunk(
        tensor, stored, [&](int64_t, std::span<const std::byte> chunk) { digest.update(chunk); });
    if (!read.ok()) note(damages, file, tensor.name, read.error());
    sum += digest.sum();
  }
  if (damages.size() > before) return;
  if (const auto fault = tiling_fault(tensor.global_sizes, boxes)) {
    damages.push_back(
        {"manifest.json", tensor.name, fmt::format("tensor \"{}\": {}", tensor.name, *fault)});
  } else if (finish_digest(sum, tensor.dtype, tensor.global_sizes) != tensor.digest) {
    damages.push_back({"manifest.json", tensor.name,
                       fmt::format("tensor \"{}\": the digest must be {}; got {}", tensor.name,
                                   hex64(tensor.digest),
                                   hex64(finish_digest(sum, tensor.dtype, tensor.global_sizes)))});
  }
}

// A tensor file holds its header and the boxes, and nothing else that someone could hide in.
void verify_totals(const Manifest& manifest, std::vector<Damage>& damages) {
  std::vector<int64_t> covered;
  for (const StoredFile& file : manifest.files) covered.push_back(file.checked_nbytes);
  for (const StoredTensor& tensor : manifest.tensors)
    for (const StoredBox& stored : tensor.boxes) covered[stored.file] += stored.nbytes;
  for (size_t i = 0; i < covered.size(); ++i) {
    const StoredFile& file = manifest.files[i];
    if (covered[i] != file.nbytes) {
      damages.push_back({file.name, "",
                         fmt::format("file {}: {} of {} bytes are covered by checksums", file.name,
                                     covered[i], file.nbytes)});
    }
  }
}
}  // namespace

std::vector<Damage> Checkpoint::verify_deep() const {
  std::vector<Damage> damages;
  std::set<std::string> listed{std::string(kManifestName)};
  for (const StoredFile& file : manifest_.files) {
    listed.insert(file.name);
    const Result<void> checked = verify_file(file);
    if (!checked.ok()) {
      note(damages, file.name, "", checked.error());
    } else if (file.name.ends_with(".safetensors")) {
      const auto header = read_safetensors_header(*fs_, path_join(path_, file.name));
      if (!header.ok()) note(damages, file.name, "", header.error());
    }
  }
  for (const StoredTensor& tensor : manifest_.tensors) verify_tensor(*this, tensor, damages);
  verify_totals(manifest_, damages);
  const auto names = fs_->list(path_);
  if (!names.ok()) {
    note(damages, path_, "", names.error());
    return damages;
  }
  for (const std::string& name : *names) {
    if (listed.count(name) == 0)
      damages.push_back({name, "", fmt::format("file {}: the manifest does not list it", name)});
  }
  return damages;
}
}  // namespace muster::checkpoint
