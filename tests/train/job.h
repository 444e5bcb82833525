#pragma once
/// Whole jobs through the muster binary, on a recipe that is small enough for seconds.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/file_system.h"
#include "tests/support/matchers.h"

namespace muster {

struct Ended {
  int status = 0;
  std::string output;  ///< stdout and stderr
};

/// The path of a program beside this test.
std::string binary(const std::string& name);

/// Runs a shell command to its end, at most two minutes.
Ended shell(const std::string& command);

/// A text, a recipe `tiny.yaml` for it, and a folder that goes away.
class EndToEnd : public ::testing::Test {
 protected:
  using json = nlohmann::json;

  EndToEnd();
  [[nodiscard]] std::string dir(const std::string& name) const { return directory_.file(name); }
  [[nodiscard]] std::string recipe() const { return directory_.file("tiny.yaml"); }

  /// `muster run OPTIONS tiny.yaml OVERRIDES`.
  Ended run(const std::string& options, const std::string& overrides = "",
            const std::string& environment = "");
  /// Runs a drill on three ranks, with its report in drill.json.
  Ended drill(const std::string& faults, const std::string& expect,
              const std::string& launch = "launch: {nproc: 3, max_restarts: 2}");
  /// The objects of a file of JSON lines.
  static std::vector<json> lines(const std::string& path);

  TempDirectory directory_;
};

}  // namespace muster
