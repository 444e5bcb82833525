#pragma once
/// Re-execution of the test binary as a child that runs one named body.

#include <functional>
#include <string>

namespace muster::testing {

/// Registers a body that a child process can be asked to run: `--child=NAME` is passed by the
/// environment variable MUSTER_TEST_CHILD. Returns a dummy so that it can initialise a static.
bool register_child(const std::string& name, std::function<int()> body);

/// RUN_ALL_TESTS(), or the registered body when MUSTER_TEST_CHILD names one.
int run_all_tests_or_child();

}  // namespace muster::testing
