// The main of every test binary. A binary that spawns ranks as processes re-executes itself with
// the same test's name; child_entry() then runs the body of that rank instead of the whole suite.
#include <gmock/gmock.h>

#include <csignal>

#include "tests/support/child_process.h"

#ifdef __SANITIZE_THREAD__
// Debian's oneDNN is not instrumented: the sanitizer does not see how its primitive cache is made,
// and takes the cache's own lock for a race.
extern "C" const char* __tsan_default_suppressions() { return "called_from_lib:libdnnl.so\n"; }
#endif

int main(int argc, char** argv) {
  // Under nohup this is ignored, and every child would inherit that.
  std::signal(SIGHUP, SIG_DFL);
  ::testing::InitGoogleMock(&argc, argv);
  return muster::testing::run_all_tests_or_child();
}
