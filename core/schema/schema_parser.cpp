#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/base/text.h"
#include "core/schema/schema.h"
#include "core/schema/text_cursor.h"
#include "core/tensor/dtype.h"

namespace muster {
namespace {
bool is_number(std::string_view text, bool integral) {
  if (text.starts_with('-')) text.remove_prefix(1);
  if (text.empty() || text.front() == '-' || text.front() == '+') return false;
  if (!integral && (text == "inf" || text == "nan")) return true;
  const char* end = text.data() + text.size();
  if (integral) {
    int64_t value = 0;
    const auto parsed = std::from_chars(text.data(), end, value);
    return parsed.ec == std::errc() && parsed.ptr == end;
  }
  double value = 0;
  const auto parsed = std::from_chars(text.data(), end, value);
  return parsed.ec == std::errc() && parsed.ptr == end;
}

bool is_quoted(std::string_view text) {
  return text.size() >= 2 && (text.front() == '"' || text.front() == '\'') &&
         text.back() == text.front();
}

bool is_literal_of(std::string_view text, ArgumentType type) {
  const bool is_bool = text == "True" || text == "False";
  switch (type) {
    case ArgumentType::kInt:
      return is_number(text, /*integral=*/true);
    case ArgumentType::kFloat:
      return is_number(text, /*integral=*/false);
    case ArgumentType::kScalar:
      return is_bool || is_number(text, /*integral=*/false);
    case ArgumentType::kBool:
      return is_bool;
    case ArgumentType::kStr:
      return is_quoted(text);
    case ArgumentType::kScalarType:
      return parse_dtype(text).ok();
    case ArgumentType::kTensor:
    case ArgumentType::kDevice:
    case ArgumentType::kGenerator:
      break;
  }
  return false;
}

// True when `text` can be the default of `argument`: None, one literal, or a list of them.
bool suits(std::string_view text, const Argument& argument) {
  if (text == "None") return argument.is_optional;
  if (!argument.is_list) return is_literal_of(text, argument.type);
  if (argument.list_size > 0 && is_literal_of(text, argument.type)) return true;
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return false;
  std::string_view inside = trim(text.substr(1, text.size() - 2));
  if (inside.empty()) return argument.list_size == 0;
  int32_t count = 0;
  while (true) {
    const size_t comma = inside.find(',');
    if (!is_literal_of(trim(inside.substr(0, comma)), argument.type)) return false;
    ++count;
    if (comma == std::string_view::npos) break;
    inside.remove_prefix(comma + 1);
  }
  return argument.list_size == 0 || argument.list_size == count;
}

class SchemaParser {
 public:
  explicit SchemaParser(std::string_view text) : cursor_("schema", text) {}

  Result<Schema> parse() {
    MUSTER_TRY(parse_name());
    MUSTER_TRY(cursor_.expect("("));
    MUSTER_TRY(parse_arguments());
    MUSTER_TRY(cursor_.expect("->"));
    MUSTER_TRY(parse_returns());
    if (!cursor_.at_end()) return cursor_.error("the end of the text");
    return std::move(schema_);
  }

 private:
  Result<void> parse_name() {
    std::string first(MUSTER_TRY(cursor_.identifier("the operator's name")));
    if (cursor_.accept("::")) {
      schema_.ns = std::exchange(first, "");
      first = MUSTER_TRY(cursor_.identifier("the operator's name"));
    }
    schema_.name = std::move(first);
    if (cursor_.accept(".")) {
      schema_.overload = MUSTER_TRY(cursor_.identifier("the overload's name"));
    }
    return {};
  }

  Result<void> parse_arguments() {
    bool kwarg_only = false;
    bool had_default = false;
    if (cursor_.accept(")")) return {};
    do {
      if (!kwarg_only && cursor_.accept("*")) {
        kwarg_only = true;
        continue;
      }
      Argument argument = MUSTER_TRY(parse_type());
      argument.kwarg_only = kwarg_only;
      const size_t name_at = cursor_.skip_blanks();
      argument.name = MUSTER_TRY(cursor_.identifier("the argument's name"));
      if (schema_.index_of(argument.name)) {
        return cursor_.error_at(name_at,
                                fmt::format("an unused name, not a second \"{}\"", argument.name));
      }
      if (cursor_.accept("=")) MUSTER_TRY(parse_default(argument));
      if (!argument.default_text && !kwarg_only && had_default) {
        return cursor_.error_at(
            name_at,
            fmt::format("a default for \"{}\", as the argument before it has one", argument.name));
      }
      had_default = argument.default_text.has_value();
      schema_.arguments.push_back(std::move(argument));
    } while (cursor_.accept(","));
    if (kwarg_only && (schema_.arguments.empty() || !schema_.arguments.back().kwarg_only)) {
      return cursor_.error("an argument after \"*\"");
    }
    return cursor_.expect(")");
  }

  Result<void> parse_default(Argument& argument) {
    const size_t at = cursor_.skip_blanks();
    const std::string_view text = cursor_.literal();
    if (!suits(text, argument)) {
      Argument type = argument;
      type.name.clear();
      return cursor_.error_at(at, fmt::format("a default of type {}", to_string(type)));
    }
    argument.default_text = std::string(text);
    return {};
  }

  Result<Argument> parse_type() {
    Argument argument;
    const size_t at = cursor_.skip_blanks();
    const std::string_view name = MUSTER_TRY(cursor_.identifier("a type"));
    int index = 0;
    while (index < kNumArgumentTypes && name != to_string(static_cast<ArgumentType>(index))) {
      ++index;
    }
    if (index == kNumArgumentTypes) {
      return cursor_.error_at(
          at, "a type (Tensor, Scalar, int, float, bool, str, ScalarType, Device, Generator)");
    }
    argument.type = static_cast<ArgumentType>(index);
    if (cursor_.accept("(")) MUSTER_TRY(parse_alias(argument));
    const bool has_question_mark = cursor_.accept("?");
    if (cursor_.accept("[")) {
      argument.is_list = true;
      argument.has_optional_elements = has_question_mark;
      if (!cursor_.accept("]")) {
        argument.list_size = MUSTER_TRY(cursor_.positive_integer("a list size or \"]\""));
        MUSTER_TRY(cursor_.expect("]"));
      }
      argument.is_optional = cursor_.accept("?");
    } else {
      argument.is_optional = has_question_mark;
    }
    return argument;
  }

  // After "(": `a`, `a!`, `a|b`, `*`, `a -> *`, `a! -> a|b`, then ")".
  Result<void> parse_alias(Argument& argument) {
    const size_t at = cursor_.skip_blanks();
    if (argument.type != ArgumentType::kTensor) {
      return cursor_.error_at(at, "an alias note on a Tensor only");
    }
    argument.alias = MUSTER_TRY(parse_alias_set());
    argument.is_write = cursor_.accept("!");
    if (cursor_.accept("->")) argument.alias_after = MUSTER_TRY(parse_alias_set());
    return cursor_.expect(")");
  }

  Result<std::string> parse_alias_set() {
    if (cursor_.accept("*")) return std::string("*");
    std::string set(MUSTER_TRY(cursor_.identifier("an alias set")));
    while (cursor_.accept("|")) {
      set += "|";
      set += MUSTER_TRY(cursor_.identifier("an alias set"));
    }
    return set;
  }

  Result<void> parse_returns() {
    if (!cursor_.accept("(")) {
      MUSTER_TRY(parse_return(/*may_be_named=*/false));
      return {};
    }
    if (cursor_.accept(")")) return {};
    do {
      MUSTER_TRY(parse_return(/*may_be_named=*/true));
    } while (cursor_.accept(","));
    return cursor_.expect(")");
  }

  Result<void> parse_return(bool may_be_named) {
    const size_t at = cursor_.skip_blanks();
    Argument value = MUSTER_TRY(parse_type());
    if (!alias_is_known(value.alias)) {
      return cursor_.error_at(
          at, fmt::format("an alias set of an argument; no argument is in \"{}\"", value.alias));
    }
    if (may_be_named && cursor_.at_identifier()) {
      value.name = MUSTER_TRY(cursor_.identifier("the return's name"));
    }
    schema_.returns.push_back(std::move(value));
    return {};
  }

  [[nodiscard]] bool alias_is_known(std::string_view alias) const {
    if (alias.empty() || alias == "*") return true;
    return std::any_of(schema_.arguments.begin(), schema_.arguments.end(), [&](const Argument& a) {
      return a.alias == alias || a.alias_after == alias;
    });
  }

  TextCursor cursor_;
  Schema schema_;
};
}  // namespace

Result<Schema> parse_schema(std::string_view text) { return SchemaParser(text).parse(); }
}  // namespace muster
