#pragma once
/// A position in one line of text, for the small hand-written parsers of this folder.
///
/// Blanks between tokens are skipped. Errors name the column and draw a caret below the text. The
/// text must outlive the cursor.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/result.h"

namespace muster {

class TextCursor {
 public:
  /// `subject` starts each error message: "schema", "shard rule".
  TextCursor(std::string_view subject, std::string_view text) : subject_(subject), text_(text) {}

  /// Moves to the next token and returns its place.
  size_t skip_blanks() noexcept;
  [[nodiscard]] bool at_end() noexcept;
  [[nodiscard]] bool at_identifier() noexcept;

  /// Consumes `token` if it comes next.
  bool accept(std::string_view token) noexcept;
  /// Consumes `word` if it comes next as a whole word.
  bool accept_word(std::string_view word) noexcept;
  /// @error kInvalidArgument when another token comes next
  Result<void> expect(std::string_view token);
  /// Letters, digits and `_`, not starting with a digit. `wanted` describes it in the error.
  Result<std::string_view> identifier(std::string_view wanted);
  /// @error kInvalidArgument unless a whole number of 32 bits comes next
  Result<int32_t> integer(std::string_view wanted);
  /// @error kInvalidArgument unless a number in 1 .. 2^31-1 comes next
  Result<int32_t> positive_integer(std::string_view wanted);
  /// Everything up to a `,` or `)` that stands outside quotes and brackets.
  std::string_view literal() noexcept;

  /// "<subject>: expected <wanted> at column N; got <what is there>", with the text and a caret.
  [[nodiscard]] Error error(std::string_view wanted) { return error_at(skip_blanks(), wanted); }
  [[nodiscard]] Error error_at(size_t at, std::string_view wanted) const;

 private:
  std::string_view subject_;
  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace muster
