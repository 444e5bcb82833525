// Every operator against PyTorch: one test per golden file and function, such as
// GoldenOps.unary_torch_exp.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/text.h"
#include "core/ops/op_registry.h"
#include "tests/conformance/golden_call.h"
#include "tests/conformance/golden_runner.h"
#include "tests/conformance/known_gaps.h"

namespace muster::testing {
namespace {
using Json = nlohmann::json;
using Kind = GoldenOutcome::Kind;

constexpr const char* kFiles[] = {"unary", "activation", "binary", "reduce", "linalg",
                                  "index", "shape",      "create", "norm"};
constexpr int kMaxShown = 4;

class GoldenOpsTest : public ::testing::Test {
 public:
  GoldenOpsTest(const GoldenFile& file, std::string function)
      : file_(file), function_(std::move(function)) {}

  void TestBody() override {
    int num_run = 0, num_shown = 0, num_wrong = 0;
    std::set<std::string> missing;
    for (const Json& entry : file_.cases()) {
      if (function_of(entry) != function_) continue;
      const GoldenOutcome outcome = run_golden_case(file_, entry);
      if (outcome.kind == Kind::kNoOperator) {
        missing.insert(outcome.text);
        continue;
      }
      ++num_run;
      const std::string id = file_.name().substr(4) + "/" + entry["id"].get<std::string>();
      const bool is_known = known_gaps().count(id) > 0;
      if (is_known == (outcome.kind == Kind::kDiffers)) continue;
      ++num_wrong;
      if (num_shown++ < kMaxShown) {
        ADD_FAILURE() << id << ": "
                      << (is_known ? "agrees now: take it out of known_gaps.txt" : outcome.text);
      }
    }
    if (num_wrong > kMaxShown) ADD_FAILURE() << num_wrong - kMaxShown << " more cases differ";
    if (num_run == 0) {
      GTEST_SKIP() << "muster has no operator "
                   << join(std::vector<std::string>(missing.begin(), missing.end()));
    }
  }

  static std::string function_of(const Json& entry) {
    return entry["ns"].get<std::string>() + "_" + entry["op"].get<std::string>();
  }

 private:
  const GoldenFile& file_;
  std::string function_;
};

bool register_all() {
  for (const char* name : kFiles) {
    const GoldenFile& file = GoldenFile::load(std::string("ops/") + name);
    std::set<std::string> functions;
    for (const Json& entry : file.cases()) functions.insert(GoldenOpsTest::function_of(entry));
    for (const std::string& function : functions) {
      ::testing::RegisterTest("GoldenOps", fmt::format("{}_{}", name, function).c_str(), nullptr,
                              nullptr, __FILE__, __LINE__, [&file, function]() -> GoldenOpsTest* {
                                return new GoldenOpsTest(file, function);
                              });
    }
  }
  return true;
}
const bool kRegistered = register_all();

// A function that muster loses would only be skipped above.
TEST(GoldenCoverage, CountsTheFunctionsThatHaveAnOperator) {
  std::set<std::string> offered, all;
  for (const char* name : kFiles) {
    const GoldenFile& file = GoldenFile::load(std::string("ops/") + name);
    for (const Json& entry : file.cases()) {
      GoldenCall call = GoldenCall::read(file, entry);
      const std::string function = GoldenOpsTest::function_of(entry);
      all.insert(function);
      to_muster(call);
      if (ops::all_ops().find_or_null(call.op) != nullptr) offered.insert(function);
    }
  }
  EXPECT_GE(offered.size(), 235u) << "of " << all.size();
}
}  // namespace
}  // namespace muster::testing
