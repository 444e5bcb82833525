#include "tests/support/child_process.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>

namespace muster::testing {
namespace {
std::map<std::string, std::function<int()>>& children() {
  static std::map<std::string, std::function<int()>> registered;
  return registered;
}
}  // namespace

bool register_child(const std::string& name, std::function<int()> body) {
  return children().emplace(name, std::move(body)).second;
}

int run_all_tests_or_child() {
  const char* name = std::getenv("MUSTER_TEST_CHILD");
  if (name == nullptr) return RUN_ALL_TESTS();
  const auto found = children().find(name);
  if (found == children().end()) {
    std::fprintf(stderr, "no child body is registered under \"%s\"\n", name);
    return 64;
  }
  return found->second();
}
}  // namespace muster::testing
