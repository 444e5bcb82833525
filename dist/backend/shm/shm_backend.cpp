#include "dist/backend/shm/shm_backend.h"

#include <fmt/format.h>

#include <new>

#include "dist/backend/shm/group.h"

namespace muster {
namespace {
// Where the members of one group tell each other their blocks: a name may serve several groups.
std::string blocks_key(shm::Context& context, const ShmBackend::Options& group) {
  return fmt::format("{}/group/{}/{}/{}", context.options().key_prefix, group.group_name,
                     fmt::join(group.global_ranks, ","),
                     context.count_opening(group.group_name, group.global_ranks));
}
}  // namespace

Result<std::unique_ptr<ShmBackend>> ShmBackend::open(std::shared_ptr<shm::Context> context,
                                                     Options options, Deadline deadline) {
  auto group = std::make_shared<Group>(std::move(context), std::move(options));
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
  const std::string key = blocks_key(*group->context, group->options);
  const int own_rank = group->options.group_rank;
  MUSTER_TRY(group->context->store().set(fmt::format("{}/{}", key, own_rank),
                                         std::to_string(arena.offset_of(memory))));
  for (int peer = 0; peer < size; ++peer) {
    if (peer == own_rank) {
      group->blocks.push_back(own);
      continue;
    }
    const std::string offset =
        MUSTER_TRY(group->context->store().get(fmt::format("{}/{}", key, peer), deadline),
                   fmt::format("while opening group {}", group->options.group_name));
    std::byte* at = group->peer(peer).arena->at(std::stoll(offset), nbytes);
    group->blocks.push_back(reinterpret_cast<shm::ControlBlock*>(at));
  }
  group->context->add_observer(group.get(),
                               [raw = group.get()](int rank) { return raw->where_it_waits(rank); });
  return std::unique_ptr<ShmBackend>(new ShmBackend(std::move(group)));
}

Result<std::unique_ptr<ShmBackend>> ShmBackend::open_world(shm::Context::Options options,
                                                           Deadline deadline) {
  Options world;
  world.group_rank = options.global_rank;
  for (int rank = 0; rank < options.world_size; ++rank) world.global_ranks.push_back(rank);
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

Result<std::unique_ptr<Backend>> ShmBackend::subgroup(const std::string& group_name,
                                                      const std::vector<int>& group_ranks,
                                                      Deadline deadline) {
  Options options{.group_name = group_name, .global_ranks = {}, .group_rank = -1};
  for (size_t i = 0; i < group_ranks.size(); ++i) {
    if (group_ranks[i] == group_->options.group_rank) options.group_rank = static_cast<int>(i);
    options.global_ranks.push_back(
        group_->options.global_ranks[static_cast<size_t>(group_ranks[i])]);
  }
  return std::unique_ptr<Backend>(MUSTER_TRY(open(group_->context, std::move(options), deadline)));
}
}  // namespace muster
