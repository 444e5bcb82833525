// Memory that all members of a group see: one memfd, which its owner names and the others map.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "dist/backend/shm/group.h"
#include "dist/backend/shm/shm_backend.h"

namespace muster {
namespace {
int64_t whole_pages(int64_t nbytes) {
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  return std::max<int64_t>(1, (nbytes + page - 1) / page) * page;
}

// What the owner says: its descriptor, or why there is none.
std::string words_of(const Result<std::unique_ptr<SharedArena>>& made) {
  return made.ok() ? std::to_string(made.value()->fd()) : "!" + made.error().message();
}

Result<std::unique_ptr<SharedArena>> open_block(ShmBackend::Group& group, const std::string& key,
                                                int owner, int64_t nbytes, Deadline deadline) {
  Store& store = group.context->store();
  if (owner == group.members.group_rank) {
    Result<std::unique_ptr<SharedArena>> made = SharedArena::create({nbytes});
    MUSTER_TRY(store.set(key, words_of(made)));
    return made;
  }
  const std::string words =
      MUSTER_TRY(group.context->await_key_of(group.members.global_rank_of(owner), key, deadline));
  if (words.starts_with("!")) {
    return make_error(ErrorCode::kOutOfMemory, "{} could not make it: {}",
                      group.members.name_of(owner), words.substr(1));
  }
  return SharedArena::attach(group.peer(owner).pid, std::stoi(words), {nbytes});
}
}  // namespace

Result<std::shared_ptr<std::byte>> ShmBackend::share(int64_t nbytes, Deadline deadline) {
  const int owner = num_shared_++ % group_->size();
  const std::string key = fmt::format("{}/shared/{}/{}", group_->context->options().key_prefix,
                                      group_->members.identity, num_shared_);
  std::shared_ptr<SharedArena> block =
      MUSTER_TRY(open_block(*group_, key, owner, whole_pages(nbytes), deadline),
                 fmt::format("while sharing {} bytes in group {}", nbytes, group_->members.name));
  // Whose it is the kernel decides page by page; each member counts an equal part.
  const int64_t part = nbytes / group_->size();
  group_->context->arena().account(part);
  // A failed operation leaves its tensors, and so this block, with the context.
  const auto let_go = [block, weak = std::weak_ptr(group_->context), part](std::byte*) {
    if (const auto context = weak.lock()) context->arena().account(-part);
  };
  return std::shared_ptr<std::byte>(block->at(0), let_go);
}
}  // namespace muster
