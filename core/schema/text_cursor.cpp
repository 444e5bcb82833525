#include "core/schema/text_cursor.h"

#include <charconv>

#include "core/base/text.h"

namespace muster {
namespace {
bool is_letter(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
bool is_blank(char c) noexcept { return c == ' ' || c == '\t' || c == '\n'; }
}  // namespace

size_t TextCursor::skip_blanks() noexcept {
  while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
  return at_;
}

bool TextCursor::at_end() noexcept { return skip_blanks() == text_.size(); }

bool TextCursor::at_identifier() noexcept {
  return skip_blanks() < text_.size() && is_letter(text_[at_]);
}

bool TextCursor::accept(std::string_view token) noexcept {
  skip_blanks();
  if (!text_.substr(at_).starts_with(token)) return false;
  at_ += token.size();
  return true;
}

bool TextCursor::accept_word(std::string_view word) noexcept {
  const size_t end = skip_blanks() + word.size();
  if (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]))) return false;
  return accept(word);
}

Result<void> TextCursor::expect(std::string_view token) {
  if (accept(token)) return {};
  return error(fmt::format("\"{}\"", token));
}

Result<std::string_view> TextCursor::identifier(std::string_view wanted) {
  if (!at_identifier()) return error(wanted);
  const size_t start = at_;
  while (at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_]))) ++at_;
  return text_.substr(start, at_ - start);
}

Result<int32_t> TextCursor::integer(std::string_view wanted) {
  const size_t start = skip_blanks();
  int32_t value = 0;
  const char* end = text_.data() + text_.size();
  const auto parsed = std::from_chars(text_.data() + start, end, value);
  if (parsed.ec != std::errc()) return error(wanted);
  at_ = static_cast<size_t>(parsed.ptr - text_.data());
  return value;
}

Result<int32_t> TextCursor::positive_integer(std::string_view wanted) {
  const size_t start = skip_blanks();
  const int32_t value = MUSTER_TRY(integer(wanted));
  if (value <= 0) return error_at(start, wanted);
  return value;
}

std::string_view TextCursor::literal() noexcept {
  const size_t start = skip_blanks();
  char quote = 0;
  int depth = 0;
  for (; at_ < text_.size(); ++at_) {
    const char c = text_[at_];
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '[') {
      ++depth;
    } else if (c == ']') {
      --depth;
    } else if (depth == 0 && (c == ',' || c == ')')) {
      break;
    }
  }
  return trim(text_.substr(start, at_ - start));
}

Error TextCursor::error_at(size_t at, std::string_view wanted) const {
  const std::string found =
      at >= text_.size() ? "the end" : fmt::format("\"{}\"", text_.substr(at, 12));
  return make_error(ErrorCode::kInvalidArgument,
                    "{}: expected {} at column {}; got {}\n  {}\n  {}^", subject_, wanted, at + 1,
                    found, text_, std::string(at, ' '));
}
}  // namespace muster
