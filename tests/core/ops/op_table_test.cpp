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

// Calls `body` with every sample of every operator; an exception is a failure that names both.
template <typename Body>
void for_each_sample(DType floating, const Body& body) {
  for (const auto& op : ops::all_ops().all()) {
    for (const std::string& text : op->facts().samples) {
      SCOPED_TRACE(op->name() + " " + text);
      try {
        const Sample sample = Sample::parse(text, op->schema(), floating);
        if (fits_in_place(*op, sample)) body(*op, sample, text);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
}

// Metadata must be known without running, and be what running gives.
TEST(OpTable, InferredMetadataIsThatOfTheResult) {
  for_each_sample(DType::kF32, [](const Op& op, const Sample& sample, const std::string&) {
    if (op.facts().composite != nullptr || op.writes_self()) return;
    const std::vector<TensorSpec> specs = op.infer(sample.args());
    const std::vector<Tensor> outs = run(op, sample.args());
    ASSERT_EQ(specs.size(), outs.size());
    for (size_t i = 0; i < outs.size(); ++i) {
      EXPECT_EQ(to_string(Dims(specs[i].sizes)), to_string(outs[i].sizes()));
      EXPECT_EQ(to_string(Dims(specs[i].strides)), to_string(outs[i].strides()));
      EXPECT_EQ(specs[i].dtype, outs[i].dtype());
    }
  });
}

// What a call reads is never changed, except what its schema says it writes.
TEST(OpTable, CallsLeaveTheirInputsAlone) {
  for_each_sample(DType::kF32, [](const Op& op, const Sample& sample, const std::string& text) {
    const Sample again = Sample::parse(text, op.schema());
    run(op, sample.args());
    for (size_t k = 0; k < sample.args().size(); ++k) {
      const Value &before = again.args()[k], &after = sample.args()[k];
      const bool written = (op.writes_self() && k == 0) || op.schema().arguments[k].is_write;
      if (written || !before.is_tensor()) continue;
      EXPECT_TRUE(same_values(before.tensor(), after.tensor())) << "argument " << k;
    }
  });
}

TEST(OpTable, InPlaceFormsGiveWhatTheFunctionalOnesGive) {
  for_each_sample(DType::kF64, [](const Op& op, const Sample& sample, const std::string&) {
    if (!op.writes_self() || op.facts().only_in_place) return;
    const std::vector<Tensor> wanted = run(ops::find_op(op.schema().name), sample.args());
    const Tensor& self = sample.args()[0].tensor();
    const uint32_t version = self.version();
    const std::vector<Tensor> outs = run(op, sample.args());
    EXPECT_TRUE(outs[0].is_same(self));
    EXPECT_TRUE(same_values(outs[0], wanted[0]));
    EXPECT_EQ(self.version(), version + 1);
  });
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
