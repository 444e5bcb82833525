#include "checkpoint/io/load_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/io/digest.h"
#include "checkpoint/io/load_report.h"
#include "checkpoint/io/wire.h"
#include "checkpoint/plan/shard_map.h"
#include "core/base/text.h"

namespace muster::checkpoint {
namespace {
using nlohmann::json;

bool is_damage(ErrorCode code) {
  return code == ErrorCode::kCorruption || code == ErrorCode::kNotFound || code == ErrorCode::kIo;
}

json digests_to_json(std::span<const TensorSlot> slots) {
  json digests = json::array();
  for (const TensorSlot& slot : slots) {
    const uint64_t sum = digest_box(slot.dtype, slot.global_sizes, slot.box, slot.destination);
    digests.push_back({slot.name, slot.box.offsets, slot.box.sizes, hex64(sum)});
  }
  return digests;
}

void add_digests(const json& list, std::vector<SlotDigest>& digests) {
  for (const json& entry : list) {
    digests.push_back({entry.at(0),
                       {entry.at(1).get<Dims>(), entry.at(2).get<Dims>()},
                       std::stoull(entry.at(3).get<std::string>(), nullptr, 16)});
  }
}

// Names that no rank has a slot for.
std::vector<std::string> unused_everywhere(const std::vector<json>& replies) {
  std::vector<std::string> common;
  for (size_t i = 0; i < replies.size(); ++i) {
    const auto unused = replies[i].value("unused", std::vector<std::string>());
    if (i == 0) {
      common = unused;
    } else {
      std::vector<std::string> both;
      std::set_intersection(common.begin(), common.end(), unused.begin(), unused.end(),
                            std::back_inserter(both));
      common = std::move(both);
    }
  }
  return common;
}
}  // namespace

std::optional<std::string> digest_fault(const Manifest& manifest,
                                        const std::vector<SlotDigest>& digests) {
  std::map<std::string, std::map<std::pair<Dims, Dims>, uint64_t>> tensors;
  for (const SlotDigest& digest : digests) {
    if (numel(digest.box.sizes) == 0) continue;
    const auto [it, is_new] =
        tensors[digest.name].try_emplace({digest.box.offsets, digest.box.sizes}, digest.sum);
    if (!is_new && it->second != digest.sum) {
      return fmt::format("tensor \"{}\": replicas of box {} must have equal digests; got {} and {}",
                         digest.name, to_string(digest.box), hex64(it->second), hex64(digest.sum));
    }
  }
  for (const auto& [name, parts] : tensors) {
    const StoredTensor* stored = manifest.find(name);
    if (stored == nullptr) continue;
    std::vector<Box> boxes;
    uint64_t sum = 0;
    for (const auto& [box, part] : parts) {
      boxes.push_back({box.first, box.second});
      sum += part;
    }
    if (tiling_fault(stored->global_sizes, boxes)) continue;
    const uint64_t digest = finish_digest(sum, stored->dtype, stored->global_sizes);
    if (digest != stored->digest) {
      return fmt::format("tensor \"{}\": the digest after loading must be {}; got {}", name,
                         hex64(stored->digest), hex64(digest));
    }
  }
  return std::nullopt;
}

std::string LoadSession::phase(const char* name) const {
  return fmt::format("{}.{}", name, round_);
}

void LoadSession::pass_over(const std::string& reason) {
  skipped_.push_back({choice_.path.substr(choice_.path.find_last_of('/') + 1), reason});
  known_bad_.insert(choice_.save_id);
  ++round_;
}

Result<std::optional<LoadedState>> LoadSession::run() {
  const TimePoint start = real_clock().now();
  for (;;) {
    choice_ = MUSTER_TRY(choose(), "load checkpoint");
    if (!choice_.found) {
      MUSTER_TRY(no_candidate());
      return std::optional<LoadedState>();
    }
    Result<Checkpoint> opened = Checkpoint::open(*options_.file_system, choice_.path);
    if (opened.ok() && opened->manifest().save_id != choice_.save_id) {
      opened = make_error(ErrorCode::kCorruption, "save id must be {}; got {}", choice_.save_id,
                          opened->manifest().save_id);
    }
    if (MUSTER_TRY(compare(opened), "load checkpoint") == Verdict::kNext) continue;
    LoadedState state;
    if (MUSTER_TRY(read(*opened, state), "load checkpoint") == Verdict::kNext) continue;
    state.skipped = skipped_;
    state.total_time = real_clock().now() - start;
    return std::optional<LoadedState>(std::move(state));
  }
}

// Rank 0 announces the next candidate that opens, with what it had to pass over.
Result<LoadSession::Choice> LoadSession::choose() {
  if (is_leader()) {
    const Result<Choice> choice = choose_as_leader();
    json reply = error_to_json(choice.ok() ? make_error(ErrorCode::kOk, "") : choice.error());
    if (choice.ok()) {
      json skipped = json::array();
      for (const Skipped& entry : skipped_) skipped.push_back({entry.name, entry.reason});
      reply = {{"ok", true},
               {"found", choice->found},
               {"path", choice->path},
               {"save_id", choice->save_id},
               {"skipped", skipped}};
    }
    MUSTER_TRY(meeting_.announce(phase("choose"), reply.dump()));
    return choice;
  }
  const std::string text =
      MUSTER_TRY(meeting_.hear(phase("choose"), Deadline::after(options_.timeout)));
  const json reply = MUSTER_TRY(parse_reply(text));
  MUSTER_TRY(check_reply(reply, "global rank 0: "));
  skipped_.clear();
  for (const json& entry : reply.at("skipped")) skipped_.push_back({entry.at(0), entry.at(1)});
  return Choice{reply.at("found"), reply.at("path"), reply.at("save_id")};
}

Result<LoadSession::Choice> LoadSession::choose_as_leader() {
  if (!listed_) {
    candidates_ = MUSTER_TRY(list_candidates(*options_.file_system, options_.directory));
    if (request_.step) {
      std::erase_if(candidates_, [&](const Candidate& candidate) {
        return candidate.folder.step != *request_.step;
      });
    }
    listed_ = true;
  }
  while (next_candidate_ < candidates_.size()) {
    const Candidate& candidate = candidates_[next_candidate_++];
    const Result<Checkpoint> opened = Checkpoint::open(*options_.file_system, candidate.path);
    if (opened.ok()) return Choice{true, candidate.path, opened->manifest().save_id};
    skipped_.push_back({candidate.name, opened.error().message()});
  }
  return Choice{};
}

Result<void> LoadSession::no_candidate() const {
  if (!skipped_.empty()) {
    Error error = make_error(ErrorCode::kCorruption,
                             "load checkpoint: one of the {} checkpoints in {} must be whole; "
                             "got damage in each",
                             skipped_.size(), options_.directory);
    for (const Skipped& entry : skipped_) error.add_context(entry.name + ": " + entry.reason);
    return error;
  }
  if (request_.step) {
    return make_error(ErrorCode::kNotFound, "load checkpoint: step {} must exist in {}; got none",
                      *request_.step, options_.directory);
  }
  return {};
}

template <typename Judge>
Result<LoadSession::Verdict> LoadSession::judge_together(const std::string& name,
                                                         const std::string& report, Judge judge) {
  MUSTER_TRY(meeting_.report(name, report));
  json reply;
  if (is_leader()) {
    const auto decide = [&]() -> Result<json> {
      std::vector<json> replies;
      for (const std::string& text :
           MUSTER_TRY(meeting_.collect(name, Deadline::after(options_.timeout))))
        replies.push_back(MUSTER_TRY(parse_reply(text)));
      for (size_t global_rank = 0; global_rank < replies.size(); ++global_rank) {
        const Result<void> checked =
            check_reply(replies[global_rank], fmt::format("global rank {}: ", global_rank));
        if (checked.ok()) continue;
        if (!is_damage(checked.error().code())) return checked.error();
        return json{{"ok", true}, {"next", true}, {"reason", checked.error().message()}};
      }
      return judge(replies);
    };
    const Result<json> decision = decide();
    reply = decision.ok() ? *decision : error_to_json(decision.error());
    MUSTER_TRY(meeting_.announce(name, reply.dump()));
  } else {
    const std::string text = MUSTER_TRY(meeting_.hear(name, Deadline::after(options_.timeout * 2)));
    reply = MUSTER_TRY(parse_reply(text));
  }
  MUSTER_TRY(check_reply(reply, ""));
  if (!reply.value("next", false)) return Verdict::kGo;
  pass_over(reply.value("reason", ""));
  return Verdict::kNext;
}

Result<LoadSession::Verdict> LoadSession::compare(const Result<Checkpoint>& opened) {
  json report = error_to_json(opened.ok() ? make_error(ErrorCode::kOk, "") : opened.error());
  if (opened.ok()) {
    const LoadReport found =
        compare_with_slots(opened->manifest(), request_.slots, request_.aliases);
    report = {{"ok", true}, {"faults", found.faults}, {"unused", found.unused}};
  }
  return judge_together(
      phase("compare"), report.dump(), [&](const std::vector<json>& replies) -> Result<json> {
        std::set<std::string> faults;
        for (const json& reply : replies)
          for (const json& fault : reply.at("faults")) faults.insert(fault.get<std::string>());
        for (const std::string& name : unused_everywhere(replies))
          faults.insert(unexpected_fault(opened->manifest(), name));
        if (faults.empty()) return json{{"ok", true}};
        Error error = make_error(ErrorCode::kFailedPrecondition,
                                 "load {}: model and checkpoint must hold the same tensors; got "
                                 "{} {}",
                                 choice_.path, faults.size(),
                                 faults.size() == 1 ? "difference" : "differences");
        for (const std::string& fault : faults) error.add_context(fault);
        return error;
      });
}

Result<LoadedState> LoadSession::read_all(const Checkpoint& checkpoint) {
  LoadedState state = MUSTER_TRY(checkpoint.read_state());
  state.read_nbytes = MUSTER_TRY(checkpoint.read_slots(request_.slots));
  // read_slots() has checked the headers it needed; the ranks share the rest among them.
  const std::vector<StoredFile>& files = checkpoint.manifest().files;
  for (size_t i = 0; i < files.size(); ++i) {
    if (static_cast<int>(i % static_cast<size_t>(options_.world_size)) == options_.global_rank)
      MUSTER_TRY(checkpoint.verify_file(files[i]), "in " + checkpoint.path());
  }
  return state;
}

Result<LoadSession::Verdict> LoadSession::read(const Checkpoint& checkpoint, LoadedState& state) {
  Result<LoadedState> loaded = read_all(checkpoint);
  json report = error_to_json(loaded.ok() ? make_error(ErrorCode::kOk, "") : loaded.error());
  if (loaded.ok()) {
    report = {{"ok", true}, {"digests", digests_to_json(request_.slots)}};
    state = std::move(*loaded);
  }
  return judge_together(phase("read"), report.dump(),
                        [&](const std::vector<json>& replies) -> Result<json> {
                          std::vector<SlotDigest> digests;
                          for (const json& reply : replies)
                            add_digests(reply.at("digests"), digests);
                          const auto fault = digest_fault(checkpoint.manifest(), digests);
                          if (!fault) return json{{"ok", true}};
                          return json{{"ok", true}, {"next", true}, {"reason", *fault}};
                        });
}
}  // namespace muster::checkpoint
