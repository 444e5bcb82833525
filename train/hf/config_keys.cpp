#include "train/hf/config_keys.h"

#include <fmt/format.h>

#include "core/base/text.h"

namespace muster::hf {
using nlohmann::json;

const json* ConfigKeys::find(const std::string& key) {
  used_.insert(key);
  const auto at = object_.find(key);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

std::string ConfigKeys::shown(const std::string& key) const {
  const auto at = object_.find(key);
  return at == object_.end() ? "nothing" : at->dump();
}

void ConfigKeys::invalid(const std::string& key, const std::string& rule) {
  invalid_.push_back(fmt::format("{}{} must {}; got {}", where_, key, rule, shown(key)));
}
void ConfigKeys::refuse(const std::string& key, const std::string& rule) {
  refused_.push_back(fmt::format("{}{} must {}; got {}", where_, key, rule, shown(key)));
}

int64_t ConfigKeys::integer(const std::string& key, int64_t otherwise) {
  const json* value = find(key);
  if (value == nullptr) return otherwise;
  constexpr int64_t kMost = int64_t{1} << 31;  // keeps products of two in 64 bits
  const bool fits =
      value->is_number_integer() && value->get<int64_t>() > 0 && value->get<int64_t>() < kMost;
  if (fits) return value->get<int64_t>();
  invalid(key, "be a positive integer");
  return 1;
}

int64_t ConfigKeys::required(const std::string& key) {
  if (find(key) == nullptr) {
    invalid(key, "be given");
    return 1;
  }
  return integer(key, 1);
}

double ConfigKeys::number(const std::string& key, double otherwise) {
  const json* value = find(key);
  if (value == nullptr) return otherwise;
  if (value->is_number()) return value->get<double>();
  invalid(key, "be a number");
  return otherwise;
}

bool ConfigKeys::flag(const std::string& key, bool otherwise) {
  const json* value = find(key);
  if (value == nullptr) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  invalid(key, "be true or false");
  return otherwise;
}

std::string ConfigKeys::text(const std::string& key, const std::string& otherwise) {
  const json* value = find(key);
  if (value == nullptr) return otherwise;
  if (value->is_string()) return value->get<std::string>();
  invalid(key, "be a text");
  return otherwise;
}

std::vector<int64_t> ConfigKeys::integers(const std::string& key) {
  const json* value = find(key);
  if (value == nullptr) return {};
  std::vector<int64_t> list;
  const json one = json::array({*value});
  for (const json& item : value->is_array() ? *value : one) {
    if (!item.is_number_integer()) {
      invalid(key, "be an integer or a list of them");
      return {};
    }
    list.push_back(item.get<int64_t>());
  }
  return list;
}

void ConfigKeys::ignore(std::initializer_list<const char*> keys) {
  for (const char* key : keys) used_.insert(key);
}

void ConfigKeys::must_be(const std::string& key, double value) {
  if (number(key, value) != value) refuse(key, fmt::format("be {}", value));
}

void ConfigKeys::absorb(ConfigKeys nested) {
  nested.note_unknown_keys();
  invalid_.insert(invalid_.end(), nested.invalid_.begin(), nested.invalid_.end());
  refused_.insert(refused_.end(), nested.refused_.begin(), nested.refused_.end());
}

// What is off by null, false or emptiness is no request.
void ConfigKeys::note_unknown_keys() {
  for (const auto& [key, value] : object_.items()) {
    const bool is_off = value.is_null() || value == json(false) ||
                        ((value.is_array() || value.is_object()) && value.empty());
    if (is_off || used_.count(key) > 0) continue;
    refused_.push_back(
        fmt::format("unknown key {}{}, which may change what the model computes; got {}", where_,
                    key, value.dump()));
  }
}

Result<void> ConfigKeys::finish() {
  note_unknown_keys();
  std::vector<std::string> faults = invalid_;
  faults.insert(faults.end(), refused_.begin(), refused_.end());
  if (faults.empty()) return {};
  const ErrorCode code = invalid_.empty() ? ErrorCode::kUnimplemented : ErrorCode::kInvalidArgument;
  return Error(code, "config.json: " + join(faults, "\n  "));
}
}  // namespace muster::hf
