#include "launcher/cli/run_options.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "core/base/text.h"

namespace muster {
namespace {
using Kind = RunOption::Kind;
using Support = RunOption::Support;

std::string with_underscores(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

const RunOption* find_letter(char letter) {
  const std::span<const RunOption> all = run_options();
  const auto found = std::find_if(all.begin(), all.end(), [letter](const RunOption& option) {
    return option.letter == letter && letter != 0;
  });
  return found == all.end() ? nullptr : &*found;
}

// The option meant by `name` (without "--"), whole or shortened.
Result<const RunOption*> find_option(const std::string& name) {
  std::vector<const RunOption*> matches;
  std::vector<std::string> spellings;
  for (const RunOption& option : run_options()) {
    const std::string other = with_underscores(option.name);
    if (name == option.name || name == other) return &option;
    if (option.name.starts_with(name) || other.starts_with(name)) {
      matches.push_back(&option);
      spellings.push_back("--" + std::string(option.name));
    }
  }
  if (matches.size() == 1) return matches.front();
  if (matches.size() > 1) {
    return make_error(ErrorCode::kInvalidArgument, "--{}: may mean {}", name, join(spellings));
  }
  std::vector<std::string> names;
  for (const RunOption& option : run_options()) names.emplace_back(option.name);
  const std::string nearest = nearest_name(name, names);
  return make_error(ErrorCode::kInvalidArgument, "--{}: no such option{}", name,
                    nearest.empty() ? "" : "; did you mean --" + nearest + "?");
}

// Reads the words of one command line.
class Parser {
 public:
  explicit Parser(std::span<const std::string> words) : words_(words) {}

  Result<RunArguments> parse() {
    while (at_ < words_.size()) {
      const std::string& word = words_[at_];
      if (word == "--") {
        result_.after_double_dash = true;
        ++at_;
        break;
      }
      if (word.size() < 2 || word[0] != '-') break;
      ++at_;
      if (word[1] == '-') {
        MUSTER_TRY(take_long(word));
      } else {
        MUSTER_TRY(take_letters(word));
      }
    }
    result_.rest.assign(words_.begin() + static_cast<std::ptrdiff_t>(at_), words_.end());
    return result_;
  }

 private:
  Result<void> take_long(const std::string& word) {
    const size_t equals = word.find('=');
    const RunOption* option = MUSTER_TRY(find_option(word.substr(2, equals - 2)));
    if (option->kind == Kind::kFlag) {
      if (equals != std::string::npos) {
        return make_error(ErrorCode::kInvalidArgument, "--{}: takes no value; got \"{}\"",
                          option->name, word.substr(equals + 1));
      }
      set_flag(*option);
      return {};
    }
    if (equals == std::string::npos) return take_value(*option);
    result_.values[std::string(option->name)] = word.substr(equals + 1);
    return {};
  }

  Result<void> take_letters(const std::string& word) {
    for (size_t i = 1; i < word.size(); ++i) {
      const RunOption* option = find_letter(word[i]);
      if (option == nullptr) {
        return make_error(ErrorCode::kInvalidArgument, "-{}: no such option", word[i]);
      }
      if (option->kind == Kind::kFlag) {
        set_flag(*option);
        continue;
      }
      if (i + 1 == word.size()) return take_value(*option);
      const size_t begin = word[i + 1] == '=' ? i + 2 : i + 1;
      result_.values[std::string(option->name)] = word.substr(begin);
      return {};
    }
    return {};
  }

  Result<void> take_value(const RunOption& option) {
    if (at_ == words_.size() || words_[at_].starts_with("--")) {
      return make_error(ErrorCode::kInvalidArgument, "--{}: needs a value: {}", option.name,
                        option.value_name);
    }
    result_.values[std::string(option.name)] = words_[at_++];
    return {};
  }

  void set_flag(const RunOption& option) {
    result_.flags[std::string(option.name)] = true;
    if (option.name == "help") result_.help = true;
  }

  std::span<const std::string> words_;
  size_t at_ = 0;
  RunArguments result_;
};

Result<void> take_variable(const RunOption& option, const std::string& text,
                           RunArguments& arguments) {
  const std::string name(option.name);
  if (option.kind == Kind::kValue) {
    arguments.values.try_emplace(name, text);
    return {};
  }
  int number = 0;
  const std::string_view digits = trim(text);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    return make_error(ErrorCode::kInvalidArgument, "{}: must be 0 or 1; got \"{}\"",
                      variable_of(option), text);
  }
  arguments.flags.try_emplace(name, number != 0);
  return {};
}

Result<void> refuse_unsupported(const RunArguments& arguments) {
  for (const RunOption& option : run_options()) {
    if (option.support != Support::kRefused) continue;
    const std::string given = arguments.value(option.name).value_or("");
    const bool is_default =
        given.empty() || (option.name == "event-log-handler" && given == "null");
    if (arguments.flag(option.name) || !is_default) {
      return make_error(ErrorCode::kInvalidArgument, "--{}: is not supported: {}", option.name,
                        option.note);
    }
  }
  return {};
}

}  // namespace

std::string variable_of(const RunOption& option) {
  std::string name = "PET_" + with_underscores(option.name);
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

bool RunArguments::flag(std::string_view name) const {
  const auto found = flags.find(name);
  return found != flags.end() && found->second;
}

std::optional<std::string> RunArguments::value(std::string_view name) const {
  const auto found = values.find(name);
  if (found == values.end()) return std::nullopt;
  return found->second;
}

Result<RunArguments> parse_run_arguments(std::span<const std::string> words,
                                         const Environment& environment) {
  RunArguments arguments = MUSTER_TRY(Parser(words).parse());
  if (arguments.help) return arguments;
  for (const RunOption& option : run_options()) {
    if (!option.has_variable) continue;
    const auto found = environment.find(variable_of(option));
    if (found != environment.end()) {
      MUSTER_TRY(take_variable(option, found->second, arguments));
    }
  }
  MUSTER_TRY(refuse_unsupported(arguments));
  return arguments;
}

}  // namespace muster
