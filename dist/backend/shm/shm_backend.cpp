#include "dist/backend/shm/shm_backend.h"

#include <fmt/format.h>

#include <new>

#include "dist/backend/shm/group.h"

namespace muster {
namespace {
// Where the members of one group tell each other their blocks.
std::string blocks_key(const shm::Context& context, const GroupMembers& group) {
  return fmt::format("{}/group/{}", context.options().key_prefix, group.identity);
}
}  // namespace

Result<std::unique_ptr<ShmBackend>> ShmBackend::open(std::shared_ptr<shm::Context> context,
                                                     GroupMembers members, Deadline deadline) {
  auto group = std::make_shared<Group>(std::move(context), std::move(members));
  const int size = group->size();
  const int64_t nbytes = shm::control_nbytes(size);
  SharedArena& arena = group->context->arena();
  void* memory = arena.allocate(nbytes);
  std::memset(memory, 0, static_cast<size_t>(nbytes));
  auto* own = new (memory) shm::ControlBlock();
  for (int peer = 0; peer < size; ++peer) {
    new (&shm::outbox(*own, peer)) shm::Outbox();
    new (&shm::taken(*own, size, peer)) shm::Clock();
  }
  group->own_block_nbytes = nbytes;
  group->unread.resize(static_cast<size_t>(size));
  const std::string key = blocks_key(*group->context, group->members);
  const int own_rank = group->members.group_rank;
  MUSTER_TRY(group->context->store().set(fmt::format("{}/{}", key, own_rank),
                                         std::to_string(arena.offset_of(memory))));
  for (int peer = 0; peer < size; ++peer) {
    if (peer == own_rank) {
      group->blocks.push_back(own);
      continue;
    }
    const std::string offset =
        MUSTER_TRY(group->context->await_key_of(group->members.global_rank_of(peer),
                                                fmt::format("{}/{}", key, peer), deadline),
                   fmt::format("while opening group {}", group->members.name));
    std::byte* at = group->peer(peer).arena->at(std::stoll(offset), nbytes);
    group->blocks.push_back(reinterpret_cast<shm::ControlBlock*>(at));
  }
  group->context->add_observer(group.get(),
                               [raw = group.get()](int rank) { return raw->where_it_waits(rank); });
  return std::unique_ptr<ShmBackend>(new ShmBackend(std::move(group)));
}

Result<std::unique_ptr<ShmBackend>> ShmBackend::open_world(shm::Context::Options options,
                                                           Deadline deadline) {
  GroupMembers world = GroupMembers::world(options.global_rank, options.world_size);
  std::shared_ptr<shm::Context> context =
      MUSTER_TRY(shm::Context::open(std::move(options), deadline));
  return open(std::move(context), std::move(world), deadline);
}

ShmBackend::~ShmBackend() { group_->close(); }

std::shared_ptr<Work> ShmBackend::launch(CollectiveRequest request) {
  const bool async_op = request.async_op;
  const bool is_send = request.descriptor.kind == CollectiveKind::kSend;
  auto work = std::make_shared<ShmWork>(group_, std::move(request));
  group_->enqueue(work);
  // A send is buffered: it leaves now unless the peer is far behind.
  const bool is_over = is_send && group_->drive(*work, Deadline::after(Duration::zero()));
  if (async_op && !is_over) group_->drive_in_background(work);
  return work;
}

void ShmBackend::abort(const std::string& reason) { group_->abort(reason); }

Allocator& ShmBackend::communication_allocator() { return group_->context->arena(); }

Result<std::unique_ptr<Backend>> ShmBackend::subgroup(GroupMembers members, Deadline deadline) {
  return std::unique_ptr<Backend>(MUSTER_TRY(open(group_->context, std::move(members), deadline)));
}
}  // namespace muster
