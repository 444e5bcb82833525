#include "dist/group/agreed/agreed_group.h"

#include <fmt/format.h>

#include <algorithm>

#include "dist/store/prefix_store.h"

namespace muster {
namespace {
// While an engine waits, what other members wrote is looked at this often.
constexpr Duration kNoticeEvery = 100ms;

std::vector<PieceSizes> pieces_of(const CollectiveRequest& request) {
  std::vector<PieceSizes> pieces;
  if (request.descriptor.kind != CollectiveKind::kAllToAll) return pieces;
  for (size_t i = 0; i < request.inputs.size(); ++i)
    pieces.push_back({request.inputs[i].nbytes(), request.outputs[i].nbytes()});
  return pieces;
}
}  // namespace

Result<void> AgreedWork::wait(Deadline deadline) {
  if (!group_->wait(*this, deadline)) {
    return make_error(ErrorCode::kTimeout, "{}: the deadline passed; it is still pending{}",
                      descriptor().describe(), group_->describe_pending(*this));
  }
  if (error_) return *error_;
  return {};
}

std::vector<int> AgreedWork::late_ranks() const { return group_->late_ranks(*this); }

// Stops an engine when the group fails here or, by its notice, on another member.
class AgreedGroup::LaneInterrupt final : public Interrupt {
 public:
  LaneInterrupt(AgreedGroup& group, StoreAgreement& agreement, Deadline deadline)
      : group_(group), agreement_(agreement), deadline_(deadline) {}

  bool wait_for(Duration at_most) override {
    {
      std::unique_lock lock(group_.mutex_);
      const auto failed = [&] { return group_.failure_.has_value(); };
      if (group_.changed_.wait_for(lock, at_most, failed)) return true;
    }
    if (deadline_.passed()) return true;
    if (!next_look_.passed()) return false;
    next_look_ = Deadline::after(kNoticeEvery);
    const std::optional<Error> notice = agreement_.notice();
    if (notice) group_.fail(*notice);
    return notice.has_value();
  }

 private:
  AgreedGroup& group_;
  StoreAgreement& agreement_;
  const Deadline deadline_;
  Deadline next_look_ = Deadline::after(kNoticeEvery);
};

AgreedGroup::AgreedGroup(Options options, std::shared_ptr<LaneDevice> device)
    : options_(std::move(options)), device_(std::move(device)) {}

AgreedGroup::~AgreedGroup() = default;

AgreedGroup::Options AgreedGroup::subgroup_options(GroupMembers members) const {
  Options chosen = options_;
  chosen.members = std::move(members);
  return chosen;
}

AgreedGroup::LaneKey AgreedGroup::key_of(const WorkDescriptor& what) const {
  if (what.kind == CollectiveKind::kSend) return {options_.members.group_rank, what.peer};
  if (what.kind == CollectiveKind::kRecv) return {what.peer, options_.members.group_rank};
  return {kNoPeer, kNoPeer};
}

LaneMembers AgreedGroup::members_of(const LaneKey& key) const {
  LaneMembers lane;
  std::vector<int> ranks{key.first, key.second};
  const std::string way = fmt::format(" {}->{}", key.first, key.second);
  lane.name = options_.members.name + way;
  lane.identity = options_.members.identity + way;
  if (key.first == kNoPeer) {
    ranks.clear();
    for (int rank = 0; rank < size(); ++rank) ranks.push_back(rank);
    lane.name = options_.members.name;
    lane.identity = options_.members.identity;
  }
  for (const int rank : ranks) {
    if (rank == options_.members.group_rank) lane.own = static_cast<int>(lane.members.size());
    lane.members.push_back({rank, options_.members.global_rank_of(rank)});
  }
  lane.store = std::make_shared<PrefixStore>(options_.store, "agreed/" + lane.identity);
  return lane;
}

std::shared_ptr<StoreAgreement> AgreedGroup::agreement_locked(const LaneKey& key) {
  std::shared_ptr<StoreAgreement>& agreement = agreements_[key];
  if (!agreement) {
    LaneMembers lane = members_of(key);
    agreement = std::make_shared<StoreAgreement>(
        StoreAgreement::Options{.store = std::move(lane.store),
                                .group_name = options_.members.name,
                                .group_size = size(),
                                .members = std::move(lane.members),
                                .own = lane.own});
  }
  return agreement;
}

AgreedGroup::Lane& AgreedGroup::lane_locked(const LaneKey& key) {
  Lane& lane = lanes_[key];
  if (!lane.engine) {
    lane.agreement = agreement_locked(key);
    lane.engine = device_->make_engine(members_of(key));
  }
  return lane;
}

Result<void> AgreedGroup::open(Deadline deadline) {
  Lane* lane = nullptr;
  {
    const std::lock_guard lock(mutex_);
    lane = &lane_locked({kNoPeer, kNoPeer});
  }
  LaneInterrupt interrupt(*this, *lane->agreement, deadline);
  Result<void> connected = lane->engine->connect(interrupt);
  lane->is_connected = true;
  if (connected.ok()) return connected;
  if (deadline.passed()) {
    connected = make_error(ErrorCode::kTimeout,
                           "group {}: the deadline passed before all of {} ranks were connected",
                           options_.members.name, size());
  }
  fail(connected.error());
  const std::lock_guard lock(mutex_);
  return Error(*failure_).add_context(fmt::format("while opening group {}", options_.members.name));
}

std::shared_ptr<Work> AgreedGroup::launch(CollectiveRequest request) {
  const WorkDescriptor& what = request.descriptor;
  auto work = std::make_shared<AgreedWork>(shared_from_this(), what);
  const bool is_send = what.kind == CollectiveKind::kSend;
  Operation operation{.request = {}, .work = work, .mark = {}};
  std::optional<Error> error;
  try {
    if (is_send) request.inputs[0] = device_->copy(request.inputs[0]);
    operation.mark = device_->mark();
  } catch (const Error& caught) {
    error = caught;
  }
  operation.request = std::move(request);
  const std::lock_guard lock(mutex_);
  if (failure_) error = failure_;
  if (error) {
    finish_locked(work, error);
    return work;
  }
  Lane& lane = lane_locked(key_of(work->descriptor()));
  lane.operations.push_back(std::move(operation));
  if (is_send) finish_locked(work, std::nullopt);
  if (!lane.thread.joinable()) lane.thread = std::thread([this, &lane] { run(lane); });
  changed_.notify_all();
  return work;
}

void AgreedGroup::finish_locked(const WorkRef& work, const std::optional<Error>& error) {
  if (work->done()) return;
  if (error) work->error_.emplace(*error);
  work->done_.store(true, std::memory_order_release);
  changed_.notify_all();
}

bool AgreedGroup::wait(const AgreedWork& work, Deadline deadline) {
  if (work.done()) return true;
  std::unique_lock lock(mutex_);
  const auto done = [&] { return work.done(); };
  if (!deadline.is_never()) return changed_.wait_until(lock, deadline.at(), done);
  changed_.wait(lock, done);
  return true;
}

std::vector<int> AgreedGroup::late_ranks(const AgreedWork& work) {
  std::shared_ptr<StoreAgreement> agreement;
  {
    const std::lock_guard lock(mutex_);
    const auto found = lanes_.find(key_of(work.descriptor()));
    if (work.done() || found == lanes_.end() || found->second.is_moving) return {};
    agreement = found->second.agreement;
  }
  return agreement->late_ranks();
}

std::string AgreedGroup::describe_pending(const AgreedWork& work) {
  std::shared_ptr<StoreAgreement> agreement;
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    const auto found = lanes_.find(key_of(work.descriptor()));
    if (found == lanes_.end() || found->second.operations.empty()) return "";
    const Lane& lane = found->second;
    const AgreedWork& first = *lane.operations.front().work;
    if (&first != &work) text = "\n  it comes after " + first.descriptor().describe();
    if (lane.is_moving) return text + "\n  all ranks have arrived; its data is on the way";
    agreement = lane.agreement;
  }
  return text + agreement->describe_late();
}

void AgreedGroup::abort(const std::string& reason) {
  fail(make_error(ErrorCode::kAborted, "group {}: aborted on {}: {}", options_.members.name,
                  options_.members.own_name(), reason));
}

void AgreedGroup::fail(const Error& error) {
  std::vector<std::shared_ptr<StoreAgreement>> agreements;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = error;
    for (auto& [key, lane] : lanes_) {
      // The first one is with the lane's thread, and the device may be using its tensors.
      for (const Operation& operation : lane.operations) {
        const bool is_in_use = lane.is_moving && &operation == &lane.operations.front();
        if (!is_in_use) finish_locked(operation.work, failure_);
      }
    }
    // Peers may wait for messages that this rank has not thought of.
    agreements.push_back(agreement_locked({kNoPeer, kNoPeer}));
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == options_.members.group_rank) continue;
      agreements.push_back(agreement_locked({options_.members.group_rank, peer}));
      agreements.push_back(agreement_locked({peer, options_.members.group_rank}));
    }
    changed_.notify_all();
  }
  for (const auto& agreement : agreements) agreement->fail(error);
}

Result<void> AgreedGroup::run_one(Lane& lane, const Operation& operation) {
  MUSTER_TRY(lane.agreement->agree(operation.request.descriptor, pieces_of(operation.request),
                                   Deadline::never()));
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return *failure_;
    lane.is_moving = true;
  }
  LaneInterrupt interrupt(*this, *lane.agreement, Deadline::never());
  Result<void> outcome;
  if (!std::exchange(lane.is_connected, true)) outcome = lane.engine->connect(interrupt);
  if (outcome.ok()) outcome = lane.engine->run(operation.request, operation.mark.get(), interrupt);
  if (outcome.ok()) return outcome;
  // Others read it too, and want to know where it happened.
  return make_error(outcome.error().code(), "{}: {}: {}", operation.request.descriptor.describe(),
                    options_.members.own_name(), outcome.error().message());
}

void AgreedGroup::run(Lane& lane) {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_stopping_ || failure_ || !lane.operations.empty(); });
    if (failure_ || is_stopping_) break;
    const Operation& operation = lane.operations.front();  // stays: only this thread takes it away
    lock.unlock();
    const Result<void> outcome = catch_error([&] { run_one(lane, operation).value(); });
    if (!outcome.ok()) fail(outcome.error());
    lock.lock();
    if (failure_ && !outcome.ok()) break;
    finish_locked(operation.work, std::nullopt);
    lane.is_moving = false;
    lane.operations.pop_front();
    changed_.notify_all();
  }
  const bool has_failed = failure_.has_value();
  lock.unlock();
  if (has_failed) {
    lane.engine->abort();
  } else if (lane.is_connected) {
    lane.engine->close();
  }
  lock.lock();
  for (const Operation& operation : lane.operations) finish_locked(operation.work, failure_);
  lane.is_moving = false;
  lane.operations.clear();
}

// False when the deadline passed, or the group failed, with operations that nobody has taken.
bool AgreedGroup::wait_until_sent(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto is_pending = [&](bool sends_only) {
    return std::any_of(lanes_.begin(), lanes_.end(), [&](const auto& entry) {
      const bool is_send = entry.first.first == options_.members.group_rank;
      return (is_send || !sends_only) && !entry.second.operations.empty();
    });
  };
  changed_.wait_until(lock, deadline.at(), [&] { return failure_ || !is_pending(true); });
  return !is_pending(false);
}

void AgreedGroup::close() {
  if (!wait_until_sent(Deadline::after(options_.linger))) {
    fail(make_error(ErrorCode::kAborted, "group {}: it was closed with this operation pending",
                    options_.members.name));
  }
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_stopping_, true)) return;
    changed_.notify_all();
  }
  // Nothing is added any more, so the maps are read without the lock.
  for (auto& [key, lane] : lanes_) {
    if (lane.thread.joinable()) {
      lane.thread.join();
    } else if (lane.is_connected) {
      failure_ ? lane.engine->abort() : lane.engine->close();
    }
  }
  for (auto& [key, agreement] : agreements_) agreement->close();
}
}  // namespace muster
