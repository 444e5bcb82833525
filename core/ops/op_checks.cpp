#include "core/ops/op_checks.h"

#include <fmt/format.h>

#include "core/ops/op_samples.h"
#include "core/schema/placement.h"

namespace muster::ops {
namespace {
void check_computation(const OpDef::Facts& facts, std::vector<std::string>& faults) {
  const bool infers = facts.infer_one != nullptr || facts.infer_many != nullptr;
  const int ways = (facts.view != nullptr) + (facts.composite != nullptr) + infers;
  if (ways != 1) faults.push_back("exactly one of infer, view and composite must be stated");
  const bool has_kernel = facts.kernels[static_cast<size_t>(DeviceType::kCpu)] != nullptr;
  if (infers && !has_kernel) faults.push_back("no CPU kernel");
  const bool returns_list = facts.schema.returns.size() == 1 && facts.schema.returns[0].is_list;
  if (returns_list != (facts.count != nullptr)) {
    faults.push_back("count must be stated exactly when the schema returns a list");
  }
  if (facts.has_in_place && facts.infer_one == nullptr) {
    faults.push_back("an in-place form needs an infer of one output");
  }
}

void check_derivative(const OpDef::Facts& facts, std::vector<std::string>& faults) {
  const bool differentiable = facts.derivative != nullptr;
  if (differentiable == !facts.no_derivative_because.empty()) {
    faults.push_back("either a derivative or the reason why there is none must be stated");
  }
  for (const SavedValue& saved : facts.saves) {
    if (saved.argument == SavedValue::kNoIndex && saved.result == SavedValue::kNoIndex) {
      faults.push_back(fmt::format("it saves \"{}\", which the schema does not name", saved.name));
    }
  }
}

void check_sharding(const OpDef::Facts& facts, std::vector<std::string>& faults) {
  if (facts.shard_rules.empty() == facts.replicate_only_because.empty()) {
    faults.push_back("either shard rules or the reason why there are none must be stated");
  }
  for (const std::string& text : facts.shard_rules) {
    const Result<ShardRule> rule = parse_shard_rule(text);
    if (!rule.ok()) {
      faults.push_back(fmt::format("shard rule \"{}\": {}", text, rule.error().what()));
    } else if (const Result<void> fits = check_shard_rule(rule.value(), facts.schema); !fits.ok()) {
      faults.push_back(fmt::format("shard rule \"{}\": {}", text, fits.error().what()));
    }
  }
}

void check_samples(const OpDef::Facts& facts, std::vector<std::string>& faults) {
  if (facts.samples.empty()) faults.push_back("no samples");
  for (const std::string& text : facts.samples) {
    try {
      Sample::parse(text, facts.schema);
    } catch (const Error& error) {
      faults.push_back(error.what());
    }
  }
}
}  // namespace

std::vector<std::string> faults_of(const OpDef::Facts& facts) {
  std::vector<std::string> faults;
  check_computation(facts, faults);
  check_samples(facts, faults);
  // A composite is differentiated and sharded through what it calls.
  if (facts.composite == nullptr) {
    check_derivative(facts, faults);
    check_sharding(facts, faults);
  }
  return faults;
}

std::vector<std::string> check_ops(const OpTable& table) {
  std::vector<std::string> all;
  for (const auto& op : table.all()) {
    for (const std::string& fault : faults_of(op->facts())) {
      all.push_back(op->name() + ": " + fault);
    }
  }
  return all;
}
}  // namespace muster::ops
