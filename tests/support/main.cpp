// The main of every test binary. A binary that spawns ranks as processes re-executes itself with
// the same test's name; child_entry() then runs the body of that rank instead of the whole suite.
#include <gmock/gmock.h>

#include "tests/support/child_process.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  return muster::testing::run_all_tests_or_child();
}
