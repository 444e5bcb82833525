#include "launcher/drill/fired_faults.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/text.h"

namespace muster {

std::vector<std::string> missed_faults(const std::vector<Fault>& faults, std::string_view output) {
  std::vector<std::string> words;
  for (std::string& line : split(output, '\n')) {
    if (line.find(": fault point ") != std::string::npos) words.push_back(std::move(line));
  }
  std::vector<std::string> missed;
  for (const Fault& fault : faults) {
    if (fault.action == Fault::Action::kKillAgent) continue;
    std::string wanted =
        fmt::format("rank {}: fault point {} at step ", fault.global_rank, fault.point);
    if (fault.step) wanted += fmt::format("{}:", *fault.step);
    const auto word = std::find_if(words.begin(), words.end(), [&](const std::string& line) {
      return line.find(wanted) != std::string::npos;
    });
    if (word != words.end()) {
      words.erase(word);
      continue;
    }
    missed.push_back(
        fmt::format("{} of global rank {}{}, attempt {}", fault.point, fault.global_rank,
                    fault.step ? fmt::format(" at step {}", *fault.step) : "", fault.attempt));
  }
  return missed;
}
}  // namespace muster
