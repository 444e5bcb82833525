#pragma once
/// The contract of an operator as text, and its parsed form.
///
/// Grammar: `ns::name.overload(Type[(alias)] name[=default], ..., *, ...) -> returns`, where Type
/// is Tensor, Scalar, int, float, bool, str, ScalarType, Device or Generator, then `[]` or `[N]`
/// for a list and `?` for "may be None"; `Tensor?[]` is a list whose elements may be None. Returns
/// are one type, or `()`, or `(Type name, ...)`. This is data only: nothing here calls anything.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"

namespace muster {

enum class ArgumentType : uint8_t {
  kTensor,
  kScalar,  ///< a bool, int or float, whichever was passed
  kInt,
  kFloat,
  kBool,
  kStr,
  kScalarType,  ///< a DType
  kDevice,
  kGenerator,
};
inline constexpr int kNumArgumentTypes = 9;

/// "Tensor", "int", "ScalarType", ...
std::string_view to_string(ArgumentType type) noexcept;

/// One argument or one return of an operator.
struct Argument {
  std::string name;  ///< "" for a return without a name
  ArgumentType type = ArgumentType::kTensor;
  bool is_list = false;
  bool is_optional = false;            ///< the value may be None: `int?`, `int[]?`
  bool has_optional_elements = false;  ///< `Tensor?[]`
  int32_t list_size = 0;  ///< N of `int[N]`: one value stands for N of them; 0 for `[]`
  std::optional<std::string> default_text;  ///< as written, quotes included; nothing if required
  std::string alias;        ///< alias set: "a" of `(a)` and `(a!)`, "a|b", "*"; "" for none
  std::string alias_after;  ///< "*" of `(a -> *)`; "" when it stays what it was
  bool is_write = false;    ///< `(a!)`: the operator writes this tensor
  bool kwarg_only = false;  ///< stands after `*`

  bool operator==(const Argument&) const = default;
};

struct Schema {
  std::string ns;        ///< "" when the text has none
  std::string name;      ///< "add" of "aten::add.out"
  std::string overload;  ///< "out" of "aten::add.out"
  std::vector<Argument> arguments;
  std::vector<Argument> returns;

  /// "ns::name.overload", parts that are empty left out.
  [[nodiscard]] std::string full_name() const;
  /// Position of an argument; nothing if there is none of that name.
  [[nodiscard]] std::optional<size_t> index_of(std::string_view argument_name) const noexcept;
  /// Number of arguments before `*`.
  [[nodiscard]] size_t num_positional() const noexcept;
  /// True when some argument is written: `add_`, `add.out`.
  [[nodiscard]] bool is_mutating() const noexcept;

  bool operator==(const Schema&) const = default;
};

/// Reads one schema.
///
/// Beyond the grammar: names are unique, a required positional argument does not follow one with a
/// default, a default suits its type, and an alias set of a return is one of an argument.
/// @error kInvalidArgument; the message holds the column, counted from 1, and a caret below the
/// text
Result<Schema> parse_schema(std::string_view text);

/// The canonical text; parse_schema() of it gives an equal Schema.
std::string to_string(const Schema& schema);
std::string to_string(const Argument& argument);

}  // namespace muster
