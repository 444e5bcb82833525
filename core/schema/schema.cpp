#include "core/schema/schema.h"

#include <fmt/format.h>

#include <array>

namespace muster {
namespace {
constexpr std::array<std::string_view, kNumArgumentTypes> kTypeNames = {
    "Tensor", "Scalar", "int", "float", "bool", "str", "ScalarType", "Device", "Generator"};

std::string alias_text(const Argument& argument) {
  if (argument.alias.empty()) return "";
  const bool moves = !argument.alias_after.empty();
  return fmt::format("({}{}{}{})", argument.alias, argument.is_write ? "!" : "",
                     moves ? " -> " : "", argument.alias_after);
}

bool stands_alone(const std::vector<Argument>& returns) {
  return returns.size() == 1 && returns[0].name.empty();
}

std::string returns_text(const std::vector<Argument>& returns) {
  if (stands_alone(returns)) return to_string(returns[0]);
  std::string text = "(";
  for (size_t i = 0; i < returns.size(); ++i) {
    text += (i > 0 ? ", " : "") + to_string(returns[i]);
  }
  return text + ")";
}
}  // namespace

std::string_view to_string(ArgumentType type) noexcept {
  return kTypeNames[static_cast<size_t>(type)];
}

std::string Schema::full_name() const {
  return fmt::format("{}{}{}{}{}", ns, ns.empty() ? "" : "::", name, overload.empty() ? "" : ".",
                     overload);
}

std::optional<size_t> Schema::index_of(std::string_view argument_name) const noexcept {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name == argument_name) return i;
  }
  return std::nullopt;
}

size_t Schema::num_positional() const noexcept {
  size_t count = 0;
  while (count < arguments.size() && !arguments[count].kwarg_only) ++count;
  return count;
}

bool Schema::is_mutating() const noexcept {
  for (const Argument& argument : arguments) {
    if (argument.is_write) return true;
  }
  return false;
}

std::string to_string(const Argument& argument) {
  std::string text(to_string(argument.type));
  text += alias_text(argument);
  if (argument.has_optional_elements) text += "?";
  if (argument.is_list) {
    text += argument.list_size > 0 ? fmt::format("[{}]", argument.list_size) : "[]";
  }
  if (argument.is_optional) text += "?";
  if (!argument.name.empty()) text += " " + argument.name;
  if (argument.default_text) text += "=" + *argument.default_text;
  return text;
}

std::string to_string(const Schema& schema) {
  std::string text = schema.full_name() + "(";
  const size_t num_positional = schema.num_positional();
  for (size_t i = 0; i < schema.arguments.size(); ++i) {
    if (i > 0) text += ", ";
    if (i == num_positional) text += "*, ";
    text += to_string(schema.arguments[i]);
  }
  return text + ") -> " + returns_text(schema.returns);
}
}  // namespace muster
