#include "checkpoint/io/rank_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/io/digest.h"
#include "checkpoint/io/names.h"
#include "checkpoint/io/safetensors.h"
#include "core/base/hash.h"
#include "core/base/text.h"

namespace muster::checkpoint {
namespace {
using nlohmann::json;

// Data begins on a page of its own, so that large writes are aligned in the page cache.
constexpr int64_t kDataAlignment = 4096;

// Blocks fit the second-level cache of a core. A multiple of all element sizes.
constexpr size_t kBlockNbytes = size_t{256} << 10;

struct FileContent {
  std::vector<SafetensorsTensor> tensors;
  std::vector<const TensorPiece*> pieces;
  std::vector<Box> boxes;
};

// The k-th box of a name goes to the k-th file.
std::vector<FileContent> assign_to_files(std::span<const TensorPiece> pieces,
                                         std::span<const SaveItem> items) {
  std::map<std::string, size_t> seen;
  std::vector<FileContent> files(1);
  for (const SaveItem& item : items) {
    const TensorPiece& piece = pieces[item.held];
    const size_t index = seen[piece.name]++;
    if (index == files.size()) files.emplace_back();
    files[index].tensors.push_back({piece.name, std::string(safetensors_name(piece.dtype)),
                                    item.box.sizes,
                                    piece.data.subspan(static_cast<size_t>(item.source_nbytes),
                                                       static_cast<size_t>(item.nbytes))});
    files[index].pieces.push_back(&piece);
    files[index].boxes.push_back(item.box);
  }
  for (FileContent& file : files) {
    FileContent sorted;
    for (const size_t i : safetensors_order(file.tensors)) {
      sorted.tensors.push_back(file.tensors[i]);
      sorted.pieces.push_back(file.pieces[i]);
      sorted.boxes.push_back(file.boxes[i]);
    }
    file = std::move(sorted);
  }
  return files;
}

// That of its only chunk, or XXH3-64 over the little-endian checksums of all its chunks.
uint64_t key_checksum(const std::vector<uint64_t>& chunks) {
  if (chunks.size() == 1) return chunks[0];
  return hash_bytes(std::as_bytes(std::span(chunks)));
}

std::string render_header(const RankFileTarget& target, const FileContent& content,
                          const std::vector<uint64_t>& key_checksums) {
  json sharding = json::object();
  json checksums = json::object();
  for (size_t i = 0; i < content.tensors.size(); ++i) {
    sharding[content.tensors[i].name] = {{"saved_offsets", content.boxes[i].offsets}};
    checksums[content.tensors[i].name] = hex64(key_checksums[i]);
  }
  return render_safetensors_header({{"format", "pt"},
                                    {"DCP_VERSION", "1.0"},
                                    {"DCP_SHARDING_INFO", sharding.dump()},
                                    {"muster.version", std::to_string(kFormatVersion)},
                                    {"muster.save_id", target.save_id},
                                    {"muster.step", std::to_string(target.step)},
                                    {"muster.chunk_nbytes", std::to_string(target.chunk_nbytes)},
                                    {"muster.xxh3_64", checksums.dump()}},
                                   content.tensors, kDataAlignment)
      .value();
}

// One pass over the caller's memory: each block is summed and then written while it is in the
// cache.
Result<void> write_box(const RankFileTarget& target, WritableFile& file,
                       std::span<const std::byte> data, WrittenBox& written) {
  BoxDigest digest(written.dtype, written.global_sizes, written.stored.box);
  const size_t chunk_nbytes = static_cast<size_t>(target.chunk_nbytes);
  for (size_t at = 0; at < data.size(); at += chunk_nbytes) {
    const auto chunk = data.subspan(at, std::min(chunk_nbytes, data.size() - at));
    StreamingHash checksum;
    for (size_t done = 0; done < chunk.size(); done += kBlockNbytes) {
      const auto block = chunk.subspan(done, std::min(kBlockNbytes, chunk.size() - done));
      checksum.update(block);
      digest.update(block);
      MUSTER_TRY(file.append(block));
    }
    written.stored.checksums.push_back(checksum.digest());
  }
  written.digest_sum = digest.sum();
  return {};
}

Result<void> write_tensor_file(const RankFileTarget& target, const FileContent& content,
                               size_t index, WrittenFiles& written) {
  const std::string name = rank_file_name(target.global_rank, static_cast<int>(index));
  std::vector<uint64_t> key_checksums(content.tensors.size(), 0);
  const std::string draft = render_header(target, content, key_checksums);
  const auto file = MUSTER_TRY(target.file_system->create(path_join(target.folder, name)));
  MUSTER_TRY(file->append(std::as_bytes(std::span(draft))));
  int64_t at = static_cast<int64_t>(draft.size());
  for (size_t i = 0; i < content.tensors.size(); ++i) {
    const TensorPiece& piece = *content.pieces[i];
    WrittenBox box{piece.name, piece.dtype, piece.global_sizes, 0, {}};
    box.stored.file = index;
    box.stored.offset = at;
    box.stored.nbytes = static_cast<int64_t>(content.tensors[i].data.size());
    box.stored.box = content.boxes[i];
    MUSTER_TRY(write_box(target, *file, content.tensors[i].data, box));
    key_checksums[i] = key_checksum(box.stored.checksums);
    at += box.stored.nbytes;
    written.data_nbytes += box.stored.nbytes;
    written.boxes.push_back(std::move(box));
  }
  // The checksums are known only now; they have a fixed width, so the header keeps its size.
  const std::string header = render_header(target, content, key_checksums);
  MUSTER_ASSERT(header.size() == draft.size(), "{} bytes, then {}", draft.size(), header.size());
  MUSTER_TRY(file->overwrite(0, std::as_bytes(std::span(header))));
  MUSTER_TRY(file->sync());
  MUSTER_TRY(file->close());
  written.files.push_back({name, at, static_cast<int64_t>(header.size()), hash_text(header)});
  return {};
}
}  // namespace

Result<WrittenFiles> write_tensor_files(const RankFileTarget& target,
                                        std::span<const TensorPiece> pieces,
                                        std::span<const SaveItem> items) {
  WrittenFiles written;
  const std::vector<FileContent> files = assign_to_files(pieces, items);
  for (size_t index = 0; index < files.size(); ++index)
    MUSTER_TRY(write_tensor_file(target, files[index], index, written));
  return written;
}

Result<StoredFile> write_object_file(const RankFileTarget& target, const std::string& name,
                                     const std::string& extra_json, const std::string& state_json) {
  json object = json::parse(extra_json);
  object["version"] = kFormatVersion;
  object["save_id"] = target.save_id;
  object["step"] = target.step;
  object["state"] = json::parse(state_json);
  const std::string text = object.dump() + "\n";
  const auto file = MUSTER_TRY(target.file_system->create(path_join(target.folder, name)));
  MUSTER_TRY(file->append(std::as_bytes(std::span(text))));
  MUSTER_TRY(file->sync());
  MUSTER_TRY(file->close());
  const int64_t nbytes = static_cast<int64_t>(text.size());
  return StoredFile{name, nbytes, nbytes, hash_text(text)};
}

Result<std::string> canonical_json_object(const std::string& what, const std::string& text) {
  try {
    const json object = json::parse(text);
    if (object.is_object()) return object.dump();
    return make_error(ErrorCode::kInvalidArgument, "{} must be a JSON object; got {}", what,
                      object.type_name());
  } catch (const json::exception& error) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} must be a JSON object; got text that is no "
                      "JSON: {}",
                      what, error.what());
  }
}

Result<void> tear_tensor_file(const RankFileTarget& target) {
  const std::string path = path_join(target.folder, rank_file_name(target.global_rank));
  const std::vector<std::byte> bytes = MUSTER_TRY(target.file_system->read(path));
  const auto file = MUSTER_TRY(target.file_system->create(path));
  MUSTER_TRY(file->append(std::span(bytes).first(bytes.size() / 2)));
  return file->close();
}
}  // namespace muster::checkpoint
