#pragma once
/// A file system in memory that knows what would survive a power loss.
///
/// File content is durable after sync() of the file, a name after sync_directory() of its folder;
/// all else may or may not reach the disk. after_power_loss() makes the images a disk could show.
/// It also counts and can fail operations through a hook. Thread-safe.

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>

#include "core/base/file_system.h"

namespace muster::checkpoint {

/// How much of what was not synced reaches the disk.
enum class PowerLoss {
  kNothing,    ///< only what was synced
  kNamesOnly,  ///< all names, but file content only as of its last sync
  kRandom,     ///< each change of a folder and each tail of a file by the toss of a coin
};

class MemoryFileSystem final : public FileSystem {
 public:
  MemoryFileSystem();
  ~MemoryFileSystem() override;

  /// Runs before each operation that changes something; an error fails the operation.
  using Hook = std::function<Result<void>(const std::string& operation)>;
  void set_hook(Hook hook) { hook_ = std::move(hook); }

  /// A copy as it is now.
  std::unique_ptr<MemoryFileSystem> clone();
  /// What a disk could hold if the power failed now.
  std::unique_ptr<MemoryFileSystem> after_power_loss(PowerLoss loss, std::mt19937_64& rng);

  /// Flips one bit of a file, in place.
  void flip_bit(const std::string& path, int64_t bit);
  /// Cuts or grows (with zeros) a file.
  void resize(const std::string& path, int64_t nbytes);
  /// Writes a whole file.
  void write(const std::string& path, const std::string& text);

  Result<std::unique_ptr<WritableFile>> create(const std::string& path) override;
  Result<std::vector<std::byte>> read(const std::string& path) override;
  Result<void> read_at(const std::string& path, int64_t offset, std::span<std::byte> into) override;
  Result<FileInfo> info(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& directory) override;
  Result<void> make_directories(const std::string& path) override;
  Result<void> rename(const std::string& from, const std::string& to) override;
  Result<void> remove_file(const std::string& path) override;
  Result<void> remove_directory(const std::string& path) override;
  Result<void> sync_directory(const std::string& path) override;

 private:
  struct Node;
  struct Change;
  using NodePtr = std::shared_ptr<Node>;
  class File;

  Result<void> before(const std::string& operation);
  Node* find(const std::string& path);
  Result<Node*> parent_of(const std::string& path);
  static NodePtr copy(const Node& node);
  static NodePtr survive(const Node& node, PowerLoss loss, std::mt19937_64& rng);

  std::mutex mutex_;  // guards the tree
  NodePtr root_;
  Hook hook_;
};

}  // namespace muster::checkpoint
