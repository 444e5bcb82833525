// Who keeps a pending operation waiting, and what peers hear of it.
#include <fmt/format.h>

#include "dist/backend/gloo/group.h"
#include "dist/backend/gloo/inline_collectives.h"
#include "dist/backend/gloo/wire/mesh.h"

namespace muster {
std::vector<int> GlooBackend::Group::late_ranks(const GlooWork& work) {
  const WorkDescriptor& what = work.descriptor();
  if (what.kind == CollectiveKind::kRecv && !work.done()) return {what.peer};
  const std::lock_guard lock(mutex_);
  const auto found = rounds_.find(what.seq);
  std::vector<int> late;
  if (is_pair(what.kind) || found == rounds_.end() || found->second.is_agreed) return late;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != members_.group_rank && !found->second.announced[static_cast<size_t>(peer)])
      late.push_back(peer);
  }
  return late;
}

std::string GlooBackend::Group::describe_late(const GlooWork& work) {
  const std::vector<int> late = late_ranks(work);
  if (late.empty()) return "\n  all ranks have arrived; its data is on the way";
  const bool is_message = work.descriptor().kind == CollectiveKind::kRecv;
  std::string text;
  for (const int peer : late) {
    const std::string place = channel_->mesh().where_it_waits(members_.global_rank_of(peer));
    const std::lock_guard lock(mutex_);
    text += fmt::format("\n  {} {}{}{}", members_.name_of(peer),
                        is_message ? "has not sent it"
                                   : fmt::format("has not arrived; its last is #{}",
                                                 last_announced_[static_cast<size_t>(peer)]),
                        place.empty() ? "" : "; it waits for this rank in ", place);
  }
  return text;
}

std::string GlooBackend::Group::where_it_waits(int peer) {
  const int rank = group_rank_of(peer);
  if (rank < 0) return {};
  const std::lock_guard lock(mutex_);
  for (const auto& [seq, round] : rounds_) {
    const std::optional<Announcement>& theirs = round.announced[static_cast<size_t>(rank)];
    if (theirs && !round.work) return theirs->descriptor.describe(members_.name);
  }
  return {};
}

void GlooBackend::Group::note_timeout(const GlooWork& work, const std::string& why) {
  const std::lock_guard lock(mutex_);
  // Where its contribution is out already, the others can go on without this rank.
  if (work.done() || is_pair(work.descriptor().kind) || wire::is_inline(work.request_, size()))
    return;
  timed_out_seq_ = work.descriptor().seq;
  timed_out_why_ = why;
}
}  // namespace muster
