#include "train/ops_command.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/text.h"
#include "core/dispatch/op_table.h"
#include "core/ops/op_registry.h"

namespace muster {
namespace {
using Json = nlohmann::ordered_json;

constexpr const char* kUsage =
    "usage: muster ops [NAME] [--json]\n"
    "Lists the operators; with NAME everything that is stated of one: derivative, what it saves,\n"
    "sharding rules, autocast class.\n";

std::string_view to_string(AutocastClass value) {
  switch (value) {
    case AutocastClass::kNone:
      return "none";
    case AutocastClass::kLowPrecision:
      return "lower";
    case AutocastClass::kFloat32:
      return "fp32";
    case AutocastClass::kPromote:
      return "promote";
    case AutocastClass::kOutside:
      return "outside";
  }
  return "none";
}

std::string kind_of(const OpDef::Facts& facts) {
  if (facts.view != nullptr) return "view";
  return facts.composite != nullptr ? "composite" : "kernel";
}

Json describe(const Op& op) {
  const OpDef::Facts& facts = op.facts();
  Json json;
  json["name"] = op.name();
  json["schema"] = muster::to_string(facts.schema);
  json["kind"] = kind_of(facts);
  json["in_place_variant"] = facts.has_in_place;
  json["differentiable"] = facts.no_derivative_because.empty();
  if (!facts.no_derivative_because.empty())
    json["not_differentiable_because"] = facts.no_derivative_because;
  json["shard_rules"] = facts.shard_rules;
  if (!facts.replicate_only_because.empty())
    json["replicate_only_because"] = facts.replicate_only_because;
  json["autocast"] = to_string(facts.autocast);
  json["random"] = facts.is_random;
  json["samples"] = facts.samples.size();
  return json;
}

std::string text_of(const Json& json) {
  std::string text;
  for (const auto& [key, value] : json.items()) {
    if (value.is_array()) {
      for (const Json& item : value)
        text += fmt::format("{:<27} {}\n", key, item.get<std::string>());
    } else {
      text += fmt::format("{:<27} {}\n", key,
                          value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
  return text;
}
}  // namespace

CommandOutput run_ops_command(std::span<const std::string> arguments) {
  bool as_json = false;
  std::optional<std::string> name;
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") return {0, kUsage, ""};
    if (argument == "--json") {
      as_json = true;
    } else if (argument.starts_with("-") || name) {
      return {64, "", fmt::format("ops: unknown argument \"{}\"\n{}", argument, kUsage)};
    } else {
      name = argument;
    }
  }
  const OpTable& table = ops::all_ops();
  if (name) {
    const Op* op = table.find_or_null(*name);
    if (op == nullptr) {
      std::vector<std::string> names;
      for (const auto& each : table.all()) names.push_back(each->name());
      const std::string nearest = nearest_name(*name, names);
      return {66, "",
              fmt::format("ops: no operator \"{}\"{}\n", *name,
                          nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest))};
    }
    return {0, as_json ? describe(*op).dump(2) + "\n" : text_of(describe(*op)), ""};
  }
  Json list = Json::array();
  std::string text;
  for (const auto& op : table.all()) {
    if (op->writes_self() && !op->facts().only_in_place) continue;  // told by its functional form
    list.push_back(describe(*op));
    text += muster::to_string(op->schema()) + "\n";
  }
  return {0, as_json ? list.dump(2) + "\n" : text, ""};
}
}  // namespace muster
