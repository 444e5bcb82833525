#include "tests/conformance/known_gaps.h"

#include "core/base/file_system.h"
#include "core/base/text.h"

namespace muster::testing {

const std::map<std::string, std::string>& known_gaps() {
  static const auto gaps = [] {
    std::map<std::string, std::string> read;
    const std::string path = path_join(MUSTER_SOURCE_DIR, "tests/conformance/known_gaps.txt");
    for (const std::string& line : split(read_text(real_file_system(), path).value(), '\n')) {
      const std::string_view text = trim(line);
      if (text.empty() || text.front() == '#') continue;
      const size_t blank = text.find(' ');
      read.emplace(text.substr(0, blank),
                   blank == std::string_view::npos ? "" : trim(text.substr(blank)));
    }
    return read;
  }();
  return gaps;
}
}  // namespace muster::testing
