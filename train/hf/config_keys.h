#pragma once
/// ConfigKeys: the keys of a config.json as they are used up, with every fault noted.
///
/// For config.cpp only. A getter notes what is wrong and returns a value that does no harm;
/// finish() then reports all faults and every key that nobody asked for.

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"

namespace muster::hf {

class ConfigKeys {
 public:
  /// `where` stands before every key in messages: "", or "rope_parameters.".
  ConfigKeys(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  /// The value, or null when it is absent or null.
  const nlohmann::json* find(const std::string& key);
  [[nodiscard]] bool has(const std::string& key) { return find(key) != nullptr; }
  /// A positive integer that must be there.
  int64_t required(const std::string& key);
  /// A positive integer. The same for a floating number, a bool and a text.
  int64_t integer(const std::string& key, int64_t otherwise);
  double number(const std::string& key, double otherwise);
  bool flag(const std::string& key, bool otherwise);
  std::string text(const std::string& key, const std::string& otherwise);
  /// One integer or a list of them.
  std::vector<int64_t> integers(const std::string& key);

  /// Keys that do not change what the model computes.
  void ignore(std::initializer_list<const char*> keys);
  /// Notes what is asked for and not supported: `rule` completes "key must ..".
  void refuse(const std::string& key, const std::string& rule);
  void invalid(const std::string& key, const std::string& rule);
  /// Refuses a floating key unless it has this value.
  void must_be(const std::string& key, double value);
  /// Refuses a bool key that is true.
  void must_be_off(const std::string& key) {
    if (flag(key, false)) refuse(key, "be false");
  }

  /// Takes over the faults of a nested object.
  void absorb(ConfigKeys nested);
  /// @error kInvalidArgument, kUnimplemented: one line per fault
  Result<void> finish();

 private:
  void note_unknown_keys();
  [[nodiscard]] std::string shown(const std::string& key) const;

  const nlohmann::json& object_;
  std::string where_;
  std::set<std::string> used_;
  std::vector<std::string> invalid_, refused_;
};

}  // namespace muster::hf
