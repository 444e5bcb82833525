#pragma once
/// The options of `muster run`: torchrun's names and spellings, as data, and how they are read.
///
/// A table says everything about an option; parsing, PET_ variables and the help text follow from
/// it. What the values mean is run_plan.h's business.
/// @source argparse and torch.distributed.run of torch 2.13

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"

namespace muster {

struct RunOption {
  enum class Kind : uint8_t { kFlag, kValue };
  /// kUsed; kNoEffect is accepted, `note` says why it changes nothing; kRefused is an error with
  /// `note` as its reason, unless the value is torchrun's default.
  enum class Support : uint8_t { kUsed, kNoEffect, kRefused };

  std::string_view name;  ///< with dashes: "nproc-per-node"
  char letter = 0;        ///< short form, 0 without
  Kind kind = Kind::kValue;
  Support support = Support::kUsed;
  std::string_view value_name;  ///< in the help: "N"
  std::string_view help;
  std::string_view note;     ///< for kNoEffect and kRefused
  bool has_variable = true;  ///< PET_<NAME> is read
  bool is_torchrun = true;
};

/// All options in the order of the help.
std::span<const RunOption> run_options();

/// What the command line and the environment say. Names have dashes.
struct RunArguments {
  std::map<std::string, std::string, std::less<>> values;  ///< of options with a value
  std::map<std::string, bool, std::less<>> flags;
  std::vector<std::string> rest;   ///< the program and its arguments
  bool after_double_dash = false;  ///< `rest` followed a "--"
  bool help = false;

  [[nodiscard]] bool flag(std::string_view name) const;
  [[nodiscard]] std::optional<std::string> value(std::string_view name) const;
};

/// Looks a variable up; nullopt when it is not set.
using Environment = std::map<std::string, std::string, std::less<>>;

/// Reads the words after `muster run`: options up to the first word that is none, in both
/// spellings, glued ("-r3", "--tee=3") or not, shortened as long as only one option is meant. The
/// command line wins over PET_ variables.
/// @error kInvalidArgument what is wrong with which option
Result<RunArguments> parse_run_arguments(std::span<const std::string> words,
                                         const Environment& environment);

/// The variable of an option: "PET_NPROC_PER_NODE".
std::string variable_of(const RunOption& option);

/// The complete help text.
std::string run_help();

}  // namespace muster
