#include "tests/checkpoint/memory_file_system.h"

#include <fmt/format.h>

#include <cstring>

#include "core/base/text.h"

namespace muster::checkpoint {

// A change of a folder that is not synced yet. Each reaches the disk whole or not at all.
struct MemoryFileSystem::Change {
  std::string removed;
  std::string added;
  NodePtr node;
};

struct MemoryFileSystem::Node {
  bool is_directory = false;
  std::vector<std::byte> content;
  std::vector<std::byte> durable_content;
  std::map<std::string, NodePtr> children;
  std::map<std::string, NodePtr> durable_children;
  std::vector<Change> pending;  // since durable_children
};

namespace {
std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  for (std::string& part : split(path, '/'))
    if (!part.empty() && part != ".") parts.push_back(std::move(part));
  return parts;
}
Error missing(const std::string& operation, const std::string& path) {
  return make_error(ErrorCode::kNotFound, "{} {}: No such file or directory", operation, path);
}
}  // namespace

class MemoryFileSystem::File final : public WritableFile {
 public:
  File(MemoryFileSystem& fs, NodePtr node, std::string path)
      : fs_(fs), node_(std::move(node)), path_(std::move(path)) {}
  Result<void> append(std::span<const std::byte> bytes) override {
    MUSTER_TRY(fs_.before("append " + path_));
    const std::lock_guard lock(fs_.mutex_);
    node_->content.insert(node_->content.end(), bytes.begin(), bytes.end());
    return {};
  }
  Result<void> overwrite(int64_t offset, std::span<const std::byte> bytes) override {
    MUSTER_TRY(fs_.before("overwrite " + path_));
    const std::lock_guard lock(fs_.mutex_);
    std::memcpy(node_->content.data() + offset, bytes.data(), bytes.size());
    return {};
  }
  Result<void> sync() override {
    MUSTER_TRY(fs_.before("sync " + path_));
    const std::lock_guard lock(fs_.mutex_);
    node_->durable_content = node_->content;
    return {};
  }
  Result<void> close() override { return fs_.before("close " + path_); }

 private:
  MemoryFileSystem& fs_;
  NodePtr node_;
  std::string path_;
};

MemoryFileSystem::MemoryFileSystem() : root_(std::make_shared<Node>()) {
  root_->is_directory = true;
}
MemoryFileSystem::~MemoryFileSystem() = default;

Result<void> MemoryFileSystem::before(const std::string& operation) {
  if (hook_) return hook_(operation);
  return {};
}

MemoryFileSystem::Node* MemoryFileSystem::find(const std::string& path) {
  Node* node = root_.get();
  for (const std::string& part : parts_of(path)) {
    const auto it = node->children.find(part);
    if (it == node->children.end()) return nullptr;
    node = it->second.get();
  }
  return node;
}

Result<MemoryFileSystem::Node*> MemoryFileSystem::parent_of(const std::string& path) {
  Node* parent = find(path_parent(path));
  if (parent == nullptr) return missing("open", path);
  return parent;
}

MemoryFileSystem::NodePtr MemoryFileSystem::copy(const Node& node) {
  // A node can be reached by its durable and by its new name: the copy keeps them one.
  std::map<const Node*, NodePtr> copies;
  const std::function<NodePtr(const NodePtr&)> visit = [&](const NodePtr& from) {
    if (!from) return from;
    NodePtr& to = copies[from.get()];
    if (to) return to;
    to = std::make_shared<Node>(*from);
    const NodePtr made = to;
    for (auto& [name, child] : made->children) child = visit(child);
    for (auto& [name, child] : made->durable_children) child = visit(child);
    for (Change& change : made->pending) change.node = visit(change.node);
    return made;
  };
  return visit(std::make_shared<Node>(node));
}

MemoryFileSystem::NodePtr MemoryFileSystem::survive(const Node& node, PowerLoss loss,
                                                    std::mt19937_64& rng) {
  const auto made = std::make_shared<Node>();
  made->is_directory = node.is_directory;
  made->content = node.durable_content;
  if (loss == PowerLoss::kRandom && node.content.size() > node.durable_content.size()) {
    const size_t more = rng() % (node.content.size() - node.durable_content.size() + 1);
    made->content.assign(
        node.content.begin(),
        node.content.begin() + static_cast<std::ptrdiff_t>(node.durable_content.size() + more));
  }
  std::map<std::string, NodePtr> names = node.durable_children;
  if (loss == PowerLoss::kNamesOnly) names = node.children;
  if (loss == PowerLoss::kRandom) {
    for (const Change& change : node.pending) {
      if (rng() % 2 == 0) continue;
      if (!change.removed.empty()) names.erase(change.removed);
      if (change.node) names[change.added] = change.node;
    }
  }
  for (const auto& [name, child] : names) made->children[name] = survive(*child, loss, rng);
  made->durable_content = made->content;
  made->durable_children = made->children;
  return made;
}

std::unique_ptr<MemoryFileSystem> MemoryFileSystem::clone() {
  const std::lock_guard lock(mutex_);
  auto made = std::make_unique<MemoryFileSystem>();
  made->root_ = copy(*root_);
  return made;
}

std::unique_ptr<MemoryFileSystem> MemoryFileSystem::after_power_loss(PowerLoss loss,
                                                                     std::mt19937_64& rng) {
  const std::lock_guard lock(mutex_);
  auto made = std::make_unique<MemoryFileSystem>();
  made->root_ = survive(*root_, loss, rng);
  return made;
}

void MemoryFileSystem::flip_bit(const std::string& path, int64_t bit) {
  const std::lock_guard lock(mutex_);
  find(path)->content.at(static_cast<size_t>(bit / 8)) ^= static_cast<std::byte>(1 << (bit % 8));
}

void MemoryFileSystem::resize(const std::string& path, int64_t nbytes) {
  const std::lock_guard lock(mutex_);
  find(path)->content.resize(static_cast<size_t>(nbytes));
}

void MemoryFileSystem::write(const std::string& path, const std::string& text) {
  const auto file = create(path).value();
  file->append(std::as_bytes(std::span(text))).value();
  file->sync().value();
}

Result<std::unique_ptr<WritableFile>> MemoryFileSystem::create(const std::string& path) {
  MUSTER_TRY(before("create " + path));
  const std::lock_guard lock(mutex_);
  Node* parent = MUSTER_TRY(parent_of(path));
  const std::string name = parts_of(path).back();
  NodePtr& node = parent->children[name];
  if (node) {
    node->content.clear();
  } else {
    node = std::make_shared<Node>();
    parent->pending.push_back({"", name, node});
  }
  return std::unique_ptr<WritableFile>(std::make_unique<File>(*this, node, path));
}

Result<std::vector<std::byte>> MemoryFileSystem::read(const std::string& path) {
  const std::lock_guard lock(mutex_);
  Node* node = find(path);
  if (node == nullptr || node->is_directory) return missing("open", path);
  return node->content;
}

Result<void> MemoryFileSystem::read_at(const std::string& path, int64_t offset,
                                       std::span<std::byte> into) {
  const std::lock_guard lock(mutex_);
  Node* node = find(path);
  if (node == nullptr || node->is_directory) return missing("open", path);
  const size_t begin = static_cast<size_t>(offset);
  if (begin + into.size() > node->content.size()) {
    return make_error(ErrorCode::kCorruption, "read {}: {} bytes at {} wanted; the file has {}",
                      path, into.size(), offset, node->content.size());
  }
  if (!into.empty()) std::memcpy(into.data(), node->content.data() + begin, into.size());
  return {};
}

Result<FileInfo> MemoryFileSystem::info(const std::string& path) {
  const std::lock_guard lock(mutex_);
  Node* node = find(path);
  if (node == nullptr) return FileInfo{};
  return FileInfo{true, node->is_directory, static_cast<int64_t>(node->content.size())};
}

Result<std::vector<std::string>> MemoryFileSystem::list(const std::string& directory) {
  const std::lock_guard lock(mutex_);
  Node* node = find(directory);
  if (node == nullptr) return missing("list", directory);
  std::vector<std::string> names;
  for (const auto& [name, child] : node->children) names.push_back(name);
  return names;
}

Result<void> MemoryFileSystem::make_directories(const std::string& path) {
  MUSTER_TRY(before("mkdir " + path));
  const std::lock_guard lock(mutex_);
  Node* node = root_.get();
  for (const std::string& part : parts_of(path)) {
    NodePtr& child = node->children[part];
    if (!child) {
      child = std::make_shared<Node>();
      child->is_directory = true;
      node->pending.push_back({"", part, child});
    }
    node = child.get();
  }
  return {};
}

Result<void> MemoryFileSystem::rename(const std::string& from, const std::string& to) {
  MUSTER_TRY(before("rename " + from + " to " + to));
  const std::lock_guard lock(mutex_);
  Node* old_parent = MUSTER_TRY(parent_of(from));
  Node* new_parent = MUSTER_TRY(parent_of(to));
  const auto it = old_parent->children.find(parts_of(from).back());
  if (it == old_parent->children.end()) return missing("rename", from);
  const NodePtr node = it->second;
  // All renames here stay in one folder.
  NodePtr& target = new_parent->children[parts_of(to).back()];
  if (target && target->is_directory && !target->children.empty())
    return make_error(ErrorCode::kIo, "rename {} to {}: Directory not empty", from, to);
  target = node;
  old_parent->children.erase(parts_of(from).back());
  new_parent->pending.push_back({parts_of(from).back(), parts_of(to).back(), node});
  return {};
}

Result<void> MemoryFileSystem::remove_file(const std::string& path) {
  MUSTER_TRY(before("unlink " + path));
  const std::lock_guard lock(mutex_);
  Node* parent = MUSTER_TRY(parent_of(path));
  if (parent->children.erase(parts_of(path).back()) == 0) return missing("unlink", path);
  parent->pending.push_back({parts_of(path).back(), "", nullptr});
  return {};
}

Result<void> MemoryFileSystem::remove_directory(const std::string& path) {
  MUSTER_TRY(before("rmdir " + path));
  const std::lock_guard lock(mutex_);
  Node* node = find(path);
  if (node == nullptr) return missing("rmdir", path);
  if (!node->children.empty())
    return make_error(ErrorCode::kIo, "rmdir {}: Directory not empty", path);
  Node* parent = MUSTER_TRY(parent_of(path));
  parent->children.erase(parts_of(path).back());
  parent->pending.push_back({parts_of(path).back(), "", nullptr});
  return {};
}

Result<void> MemoryFileSystem::sync_directory(const std::string& path) {
  MUSTER_TRY(before("sync_directory " + path));
  const std::lock_guard lock(mutex_);
  Node* node = find(path);
  if (node == nullptr) return missing("fsync", path);
  node->durable_children = node->children;
  node->pending.clear();
  return {};
}
}  // namespace muster::checkpoint
