#include "dist/group/agreed/store_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "dist/group/backend.h"

namespace muster {
namespace {
constexpr char kOperation = 'o';
constexpr char kNotice = 'n';
constexpr size_t kMaxReasonNbytes = 4096;
// While some are late, what the others wrote is compared this often.
constexpr Duration kLookEvery = 250ms;

std::string key_of(uint64_t sequence, int member) { return fmt::format("{}/{}", sequence, member); }

std::string written(const WorkDescriptor& what, const std::vector<PieceSizes>& pieces) {
  WrittenDescriptor descriptor;
  descriptor.write(what);
  std::string value(1, kOperation);
  value.append(reinterpret_cast<const char*>(&descriptor), sizeof(descriptor));
  if (!pieces.empty()) {
    value.append(reinterpret_cast<const char*>(pieces.data()), pieces.size() * sizeof(PieceSizes));
  }
  return value;
}

std::string written(const Error& error) {
  return fmt::format("{}{:03}{}", kNotice, static_cast<int>(error.code()),
                     error.message().substr(0, kMaxReasonNbytes));
}

bool is_notice(const std::string& value) { return !value.empty() && value[0] == kNotice; }

// What a member wrote of its operation.
struct Read {
  WrittenDescriptor descriptor;
  std::vector<PieceSizes> pieces;
};

std::optional<Read> read(const std::string& value) {
  constexpr size_t kHead = 1 + sizeof(WrittenDescriptor);
  if (value.size() < kHead || value[0] != kOperation ||
      (value.size() - kHead) % sizeof(PieceSizes) != 0) {
    return std::nullopt;
  }
  Read all;
  std::memcpy(&all.descriptor, value.data() + 1, sizeof(WrittenDescriptor));
  all.pieces.resize((value.size() - kHead) / sizeof(PieceSizes));
  if (!all.pieces.empty())
    std::memcpy(all.pieces.data(), value.data() + kHead, value.size() - kHead);
  return all;
}
}  // namespace

std::string StoreAgreement::name_of(int member) const {
  const AgreementMember& who = options_.members[static_cast<size_t>(member)];
  return rank_name(who.group_rank, who.global_rank);
}

Result<void> StoreAgreement::fail_here(Error error) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(error);
  return *failure_;
}

// Writes into a place that may be taken already: the first value stays.
Result<void> StoreAgreement::post(uint64_t sequence, int member, const std::string& value) {
  const std::string there =
      MUSTER_TRY(options_.store->compare_set(key_of(sequence, member), "", value));
  if (there != value && is_notice(there)) return read_notice(there);
  return {};
}

// True once all members have written the same; false if some are late and the others agree.
Result<bool> StoreAgreement::wait_and_compare(uint64_t sequence, Deadline look) {
  std::vector<std::string> keys;
  for (int member = 0; member < static_cast<int>(options_.members.size()); ++member)
    keys.push_back(key_of(sequence, member));
  Result<std::vector<std::string>> all = options_.store->get_many(keys, look);
  std::vector<std::optional<std::string>> values;
  if (all.ok()) {
    for (std::string& value : all.value()) values.emplace_back(std::move(value));
  } else if (all.error().code() == ErrorCode::kTimeout) {
    for (const std::string& key : keys) values.push_back(MUSTER_TRY(options_.store->try_get(key)));
  } else {
    return std::move(all.error());
  }
  if (std::optional<Error> error = compare(values)) return std::move(*error);
  return all.ok();
}

Result<void> StoreAgreement::agree(const WorkDescriptor& what,
                                   const std::vector<PieceSizes>& pieces, Deadline deadline) {
  uint64_t sequence = 0;
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return *failure_;
    is_first = !std::exchange(is_pending_, true);
    if (is_first) ++sequence_;
    sequence = sequence_;
  }
  const std::string own = written(what, pieces);
  if (is_first) {
    Result<void> posted = post(sequence, options_.own, own);
    if (!posted.ok()) return fail_here(std::move(posted.error()));
  }
  while (true) {
    const Deadline look = Deadline::after(std::min(deadline.left(), kLookEvery));
    const Result<bool> have_come = wait_and_compare(sequence, look);
    if (!have_come.ok()) {
      fail(have_come.error());
      return fail_here(have_come.error());
    }
    if (have_come.value()) break;
    if (deadline.passed()) {
      return make_error(ErrorCode::kTimeout, "{}: the deadline passed; it is still pending{}",
                        what.describe(), describe_late());
    }
  }
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return *failure_;
    is_pending_ = false;
  }
  // All have come here, so all have read what came before.
  if (sequence > 1) {
    Result<bool> removed = options_.store->remove(key_of(sequence - 1, options_.own));
    if (!removed.ok()) return fail_here(std::move(removed.error()));
  }
  return {};
}

// Every member compares everything that is there, so all come to the same end without another word.
// What was launched says more than a notice, so it is looked at first.
std::optional<Error> StoreAgreement::compare(
    const std::vector<std::optional<std::string>>& values) const {
  std::map<int, Read> all;  // by member
  std::optional<Error> notice;
  for (int member = 0; member < static_cast<int>(values.size()); ++member) {
    const auto& value = values[static_cast<size_t>(member)];
    if (!value) continue;
    std::optional<Read> one = read(*value);
    if (one) {
      all.emplace(member, std::move(*one));
    } else if (is_notice(*value)) {
      notice = read_notice(*value);
    } else {
      return make_error(ErrorCode::kInternal, "group {}: {} wrote {} bytes that are no operation",
                        options_.group_name, name_of(member), value->size());
    }
  }
  const auto own = all.find(options_.own);
  if (own == all.end()) return notice;
  const auto side = [&](const auto& entry) {
    return ContractSide{entry.second.descriptor, name_of(entry.first)};
  };
  for (const auto& other : all) {
    std::optional<Error> diverged =
        compare_contracts(options_.group_name, options_.group_size, side(*own), side(other));
    if (diverged) return diverged;
  }
  const auto compare_pair = [&](const auto& a, const auto& b) -> std::optional<Error> {
    if (std::ssize(a.second.pieces) != std::ssize(values) ||
        std::ssize(b.second.pieces) != std::ssize(values)) {
      return std::nullopt;
    }
    return compare_pieces(options_.group_name, options_.group_size, side(a), side(b),
                          a.second.pieces[static_cast<size_t>(b.first)],
                          b.second.pieces[static_cast<size_t>(a.first)]);
  };
  // One's own pairs first: they say more here.
  for (const auto& other : all)
    if (auto diverged = compare_pair(*own, other)) return diverged;
  for (const auto& a : all)
    for (const auto& b : all)
      if (auto diverged = compare_pair(a, b)) return diverged;
  return notice;
}

Error StoreAgreement::read_notice(const std::string& value) const {
  const int code = std::atoi(value.substr(1, 3).c_str());
  const std::string reason = value.size() > 4 ? value.substr(4) : "";
  return make_error(
      static_cast<ErrorCode>(std::clamp(code, 1, static_cast<int>(ErrorCode::kInternal))), "{}",
      reason);
}

std::vector<int> StoreAgreement::late_ranks() {
  uint64_t sequence = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!is_pending_ || failure_) return {};
    sequence = sequence_;
  }
  std::vector<int> late;
  for (int member = 0; member < static_cast<int>(options_.members.size()); ++member) {
    if (member == options_.own) continue;
    const Result<bool> has_come = options_.store->check({key_of(sequence, member)});
    if (has_come.ok() && !has_come.value())
      late.push_back(options_.members[static_cast<size_t>(member)].group_rank);
  }
  return late;
}

std::string StoreAgreement::describe_late() {
  const std::vector<int> late = late_ranks();
  uint64_t sequence = 0;
  {
    const std::lock_guard lock(mutex_);
    sequence = sequence_;
  }
  std::string text;
  for (int member = 0; member < static_cast<int>(options_.members.size()); ++member) {
    if (std::count(late.begin(), late.end(),
                   options_.members[static_cast<size_t>(member)].group_rank) > 0) {
      text += fmt::format("\n  {} has not arrived; its last is #{}", name_of(member), sequence - 1);
    }
  }
  return text;
}

void StoreAgreement::fail(const Error& error) {
  uint64_t sequence = 0;
  {
    const std::lock_guard lock(mutex_);
    if (failure_ || is_closed_) return;
    failure_ = error;
    sequence = sequence_;
  }
  // Nobody is more than one operation away: others wait at this one or at the next.
  const std::string value = written(error);
  for (uint64_t at = std::max<uint64_t>(sequence, 1); at <= sequence + 1; ++at) {
    for (int member = 0; member < static_cast<int>(options_.members.size()); ++member)
      if (!options_.store->compare_set(key_of(at, member), "", value).ok()) return;
  }
}

std::optional<Error> StoreAgreement::notice() {
  uint64_t sequence = 0;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return failure_;
    sequence = sequence_;
  }
  const auto value = options_.store->try_get(key_of(sequence + 1, options_.own));
  if (!value.ok()) return value.error();
  if (!value.value().has_value() || !is_notice(*value.value())) return std::nullopt;
  return read_notice(*value.value());
}

void StoreAgreement::close() {
  uint64_t sequence = 0;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_closed_, true)) return;
    sequence = sequence_;
  }
  const Error gone = make_error(ErrorCode::kPeerLost, "group {}: {} has left the group",
                                options_.group_name, name_of(options_.own));
  static_cast<void>(post(sequence + 1, options_.own, written(gone)));
  const auto members = static_cast<int64_t>(options_.members.size());
  const Result<int64_t> left = options_.store->add("left", 1);
  if (!left.ok() || left.value() != members) return;
  for (uint64_t at = std::max<uint64_t>(sequence, 2) - 1; at <= sequence + 2; ++at) {
    for (int member = 0; member < members; ++member)
      static_cast<void>(options_.store->remove(key_of(at, member)));
  }
  static_cast<void>(options_.store->remove("left"));
}
}  // namespace muster
