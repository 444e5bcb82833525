#include "tests/support_ranks/ranks.h"

#include <fmt/format.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "core/tensor/generator.h"
#include "dist/backend/shm/shm_backend.h"
#include "dist/store/hash_store.h"

namespace muster::testing {

namespace {
std::map<std::string, BackendMember>& members() {
  static std::map<std::string, BackendMember> joined = {
      {"shm",
       {"shm",
        {.survives_peer_death = true, .shares_memory = true},
        [](RankContext& ctx) -> Result<std::unique_ptr<Backend>> {
          return std::unique_ptr<Backend>(
              MUSTER_TRY(ShmBackend::open_world({.store = ctx.shared_store(),
                                                 .global_rank = ctx.group_rank(),
                                                 .world_size = ctx.world_size(),
                                                 .arena_capacity = 1_GiB},
                                                ctx.deadline())));
        }}}};
  return joined;
}

thread_local RankContext* current_rank = nullptr;
}  // namespace

bool join_backend_suite(BackendMember member) {
  const std::string name = member.name;
  return members().emplace(name, std::move(member)).second;
}

std::vector<BackendMember> backend_members() {
  std::vector<BackendMember> all;
  for (const auto& [name, member] : members()) all.push_back(member);
  return all;
}

RankContext::~RankContext() = default;

RankContext::Current::Current(RankContext& context) { current_rank = &context; }
RankContext::Current::~Current() { current_rank = nullptr; }

const BackendMember& RankContext::member() const { return members().at(backend_); }

Tensor on_backend(const Tensor& host) {
  if (current_rank == nullptr || !current_rank->member().copy) return host;
  Allocator& allocator = current_rank->group().communication_allocator();
  Tensor there = empty_from_spec(
      TensorSpec::contiguous(host.sizes(), host.dtype(), allocator.device()), &allocator);
  current_rank->member().copy(there, host);
  return there;
}

Tensor on_host(const Tensor& tensor) {
  if (tensor.device() == kCpuDevice) return tensor;
  Tensor host = empty_from_spec(TensorSpec::contiguous(tensor.sizes(), tensor.dtype()));
  current_rank->member().copy(host, tensor);
  return host;
}

ProcessGroup& RankContext::group() {
  if (!group_) {
    std::unique_ptr<Backend> backend = members().at(backend_).open(*this).value();
    ProcessGroup::Options options;
    options.group_rank = rank_;
    for (int r = 0; r < world_; ++r) options.global_ranks.push_back(r);
    options.timeout = deadline_.left();
    group_ = std::make_unique<ProcessGroup>(std::move(options), std::move(backend));
  }
  return *group_;
}

void run_ranks(int world, const std::function<void(RankContext&)>& body, Duration at_most,
               const std::string& backend) {
  const auto store = std::make_shared<HashStore>();
  const Deadline deadline = Deadline::after(at_most);
  std::mutex mutex;
  std::string first_failure;
  std::vector<std::unique_ptr<RankContext>> contexts;
  for (int rank = 0; rank < world; ++rank) {
    contexts.push_back(std::make_unique<RankContext>(rank, world, store, deadline, backend));
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      manual_seed(0);
      const RankContext::Current current(*contexts[static_cast<size_t>(rank)]);
      try {
        body(*contexts[static_cast<size_t>(rank)]);
      } catch (const std::exception& error) {
        {
          const std::lock_guard lock(mutex);
          if (first_failure.empty()) first_failure = fmt::format("rank {}: {}", rank, error.what());
        }
        store->cancel();
        ProcessGroup* group = contexts[static_cast<size_t>(rank)]->group_.get();
        if (group != nullptr) group->abort("another rank of the test failed first");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(first_failure, "");
}
}  // namespace muster::testing
