#include "launcher/agent/worker_env.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>

#include "core/base/text.h"

namespace muster {
namespace {

using Variables = std::map<std::string, std::string>;

// What makes a process a certain rank of a certain job.
constexpr std::array<std::string_view, 7> kIdentity = {
    "RANK",       "LOCAL_RANK",  "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"};

std::string_view name_of(std::string_view entry) { return entry.substr(0, entry.find('=')); }

std::string_view value_in(const std::vector<std::string>& inherited, std::string_view name) {
  for (const std::string_view entry : inherited) {
    if (name_of(entry) == name && entry.size() > name.size()) return entry.substr(name.size() + 1);
  }
  return {};
}

bool is_set(const std::vector<std::string>& inherited, std::string_view name) {
  return std::any_of(inherited.begin(), inherited.end(),
                     [&](std::string_view entry) { return name_of(entry) == name; });
}

void set_torchrun_variables(const JobPlan& plan, const AttemptInfo& info, int local_rank,
                            Variables& set) {
  const JobSpec& spec = plan.spec;
  const NodePlace& place = info.place;
  const std::string rank = std::to_string(local_rank);
  set["RANK"] = std::to_string(place.first_rank + local_rank);
  set["LOCAL_RANK"] = spec.virtual_local_rank ? "0" : rank;
  set["WORLD_SIZE"] = std::to_string(place.world_size);
  set["LOCAL_WORLD_SIZE"] = std::to_string(spec.local_world_size);
  set["GROUP_RANK"] = std::to_string(place.group_rank);
  set["GROUP_WORLD_SIZE"] = std::to_string(place.group_world_size);
  set["ROLE_NAME"] = spec.role;
  set["ROLE_RANK"] = std::to_string(place.role_first_rank + local_rank);
  set["ROLE_WORLD_SIZE"] = std::to_string(place.role_world_size);
  set["MASTER_ADDR"] = info.master_addr;
  set["MASTER_PORT"] = std::to_string(info.master_port);
  set["TORCHELASTIC_RUN_ID"] = spec.run_id;
  set["TORCHELASTIC_RESTART_COUNT"] = std::to_string(info.failures);
  set["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(spec.policy.max_restarts);
  set["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  set["TORCHELASTIC_SIGNALS_TO_HANDLE"] = spec.signals_to_handle;
  const std::string logs = worker_log_dir(plan, info.attempt, local_rank);
  set["TORCHELASTIC_ERROR_FILE"] = logs.empty() ? "" : logs + "/error.json";
  if (!is_set(plan.inherited, "TORCH_NCCL_ASYNC_ERROR_HANDLING")) {
    set["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1";
  }
  if (spec.local_world_size > 1 && !is_set(plan.inherited, "OMP_NUM_THREADS")) {
    set["OMP_NUM_THREADS"] = std::to_string(plan.threads_per_worker);
  }
  // muster-train wants parked threads; set here it need not start itself again to get them.
  if (spec.is_recipe && !is_set(plan.inherited, "OMP_WAIT_POLICY")) {
    set["OMP_WAIT_POLICY"] = "passive";
  }
  if (spec.virtual_local_rank) {
    const std::string_view visible = value_in(plan.inherited, "CUDA_VISIBLE_DEVICES");
    const std::vector<std::string> devices = split(visible, ',');
    const auto index = static_cast<size_t>(local_rank);
    set["CUDA_VISIBLE_DEVICES"] =
        visible.empty() || index >= devices.size() ? rank : std::string(trim(devices[index]));
  }
}

void set_muster_variables(const JobPlan& plan, const AttemptInfo& info, Variables& set) {
  set["MUSTER_RUN_DIR"] = plan.run_dir;
  set["MUSTER_RUN_ID"] = plan.spec.run_id;
  set["MUSTER_JOB_TOKEN"] = plan.token;
  set["MUSTER_JOB_TOKEN_ID"] = plan.token_id;
  set["MUSTER_GENERATION"] = std::to_string(info.generation);
  set["MUSTER_ATTEMPT"] = std::to_string(info.attempt);
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

}  // namespace

std::vector<std::string> worker_environment(const JobPlan& plan, const AttemptInfo& info,
                                            int local_rank) {
  Variables set;
  set_torchrun_variables(plan, info, local_rank, set);
  set_muster_variables(plan, info, set);
  std::vector<std::string> environment;
  environment.reserve(plan.inherited.size() + set.size());
  for (const std::string& entry : plan.inherited) {
    const std::string name(name_of(entry));
    // The event file is this job's alone: a job started by a worker must not write into it.
    if (!set.contains(name) && name != "MUSTER_EVENTS") environment.push_back(entry);
  }
  for (const auto& [name, value] : set) environment.push_back(name + '=' + value);
  return environment;
}

std::vector<std::string> worker_command(const JobSpec& spec, int local_rank) {
  std::vector<std::string> command = spec.command;
  const std::string rank = std::to_string(local_rank);
  constexpr std::string_view kPlaceholder = "${local_rank}";
  for (size_t i = 1; i < command.size(); ++i) {
    std::string& word = command[i];
    if (spec.substitution == JobSpec::Substitution::kTemplate) {
      word = substitute_template(word, {{"local_rank", rank}});
    } else if (spec.substitution == JobSpec::Substitution::kLocalRank) {
      for (size_t at = word.find(kPlaceholder); at != std::string::npos;
           at = word.find(kPlaceholder, at + rank.size())) {
        word.replace(at, kPlaceholder.size(), rank);
      }
    }
  }
  return command;
}

std::vector<std::string> overridden_names(const std::vector<std::string>& inherited) {
  std::vector<std::string> names;
  for (const std::string_view name : kIdentity) {
    if (is_set(inherited, name)) names.emplace_back(name);
  }
  return names;
}

std::string substitute_template(
    std::string_view text, const std::vector<std::pair<std::string_view, std::string>>& values) {
  std::string result;
  size_t at = 0;
  while (at < text.size()) {
    if (text[at] != '$') {
      result += text[at++];
      continue;
    }
    if (text.substr(at).starts_with("$$")) {
      result += '$';
      at += 2;
      continue;
    }
    const bool braced = text.substr(at).starts_with("${");
    const size_t begin = at + (braced ? 2 : 1);
    size_t end = begin;
    while (end < text.size() && is_word(text[end])) ++end;
    const std::string_view name = text.substr(begin, end - begin);
    const bool closed = !braced || (end < text.size() && text[end] == '}');
    const auto found = std::find_if(values.begin(), values.end(),
                                    [&](const auto& value) { return value.first == name; });
    const size_t next = braced && closed ? end + 1 : end;
    if (closed && found != values.end()) {
      result += found->second;
    } else {
      result.append(text.substr(at, next - at));
    }
    at = next;
  }
  return result;
}

}  // namespace muster
