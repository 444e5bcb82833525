#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "core/base/file_system.h"
#include "core/base/text.h"
#include "launcher/drill/drill.h"
#include "launcher/recipe/yaml_document.h"
#include "launcher/recipe/yaml_values.h"

namespace muster {
namespace {
Error bad(std::string text) { return {ErrorCode::kBadRecipe, std::move(text)}; }

Result<int64_t> read_int_at_least(const YamlNode& node, int64_t low) {
  const int64_t value = MUSTER_TRY(read_int(node));
  if (value < low) return bad(fmt::format("must be at least {}; got {}", low, value));
  return value;
}

// One step, or a list of them.
Result<std::vector<int64_t>> read_steps(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::kList) {
    return std::vector<int64_t>{MUSTER_TRY(read_int_at_least(node, 0))};
  }
  std::vector<int64_t> steps;
  for (const YamlNodePtr& item : node.items) {
    steps.push_back(MUSTER_TRY(read_int_at_least(*item, 0)));
  }
  return steps;
}

// A map of a drill, read key by key; what nobody asked for is unknown.
class MapReader {
 public:
  MapReader(std::string name, const YamlNode& node, YamlProblems& problems)
      : name_(std::move(name)), node_(node), problems_(problems) {
    if (node.kind == YamlNode::Kind::kMap) return;
    is_map_ = false;
    problems.add(node.place, fmt::format("{}: must be a map; got {}", name_, node.describe()));
  }

  // Hands the value of `key`, if there, to `read`, which returns what is wrong with it.
  void key(const std::string& key, const std::function<Result<void>(const YamlNode&)>& read) {
    known_.push_back(key);
    const YamlEntry* entry = node_.find(key);
    if (entry == nullptr) return;
    const Result<void> outcome = read(*entry->value);
    if (outcome.ok()) return;
    const bool is_empty = entry->value->kind == YamlNode::Kind::kNull;
    problems_.add(is_empty ? entry->place : entry->value->place,
                  fmt::format("{}: {}", path(key), outcome.error().message()));
  }

  void required(const std::string& key, const std::function<Result<void>(const YamlNode&)>& read) {
    if (is_map_ && node_.find(key) == nullptr) {
      problems_.add(node_.place, fmt::format("{}: must be given; got nothing", path(key)));
    }
    this->key(key, read);
  }

  void finish() {
    for (const YamlEntry& entry : node_.entries) {
      if (std::find(known_.begin(), known_.end(), entry.key) != known_.end()) continue;
      problems_.add(entry.place, fmt::format("unknown key \"{}\"{}", path(entry.key),
                                             did_you_mean(entry.key, known_)));
    }
  }

 private:
  [[nodiscard]] std::string path(const std::string& key) const {
    return name_.empty() ? key : fmt::format("{}.{}", name_, key);
  }

  std::string name_;
  const YamlNode& node_;
  YamlProblems& problems_;
  std::vector<std::string> known_;
  bool is_map_ = true;
};

// "kill", "kill_agent", "stop", "torn_write", "diverge", "exit 75" or "delay 2 s".
Result<void> read_action(const YamlNode& node, Fault& fault) {
  const std::string text = MUSTER_TRY(read_text(node));
  static const std::vector<std::string> kActions = {"kill",    "stop",       "torn_write", "exit",
                                                    "diverge", "kill_agent", "delay"};
  const size_t blank = text.find(' ');
  const std::string action = text.substr(0, blank);
  YamlNode argument = node;
  argument.text = blank == std::string::npos ? "" : std::string(trim(text.substr(blank)));
  if (action == "exit") {
    fault.action = Fault::Action::kExit;
    const Result<int64_t> status = read_int(argument);
    if (!status.ok() || *status < 0 || *status > 255) {
      return bad(fmt::format("exit must have a status from 0 to 255, as \"exit 75\"; got {}",
                             node.describe()));
    }
    fault.exit_status = static_cast<int>(*status);
    return {};
  }
  if (action == "delay") {
    fault.action = Fault::Action::kDelay;
    const Result<Duration> delay = read_duration(argument);
    if (!delay.ok()) {
      return bad(fmt::format("delay must have a time, as \"delay 2 s\"; got {}", node.describe()));
    }
    fault.delay = *delay;
    return {};
  }
  if (text == "kill") {
    fault.action = Fault::Action::kKill;
  } else if (text == "stop") {
    fault.action = Fault::Action::kStop;
  } else if (text == "torn_write") {
    fault.action = Fault::Action::kTornWrite;
  } else if (text == "kill_agent") {
    fault.action = Fault::Action::kKillAgent;
  } else if (text == "diverge") {
    fault.action = Fault::Action::kDiverge;
  } else {
    return bad(fmt::format(
        "must be one of kill, kill_agent, stop, torn_write, diverge, exit STATUS, delay TIME; got "
        "{}{}",
        node.describe(), did_you_mean(action, kActions)));
  }
  return {};
}

Result<void> read_point(const YamlNode& node, Fault& fault) {
  fault.point = MUSTER_TRY(read_text(node));
  const std::vector<std::string>& known = known_fault_points();
  if (std::find(known.begin(), known.end(), fault.point) != known.end()) return {};
  return bad(fmt::format("must be one of {}; got {}{}", join(known), node.describe(),
                         did_you_mean(fault.point, known)));
}

template <typename T, typename Read>
auto into(T& target, Read read) {
  return [&target, read](const YamlNode& node) -> Result<void> {
    target = static_cast<T>(MUSTER_TRY(read(node)));
    return {};
  };
}

auto int_at_least(int64_t low) {
  return [low](const YamlNode& node) { return read_int_at_least(node, low); };
}

void read_launch(const YamlNode& node, Drill::Launch& launch, YamlProblems& problems) {
  MapReader reader("launch", node, problems);
  reader.key("nproc", [&](const YamlNode& value) -> Result<void> {
    launch.nproc = MUSTER_TRY(read_int_at_least(value, 1));
    if (launch.nproc > 4096) return bad(fmt::format("must be at most 4096; got {}", launch.nproc));
    return {};
  });
  reader.key("agents", [&](const YamlNode& value) -> Result<void> {
    launch.agents = MUSTER_TRY(read_int_at_least(value, 1));
    if (launch.agents > 64) return bad(fmt::format("must be at most 64; got {}", launch.agents));
    return {};
  });
  launch.min_agents = launch.agents;
  reader.key("min_agents", [&](const YamlNode& value) -> Result<void> {
    launch.min_agents = MUSTER_TRY(read_int_at_least(value, 1));
    if (launch.min_agents <= launch.agents) return {};
    return bad(fmt::format("must be at most launch.agents; got {} of {}", launch.min_agents,
                           launch.agents));
  });
  reader.key("then_nproc", into(launch.then_nproc, int_at_least(1)));
  reader.key("max_restarts", into(launch.max_restarts, int_at_least(0)));
  reader.key("limit", into(launch.limit, read_duration));
  reader.finish();
}

Fault read_fault(const YamlNode& node, size_t index, const Drill::Launch& launch,
                 YamlProblems& problems) {
  Fault fault;
  MapReader reader(fmt::format("faults[{}]", index), node, problems);
  reader.required("global_rank", [&](const YamlNode& value) -> Result<void> {
    const int64_t global_rank = MUSTER_TRY(read_int_at_least(value, 0));
    if (global_rank >= launch.world_size()) {
      const char* limit = launch.agents == 1 ? "launch.nproc" : "launch.agents times launch.nproc";
      return bad(fmt::format("must be below {}; got {} of {} ranks", limit, global_rank,
                             launch.world_size()));
    }
    fault.global_rank = static_cast<int>(global_rank);
    return {};
  });
  reader.key("step", into(fault.step, int_at_least(0)));
  reader.required("point", [&](const YamlNode& value) { return read_point(value, fault); });
  reader.required("do", [&](const YamlNode& value) { return read_action(value, fault); });
  reader.key("attempt", [&](const YamlNode& value) -> Result<void> {
    const int64_t attempt = MUSTER_TRY(read_int_at_least(value, 0));
    // Agents that come and go restart the job without being counted.
    if (launch.agents == 1 && attempt > launch.max_restarts) {
      return bad(fmt::format("must be at most launch.max_restarts; got {} of {}", attempt,
                             launch.max_restarts));
    }
    fault.attempt = static_cast<int>(attempt);
    return {};
  });
  reader.finish();
  // Elsewhere nothing is written, so the fault would pass unseen and the drill prove nothing.
  static const std::vector<std::string> kTearable = {
      "checkpoint.after_data", "checkpoint.before_commit", "checkpoint.after_commit"};
  if (fault.action == Fault::Action::kTornWrite && !fault.point.empty() &&
      std::find(kTearable.begin(), kTearable.end(), fault.point) == kTearable.end()) {
    problems.add(node.place, fmt::format("faults[{}].point: must be one of {} for torn_write; got "
                                         "\"{}\"",
                                         index, join(kTearable), fault.point));
  }
  if (fault.action == Fault::Action::kDiverge && !fault.point.empty() &&
      fault.point != "train.all_reduce") {
    problems.add(node.place,
                 fmt::format("faults[{}].point: must be train.all_reduce for diverge; got \"{}\"",
                             index, fault.point));
  }
  return fault;
}

Result<Duration> read_recovery(const YamlNode& node) {
  static constexpr std::string_view kUnder = "under ";
  YamlNode time = node;
  if (node.kind == YamlNode::Kind::kScalar && node.text.starts_with(kUnder)) {
    time.text = std::string(trim(node.text.substr(kUnder.size())));
    const Result<Duration> limit = read_duration(time);
    if (limit.ok() && limit->count() > 0) return limit;
  }
  return bad(fmt::format("must be a limit, as \"under 10 s\"; got {}", node.describe()));
}

Drill::Named read_named(const YamlNode& node, YamlProblems& problems) {
  Drill::Named named;
  MapReader reader("expect.named", node, problems);
  reader.required("global_rank", into(named.global_rank, int_at_least(0)));
  reader.key("by", into(named.by, int_at_least(1)));
  reader.key("within", into(named.limit, read_recovery));
  reader.finish();
  return named;
}

void read_expect(const YamlNode& node, Drill::Expect& expect, YamlProblems& problems) {
  MapReader reader("expect", node, problems);
  reader.key("exit", into(expect.exit_status, int_at_least(0)));
  reader.key("agents_exit", into(expect.agents_exit, int_at_least(0)));
  reader.key("named", [&](const YamlNode& value) -> Result<void> {
    expect.named = read_named(value, problems);
    return {};
  });
  reader.key("slow_rank", into(expect.slow_rank, int_at_least(0)));
  reader.key("restarts", into(expect.restarts, int_at_least(0)));
  reader.key("resumed_from_step", into(expect.resumed_from_steps, read_steps));
  reader.key("checkpoint_skipped", into(expect.skipped_checkpoints, read_steps));
  reader.key("loss_curve", [&](const YamlNode& value) -> Result<void> {
    if (MUSTER_TRY(read_text(value)) != "bit_identical") {
      return bad(fmt::format("must be bit_identical; got {}{}", value.describe(),
                             did_you_mean(value.text, {"bit_identical"})));
    }
    expect.is_bit_identical = true;
    return {};
  });
  reader.key("recovery", into(expect.recovery_limit, read_recovery));
  reader.key("loss_below", into(expect.loss_limit, read_float));
  reader.finish();
}
}  // namespace

const std::vector<std::string>& known_fault_points() {
  static const std::vector<std::string> points = {
      "train.step_begin",         "train.all_reduce",       "optimizer.before_step",
      "train.step_end",           "checkpoint.before_data", "checkpoint.after_data",
      "checkpoint.before_commit", "checkpoint.after_commit"};
  return points;
}

Result<Drill> parse_drill(std::string_view text, const std::string& path) {
  YamlProblems problems;
  const YamlNodePtr root = parse_yaml(text, problems);
  if (root == nullptr) return problems.to_error(path);
  Drill drill;
  drill.source = path;
  MapReader reader("", *root, problems);
  reader.required("recipe", [&](const YamlNode& value) -> Result<void> {
    const std::string recipe = MUSTER_TRY(read_text(value));
    if (recipe.empty()) return bad("must name a recipe file; got \"\"");
    drill.recipe = path_join(path_parent(path), recipe);
    return {};
  });
  reader.key("set", [&](const YamlNode& value) -> Result<void> {
    if (value.kind != YamlNode::Kind::kMap) {
      return bad(fmt::format("must be a map of recipe keys, as {{dist.timeout: 3 s}}; got {}",
                             value.describe()));
    }
    for (const YamlEntry& entry : value.entries) {
      drill.overrides.push_back(
          fmt::format("{}={}", entry.key, MUSTER_TRY(read_text(*entry.value))));
    }
    return {};
  });
  reader.key("launch", [&](const YamlNode& value) -> Result<void> {
    read_launch(value, drill.launch, problems);
    return {};
  });
  reader.key("faults", [&](const YamlNode& value) -> Result<void> {
    if (value.kind != YamlNode::Kind::kList) {
      return bad(fmt::format("must be a list; got {}", value.describe()));
    }
    for (const YamlNodePtr& item : value.items) {
      drill.faults.push_back(read_fault(*item, drill.faults.size(), drill.launch, problems));
    }
    return {};
  });
  reader.key("expect", [&](const YamlNode& value) -> Result<void> {
    read_expect(value, drill.expect, problems);
    return {};
  });
  reader.finish();
  if (!problems.empty()) return problems.to_error(path);
  return drill;
}

Result<Drill> load_drill(const std::string& path) {
  const std::string text = MUSTER_TRY(read_text(real_file_system(), path), "drill " + path);
  return parse_drill(text, path);
}
}  // namespace muster
