#include "tests/dist/backend/nccl/host_device.h"

#include <fmt/format.h>

#include <cstring>

#include "dist/group/reduce.h"
#include "tests/support_ranks/ranks.h"

namespace muster::testing {
namespace {
std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

void copy_out(const Tensor& to, const std::vector<std::byte>& from, int64_t offset = 0) {
  if (to.nbytes() == 0) return;
  MUSTER_ASSERT(offset + to.nbytes() <= std::ssize(from), "{} bytes of {} from {}", to.nbytes(),
                from.size(), offset);
  std::memcpy(bytes_of(to), from.data() + offset, static_cast<size_t>(to.nbytes()));
}

class HostEngine final : public LaneEngine {
 public:
  HostEngine(std::shared_ptr<Board> board, LaneMembers members)
      : board_(std::move(board)), members_(std::move(members)) {}

  Result<void> connect(Interrupt&) override { return {}; }
  void abort() noexcept override {}
  void close() noexcept override {}

  Result<void> run(const CollectiveRequest& request, const void*, Interrupt& interrupt) override {
    // All have agreed on this operation, so all are done with the one before.
    for (const std::string& key : given_) board_->remove(key);
    given_.clear();
    ++count_;
    for (size_t i = 0; i < request.inputs.size(); ++i) {
      given_.push_back(key_of(members_.own, static_cast<int>(i)));
      board_->put(given_.back(), request.inputs[i]);
    }
    switch (request.descriptor.kind) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kReduceScatter:
      case CollectiveKind::kReduce:
        return reduce(request, interrupt);
      case CollectiveKind::kAllGather:
        return all_gather(request, interrupt);
      case CollectiveKind::kGather:
      case CollectiveKind::kAllToAll:
        for (size_t i = 0; i < request.outputs.size(); ++i) {
          const bool is_gather = request.descriptor.kind == CollectiveKind::kGather;
          MUSTER_TRY(fetch(request.outputs[i], static_cast<int>(i), is_gather ? 0 : members_.own,
                           interrupt));
        }
        return {};
      case CollectiveKind::kScatter:
        return fetch(request.outputs[0], request.root, members_.own, interrupt);
      case CollectiveKind::kBroadcast:
        return fetch(request.outputs[0], request.root, 0, interrupt);
      case CollectiveKind::kRecv:
        return fetch(request.outputs[0], 0, 0, interrupt);  // the source comes first in its lane
      case CollectiveKind::kSend:
      case CollectiveKind::kBarrier:
        return {};
    }
    return {};
  }

 private:
  [[nodiscard]] std::string key_of(int member, int input) const {
    return fmt::format("{} {} {} {}", members_.identity, count_, member, input);
  }

  Result<Board::Bytes> given_by(int member, int input, Interrupt& interrupt) {
    Board::Bytes bytes = board_->take(key_of(member, input), interrupt);
    if (bytes == nullptr) return make_error(ErrorCode::kAborted, "stopped");
    return bytes;
  }

  Result<void> fetch(const Tensor& to, int member, int input, Interrupt& interrupt) {
    copy_out(to, *MUSTER_TRY(given_by(member, input, interrupt)));
    return {};
  }

  Result<void> reduce(const CollectiveRequest& request, Interrupt& interrupt) {
    const Tensor& output = request.outputs[0];
    const CollectiveKind kind = request.descriptor.kind;
    if (kind == CollectiveKind::kReduce && request.root != members_.own) return {};
    const int64_t offset =
        kind == CollectiveKind::kReduceScatter ? members_.own * output.nbytes() : 0;
    std::vector<Board::Bytes> given;
    std::vector<const std::byte*> sources;
    for (int member = 0; member < static_cast<int>(members_.members.size()); ++member) {
      given.push_back(MUSTER_TRY(given_by(member, 0, interrupt)));
      sources.push_back(given.back()->data() + offset);
    }
    if (output.numel() == 0) return {};
    reduce_buffers(request.descriptor.op, output.dtype(), bytes_of(output), sources,
                   output.numel());
    return {};
  }

  Result<void> all_gather(const CollectiveRequest& request, Interrupt& interrupt) {
    const size_t size = members_.members.size();
    const int64_t own = request.inputs[0].nbytes();
    for (size_t member = 0; member < size; ++member) {
      const Board::Bytes given = MUSTER_TRY(given_by(static_cast<int>(member), 0, interrupt));
      if (request.outputs.size() == 1) {
        if (own > 0)
          std::memcpy(bytes_of(request.outputs[0]) + static_cast<int64_t>(member) * own,
                      given->data(), static_cast<size_t>(own));
        continue;
      }
      const size_t each = request.outputs.size() / size;
      int64_t offset = 0;
      for (size_t i = member * each; i < (member + 1) * each; ++i) {
        copy_out(request.outputs[i], *given, offset);
        offset += request.outputs[i].nbytes();
      }
    }
    return {};
  }

  const std::shared_ptr<Board> board_;
  const LaneMembers members_;
  std::vector<std::string> given_;
  uint64_t count_ = 0;
};

std::string no_limit(int) { return ""; }

const bool joined = join_backend_suite(
    {.name = "agreed",
     .abilities = {},
     .open = [](RankContext& ctx) -> Result<std::unique_ptr<Backend>> {
       AgreedGroup::Options options;
       options.store = ctx.shared_store();
       options.members = GroupMembers::world(ctx.group_rank(), ctx.world_size());
       return AgreedBackend::open(std::move(options),
                                  std::make_shared<HostDevice>(Board::of(&ctx.store())),
                                  ctx.deadline());
     },
     .copy = {},
     .unable = no_limit,
     .in_processes = false});
}  // namespace

void Board::put(const std::string& key, const Tensor& tensor) {
  const auto* from = static_cast<const std::byte*>(tensor.data_ptr());
  auto bytes = std::make_shared<std::vector<std::byte>>(from, from + tensor.nbytes());
  const std::lock_guard lock(mutex_);
  all_[key] = std::move(bytes);
  changed_.notify_all();
}

Board::Bytes Board::take(const std::string& key, Interrupt& interrupt) {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, 5ms, [&] { return all_.contains(key); })) return all_.at(key);
    }
    if (interrupt.wait_for(Duration::zero())) return nullptr;
  }
}

void Board::remove(const std::string& key) {
  const std::lock_guard lock(mutex_);
  all_.erase(key);
}

std::shared_ptr<Board> Board::of(const Store* store) {
  static std::mutex mutex;
  static std::map<const Store*, std::weak_ptr<Board>> all;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Board> board = all[store].lock();
  if (!board) all[store] = board = std::make_shared<Board>();
  return board;
}

std::unique_ptr<LaneEngine> HostDevice::make_engine(LaneMembers members) {
  return std::make_unique<HostEngine>(board_, std::move(members));
}

Tensor HostDevice::copy(const Tensor& tensor) {
  Tensor twin = empty_from_spec(TensorSpec::contiguous(tensor.sizes(), tensor.dtype()));
  if (tensor.nbytes() > 0)
    std::memcpy(twin.data_ptr(), tensor.data_ptr(), static_cast<size_t>(tensor.nbytes()));
  return twin;
}

Result<std::unique_ptr<Backend>> AgreedBackend::open(AgreedGroup::Options options,
                                                     std::shared_ptr<LaneDevice> device,
                                                     Deadline deadline) {
  auto group = std::make_shared<AgreedGroup>(std::move(options), device);
  auto backend = std::make_unique<AgreedBackend>(group, device);
  MUSTER_TRY(group->open(deadline));
  return std::unique_ptr<Backend>(std::move(backend));
}
}  // namespace muster::testing
