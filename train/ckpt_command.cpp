#include "train/ckpt_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "checkpoint/io/inspect.h"
#include "core/base/units.h"

namespace muster {
namespace {
using namespace checkpoint;  // NOLINT
using nlohmann::json;

constexpr int kDifferent = 1;
constexpr int kUsage = 64;
constexpr int kDamaged = 66;

// What a verb found: text lines or JSON, whichever is asked for.
struct Answer {
  int status = 0;
  std::string text;
  json object = json::object();
};

FileSystem& files() { return real_file_system(); }

json listed_json(const ListedCheckpoint& listed) {
  return {{"name", listed.name},
          {"path", listed.path},
          {"ok", listed.reason.empty()},
          {"reason", listed.reason},
          {"step", listed.step},
          {"created", listed.created},
          {"world_size", listed.world_size},
          {"tensors", listed.num_tensors},
          {"nbytes", listed.nbytes},
          {"digest", listed.digest}};
}

Result<Answer> list(const std::string& path) {
  Answer answer;
  answer.object["checkpoints"] = json::array();
  for (const ListedCheckpoint& listed : MUSTER_TRY(list_checkpoints(files(), path))) {
    answer.object["checkpoints"].push_back(listed_json(listed));
    if (!listed.reason.empty()) {
      answer.text += fmt::format("{}  not whole: {}\n", listed.name, listed.reason);
    } else {
      answer.text += fmt::format("{}  {:>10}  {} ranks  {} tensors  {}  digest {}\n", listed.name,
                                 format_bytes({listed.nbytes}), listed.world_size,
                                 listed.num_tensors, listed.created, listed.digest);
    }
  }
  return answer;
}

json damages_json(const std::vector<Damage>& damages) {
  json list = json::array();
  for (const Damage& damage : damages)
    list.push_back({{"file", damage.file}, {"tensor", damage.tensor}, {"text", damage.text}});
  return list;
}

Result<Answer> verify(const std::string& path) {
  Answer answer;
  answer.object["checkpoints"] = json::array();
  for (const ListedCheckpoint& listed : MUSTER_TRY(list_checkpoints(files(), path))) {
    std::vector<Damage> damages;
    const Result<Checkpoint> opened = Checkpoint::open(files(), listed.path);
    if (opened.ok())
      damages = opened->verify_deep();
    else
      damages.push_back({"", "", opened.error().message()});
    json entry = listed_json(listed);
    entry["ok"] = damages.empty();
    entry["damages"] = damages_json(damages);
    answer.object["checkpoints"].push_back(entry);
    if (damages.empty()) {
      answer.text +=
          fmt::format("{}  ok  {} verified\n", listed.name, format_bytes({listed.nbytes}));
    } else {
      answer.status = kDamaged;
      answer.text += fmt::format("{}  damaged in {} {}\n", listed.name, damages.size(),
                                 damages.size() == 1 ? "place" : "places");
      for (const Damage& damage : damages) answer.text += "  " + damage.text + "\n";
    }
  }
  answer.object["ok"] = answer.status == 0;
  return answer;
}

Result<Answer> digest(const std::string& path) {
  const Checkpoint opened = MUSTER_TRY(open_checkpoint(files(), path));
  const DigestReport report = MUSTER_TRY(digest_checkpoint(opened), "in " + opened.path());
  Answer answer;
  size_t width = 3;
  for (const NamedDigest& tensor : report.tensors) width = std::max(width, tensor.name.size());
  json tensors = json::array();
  for (const NamedDigest& tensor : report.tensors) {
    const std::string dtype(to_string(tensor.dtype));
    answer.text += fmt::format("{:<{}}  {:<4}  {:<16}  {}\n", tensor.name, width, dtype,
                               to_string(tensor.shape), tensor.digest);
    tensors.push_back({{"name", tensor.name},
                       {"dtype", dtype},
                       {"shape", tensor.shape},
                       {"digest", tensor.digest}});
  }
  answer.text += fmt::format("all of step {}: {}\n", report.step, report.total);
  answer.object = {{"path", opened.path()},
                   {"step", report.step},
                   {"tensors", tensors},
                   {"digest", report.total}};
  return answer;
}

// JSON has no nan and no infinity.
json number_json(double value) {
  return std::isfinite(value) ? json(value) : json(fmt::format("{}", value));
}

Result<Answer> diff(const std::string& path_a, const std::string& path_b) {
  const Checkpoint a = MUSTER_TRY(open_checkpoint(files(), path_a));
  const Checkpoint b = MUSTER_TRY(open_checkpoint(files(), path_b));
  const DiffReport report = MUSTER_TRY(diff_checkpoints(a, b));
  Answer answer;
  json tensors = json::array();
  for (const TensorDifference& difference : report.tensors) {
    answer.text += fmt::format("{}: {}: {}\n", difference.name, difference.what, difference.detail);
    tensors.push_back({{"name", difference.name},
                       {"what", difference.what},
                       {"detail", difference.detail},
                       {"different", difference.num_different},
                       {"max_abs", number_json(difference.max_abs)},
                       {"first_index", difference.first_index}});
  }
  json state = json::array();
  for (const StateDifference& difference : report.state) {
    answer.text += fmt::format("{}: {} -> {}\n", difference.path,
                               difference.a.empty() ? "(none)" : difference.a,
                               difference.b.empty() ? "(none)" : difference.b);
    state.push_back({{"path", difference.path}, {"a", difference.a}, {"b", difference.b}});
  }
  if (report.is_equal())
    answer.text = fmt::format("equal: {} tensors and all state\n", a.manifest().tensors.size());
  answer.status = report.is_equal() ? 0 : kDifferent;
  answer.object = {{"a", a.path()},
                   {"b", b.path()},
                   {"equal", report.is_equal()},
                   {"tensors", tensors},
                   {"state", state}};
  return answer;
}

CommandOutput render(const Result<Answer>& answer, bool as_json) {
  if (answer.ok()) {
    return {answer->status,
            as_json ? answer->object.dump(2, ' ', false, json::error_handler_t::replace) + "\n"
                    : answer->text,
            ""};
  }
  const Error& error = answer.error();
  std::string out;
  if (as_json) {
    out =
        json{{"ok", false}, {"code", std::string(to_string(error.code()))}, {"error", error.what()}}
            .dump(2, ' ', false, json::error_handler_t::replace) +
        "\n";
  }
  return {exit_status(error.code()), out, fmt::format("muster-tools ckpt: {}\n", error.what())};
}
}  // namespace

CommandOutput run_ckpt_command(std::span<const std::string> arguments) {
  CLI::App app{"look at checkpoints", "muster-tools ckpt"};
  app.require_subcommand(1);
  bool as_json = false;
  std::string path;
  std::string other;
  const auto add = [&](const char* name, const char* help, bool two) {
    CLI::App* verb = app.add_subcommand(name, help);
    verb->add_flag("--json", as_json, "print one JSON object");
    verb->add_option(two ? "a" : "dir", path, "a checkpoint or a folder of them")->required();
    if (two) verb->add_option("b", other, "the other one")->required();
    return verb;
  };
  const CLI::App* ls = add("ls", "list checkpoints, newest first", false);
  const CLI::App* check = add("verify", "read every byte and name all damage", false);
  const CLI::App* sum = add("digest", "layout-independent digests of all tensors", false);
  add("diff", "compare two checkpoints; exit status 1 when they differ", true);
  // CLI11 takes the arguments last first.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    return {0, app.help(), ""};
  } catch (const CLI::ParseError& error) {
    return {kUsage, "", fmt::format("muster-tools ckpt: {}\n{}", error.what(), app.help())};
  }
  const Result<Answer> answer = catch_error([&] {
    if (ls->parsed()) return list(path).value();
    if (check->parsed()) return verify(path).value();
    if (sum->parsed()) return digest(path).value();
    return diff(path, other).value();
  });
  return render(answer, as_json);
}
}  // namespace muster
