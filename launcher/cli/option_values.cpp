#include "launcher/cli/option_values.h"

#include <charconv>

#include "core/base/text.h"

namespace muster {

Error wrong_option(std::string_view option, std::string_view must, std::string_view got) {
  return make_error(ErrorCode::kInvalidArgument, "--{}: must be {}; got \"{}\"", option, must, got);
}

Result<int> parse_int_option(std::string_view option, std::string_view text, int least, int most,
                             std::string_view must) {
  const std::string_view digits = trim(text);
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || number < least ||
      number > most) {
    return wrong_option(option, must, text);
  }
  return number;
}

}  // namespace muster
