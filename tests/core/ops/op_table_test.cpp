#include <gtest/gtest.h>

#include "core/ops/op_checks.h"
#include "core/ops/op_registry.h"
#include "core/ops/op_samples.h"
#include "core/ops/ops.h"

namespace muster {
namespace {
using ops::Sample;

TEST(OpTable, EveryOperatorStatesEverythingOrSaysWhyNot) {
  const std::vector<std::string> faults = ops::check_ops(ops::all_ops());
  for (const std::string& fault : faults) ADD_FAILURE() << fault;
  EXPECT_GT(ops::all_ops().all().size(), 200u);
}

TEST(OpTable, ReportsWhatADefinitionLacks) {
  const OpDef bare("nothing(Tensor self) -> Tensor");
  const std::vector<std::string> faults = ops::faults_of(bare.facts());
  EXPECT_EQ(faults.size(), 4u) << "computation, samples, derivative, sharding";
  const OpDef wrong = OpDef("wrong(Tensor self) -> Tensor")
                          .composite([](const OpArgs&, std::span<Tensor>) {})
                          .samples({"f(2), 1"});
  EXPECT_EQ(ops::faults_of(wrong.facts()).size(), 1u) << "the sample has an argument too many";
}

// An in-place form cannot grow self, as broadcasting in some samples would.
bool fits_in_place(const Op& op, const Sample& sample) {
  if (!op.writes_self() || op.facts().composite != nullptr) return true;
  return to_string(Dims(op.infer(sample.args())[0].sizes)) ==
         to_string(sample.args()[0].tensor().sizes());
}

bool same_values(const Tensor& a, const Tensor& b) {
  const Tensor x = to(a, DType::kF64), y = to(b, DType::kF64);
  return equal(nan_to_num(x, 12345.0), nan_to_num(y, 12345.0));
}

std::vector<Tensor> run(const Op& op, Args args) {
  std::vector<Tensor> outs(op.num_outputs(args));
  op.call(args, outs);
  return outs;
}

// Metadata must be known without running, and be what running gives.
TEST(OpTable, InferredMetadataIsThatOfTheResult) {
  for (const auto& op : ops::all_ops().all()) {
    if (op->facts().composite != nullptr || op->writes_self()) continue;
    for (const std::string& text : op->facts().samples) {
      const Sample sample = Sample::parse(text, op->schema());
      const std::vector<TensorSpec> specs = op->infer(sample.args());
      const std::vector<Tensor> outs = run(*op, sample.args());
      ASSERT_EQ(specs.size(), outs.size()) << op->name();
      for (size_t i = 0; i < outs.size(); ++i) {
        EXPECT_EQ(to_string(Dims(specs[i].sizes)), to_string(outs[i].sizes())) << op->name();
        EXPECT_EQ(to_string(Dims(specs[i].strides)), to_string(outs[i].strides())) << op->name();
        EXPECT_EQ(specs[i].dtype, outs[i].dtype()) << op->name();
      }
    }
  }
}

// What a call reads is never changed, except self of an in-place one.
TEST(OpTable, CallsLeaveTheirInputsAlone) {
  for (const auto& op : ops::all_ops().all()) {
    for (const std::string& text : op->facts().samples) {
      const Sample sample = Sample::parse(text, op->schema());
      const Sample again = Sample::parse(text, op->schema());
      if (!fits_in_place(*op, sample)) continue;
      const std::vector<Tensor> outs = run(*op, sample.args());
      const std::vector<Tensor> before = again.tensors(), after = sample.tensors();
      for (size_t i = op->writes_self() ? 1 : 0; i < before.size(); ++i) {
        EXPECT_TRUE(same_values(before[i], after[i]))
            << op->name() << " " << text << " tensor " << i;
      }
    }
  }
}

TEST(OpTable, InPlaceFormsGiveWhatTheFunctionalOnesGive) {
  for (const auto& op : ops::all_ops().all()) {
    if (!op->writes_self() || op->facts().only_in_place) continue;
    const Op& functional = ops::find_op(op->schema().name);
    for (const std::string& text : op->facts().samples) {
      const Sample sample = Sample::parse(text, op->schema(), DType::kF64);
      if (!fits_in_place(*op, sample)) continue;
      const std::vector<Tensor> wanted = run(functional, sample.args());
      const uint32_t version = sample.tensors()[0].version();
      const std::vector<Tensor> outs = run(*op, sample.args());
      EXPECT_TRUE(outs[0].is_same(sample.tensors()[0])) << op->name();
      EXPECT_TRUE(same_values(outs[0], wanted[0])) << op->name() << " " << text;
      EXPECT_EQ(outs[0].version(), version + 1) << op->name();
    }
  }
}

TEST(OpTable, AnUnknownNameIsRefusedWithTheNearestOne) {
  try {
    static_cast<void>(ops::find_op("sigmiod"));
    FAIL() << "found";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_NE(std::string(error.what()).find("sigmoid"), std::string::npos);
  }
}
}  // namespace
}  // namespace muster
