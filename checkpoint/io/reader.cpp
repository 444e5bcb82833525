#include "checkpoint/io/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/io/digest.h"
#include "checkpoint/io/names.h"
#include "checkpoint/plan/load_plan.h"
#include "core/base/hash.h"
#include "core/base/text.h"

namespace muster::checkpoint {

// Reads a stored box chunk by chunk in ascending order, each chunk at most once while it is
// current.
class ChunkReader {
 public:
  ChunkReader(const Checkpoint& checkpoint, const StoredTensor& tensor, const StoredBox& stored)
      : checkpoint_(checkpoint),
        tensor_(tensor),
        stored_(stored),
        file_(checkpoint.manifest_.files[stored.file]) {}

  // The verified bytes from `begin` (in the box) to the end of its chunk, at most `nbytes`.
  Result<std::span<const std::byte>> at(int64_t begin, int64_t nbytes) {
    const int64_t chunk_nbytes = checkpoint_.manifest_.chunk_nbytes;
    const int64_t chunk = begin / chunk_nbytes;
    if (chunk != current_) MUSTER_TRY(load(chunk));
    const int64_t skip = begin - chunk * chunk_nbytes;
    const int64_t left = static_cast<int64_t>(buffer_.size()) - skip;
    return std::span<const std::byte>(buffer_).subspan(static_cast<size_t>(skip),
                                                       static_cast<size_t>(std::min(nbytes, left)));
  }

  [[nodiscard]] int64_t read_nbytes() const { return read_nbytes_; }

 private:
  Result<void> load(int64_t chunk) {
    const int64_t chunk_nbytes = checkpoint_.manifest_.chunk_nbytes;
    const int64_t begin = chunk * chunk_nbytes;
    const int64_t nbytes = std::min(chunk_nbytes, stored_.nbytes - begin);
    buffer_.resize(static_cast<size_t>(nbytes));
    const int64_t offset = stored_.offset + begin;
    MUSTER_TRY(checkpoint_.fs_->read_at(path_join(checkpoint_.path_, file_.name), offset, buffer_),
               fmt::format("in tensor \"{}\"", tensor_.name));
    const uint64_t checksum = hash_bytes(buffer_);
    const uint64_t wanted = stored_.checksums[static_cast<size_t>(chunk)];
    if (checksum != wanted) {
      return make_error(ErrorCode::kCorruption,
                        "tensor \"{}\": bytes {} to {} of {} must have checksum {}; got {}",
                        tensor_.name, offset, offset + nbytes, file_.name, hex64(wanted),
                        hex64(checksum));
    }
    current_ = chunk;
    read_nbytes_ += nbytes;
    return {};
  }

  const Checkpoint& checkpoint_;
  const StoredTensor& tensor_;
  const StoredBox& stored_;
  const StoredFile& file_;
  std::vector<std::byte> buffer_;
  int64_t current_ = -1;
  int64_t read_nbytes_ = 0;
};

namespace {
std::vector<Box> boxes_of(const StoredTensor& tensor) {
  std::vector<Box> boxes;
  for (const StoredBox& stored : tensor.boxes) boxes.push_back(stored.box);
  return boxes;
}

Result<void> copy_piece(ChunkReader& reader, const StoredTensor& tensor, const StoredBox& stored,
                        const Box& overlap, const TensorSlot& slot) {
  const int64_t item = item_nbytes(tensor.dtype);
  Result<void> outcome;
  for_each_run(overlap, stored.box, slot.box, [&](int64_t from, int64_t to, int64_t n) {
    int64_t done = 0;
    while (outcome.ok() && done < n * item) {
      const auto bytes = reader.at(from * item + done, n * item - done);
      if (!bytes.ok()) {
        outcome = bytes.error();
        return;
      }
      std::memcpy(slot.destination.data() + to * item + done, bytes->data(), bytes->size());
      done += static_cast<int64_t>(bytes->size());
    }
  });
  return outcome;
}
}  // namespace

Result<Checkpoint> Checkpoint::open(FileSystem& fs, const std::string& path) {
  Checkpoint checkpoint;
  checkpoint.fs_ = &fs;
  checkpoint.path_ = path;
  checkpoint.lock_ = FolderLock::share(path);
  Result<std::string> text = read_text(fs, path_join(path, std::string(kManifestName)));
  if (!text.ok() && text.error().code() == ErrorCode::kNotFound) {
    return make_error(ErrorCode::kNotFound, "open checkpoint {}: there is no {}", path,
                      kManifestName);
  }
  if (!text.ok()) return text.error();
  checkpoint.manifest_nbytes_ = static_cast<int64_t>(text->size());
  checkpoint.manifest_ = MUSTER_TRY(parse_manifest(*text), "in " + path);
  for (const StoredFile& file : checkpoint.manifest_.files) {
    const FileInfo info = MUSTER_TRY(fs.info(path_join(path, file.name)));
    if (!info.exists) {
      return make_error(ErrorCode::kCorruption, "open checkpoint {}: {} is missing", path,
                        file.name);
    }
    if (info.nbytes != file.nbytes) {
      return make_error(ErrorCode::kCorruption, "open checkpoint {}: {} must have {} bytes; got {}",
                        path, file.name, file.nbytes, info.nbytes);
    }
  }
  return checkpoint;
}

Result<void> Checkpoint::verify_file(const StoredFile& file) const {
  std::vector<std::byte> bytes(static_cast<size_t>(file.checked_nbytes));
  MUSTER_TRY(fs_->read_at(path_join(path_, file.name), 0, bytes));
  const uint64_t checksum = hash_bytes(bytes);
  if (checksum == file.checksum) return {};
  return make_error(ErrorCode::kCorruption, "file {}: bytes 0 to {} must have checksum {}; got {}",
                    file.name, file.checked_nbytes, hex64(file.checksum), hex64(checksum));
}

Result<int64_t> Checkpoint::read_slots(std::span<const TensorSlot> slots) const {
  // Slots of one tensor share a pass over its boxes, so that no chunk is read twice in a row.
  std::set<size_t> headers_seen;
  int64_t read_nbytes = 0;
  for (const TensorSlot& slot : slots) {
    const StoredTensor* tensor = manifest_.find(slot.name);
    MUSTER_ASSERT(tensor != nullptr, "slot \"{}\" was not compared", slot.name);
    const std::vector<Box> saved = boxes_of(*tensor);
    for (const LoadPiece& piece : plan_load(slot.box, saved)) {
      const StoredBox& stored = tensor->boxes[piece.saved];
      if (headers_seen.insert(stored.file).second)
        MUSTER_TRY(verify_file(manifest_.files[stored.file]), "in " + path_);
      ChunkReader reader(*this, *tensor, stored);
      MUSTER_TRY(copy_piece(reader, *tensor, stored, piece.overlap, slot), "in " + path_);
      read_nbytes += reader.read_nbytes();
    }
  }
  return read_nbytes;
}

Result<void> Checkpoint::for_each_chunk(const StoredTensor& tensor, const StoredBox& box,
                                        const ChunkBody& body) const {
  ChunkReader reader(*this, tensor, box);
  for (int64_t at = 0; at < box.nbytes; at += manifest_.chunk_nbytes) {
    const auto bytes = MUSTER_TRY(reader.at(at, manifest_.chunk_nbytes));
    body(at / item_nbytes(tensor.dtype), bytes);
  }
  return {};
}

Result<std::vector<std::byte>> Checkpoint::read_object(const std::string& name) const {
  const StoredFile* file = manifest_.find_file(name);
  if (file == nullptr)
    return make_error(ErrorCode::kCorruption, "file {}: the manifest does not list it", name);
  std::vector<std::byte> bytes(static_cast<size_t>(file->nbytes));
  MUSTER_TRY(fs_->read_at(path_join(path_, name), 0, bytes));
  const uint64_t checksum = hash_bytes(bytes);
  if (checksum == file->checksum && file->checked_nbytes == file->nbytes) return bytes;
  return make_error(ErrorCode::kCorruption, "file {}: bytes 0 to {} must have checksum {}; got {}",
                    name, file->nbytes, hex64(file->checksum), hex64(checksum));
}

Result<LoadedState> Checkpoint::read_state() const {
  using nlohmann::json;
  LoadedState state;
  state.step = manifest_.step;
  state.path = path_;
  state.save_id = manifest_.save_id;
  state.digest = manifest_.digest;
  state.writer_world_size = manifest_.world_size;
  state.mesh_json = manifest_.mesh_json;
  state.code_revision = manifest_.code_revision;
  state.aliases = manifest_.aliases;
  try {
    const auto train = MUSTER_TRY(read_object(std::string(kTrainStateName)), "in " + path_);
    const json train_json = json::parse(train.begin(), train.end());
    state.train_state_json = train_json.at("state").dump();
    state.recipe_text = train_json.at("recipe");
    for (int global_rank = 0; global_rank < manifest_.world_size; ++global_rank) {
      const auto text = MUSTER_TRY(read_object(rank_state_name(global_rank)), "in " + path_);
      state.rank_states_json.push_back(json::parse(text.begin(), text.end()).at("state").dump());
    }
  } catch (const json::exception& error) {
    return make_error(ErrorCode::kCorruption, "read {}: state files must be JSON objects; got {}",
                      path_, error.what());
  }
  return state;
}
}  // namespace muster::checkpoint
