// Derivatives of every operator on its own samples, against differences: first and second.
#include <gtest/gtest.h>

#include "core/autograd/autograd.h"
#include "core/autograd/gradcheck.h"
#include "core/ops/op_registry.h"
#include "core/ops/op_samples.h"
#include "core/ops/ops.h"

namespace muster {
namespace {
using ops::Sample;

// The arguments of a sample with its floating tensors exchanged for `inputs`, in order.
class ExchangedCall {
 public:
  ExchangedCall(const Op& op, const Sample& sample) : op_(op), sample_(sample) {
    for (const Value& value : sample.args()) {
      if (value.is_tensor() && is_floating(value.tensor().dtype()))
        inputs_.push_back(value.tensor());
      if (!value.is_tensor_list()) continue;
      for (const Tensor& tensor : value.tensors()) {
        if (tensor.defined() && is_floating(tensor.dtype())) inputs_.push_back(tensor);
      }
    }
  }
  [[nodiscard]] const std::vector<Tensor>& inputs() const { return inputs_; }

  [[nodiscard]] std::vector<Tensor> operator()(std::span<const Tensor> inputs) const {
    std::vector<Value> values;
    std::deque<std::vector<Tensor>> lists;
    size_t next = 0;
    for (const Value& value : sample_.args()) {
      if (value.is_tensor() && is_floating(value.tensor().dtype())) {
        values.emplace_back(inputs[next++]);
      } else if (value.is_tensor_list()) {
        lists.emplace_back(value.tensors().begin(), value.tensors().end());
        for (Tensor& tensor : lists.back()) {
          if (tensor.defined() && is_floating(tensor.dtype())) tensor = inputs[next++];
        }
        values.emplace_back(lists.back());
      } else {
        values.push_back(value);
      }
    }
    std::vector<Tensor> outs(op_.num_outputs(values));
    op_.call(values, outs);
    std::erase_if(outs, [](const Tensor& out) { return !out.requires_grad(); });
    return outs;
  }

 private:
  const Op& op_;
  const Sample& sample_;
  std::vector<Tensor> inputs_;
};

bool has_gradient(const Op& op) {
  const OpDef::Facts& facts = op.facts();
  return !facts.is_random && !op.writes_self() &&
         (facts.derivative != nullptr || facts.composite != nullptr);
}

bool runs_in_f32_only(const Op& op, const std::string& text) {
  const auto runs = [&](DType floating) {
    try {
      const Sample sample = Sample::parse(text, op.schema(), floating);
      std::vector<Tensor> outs(op.num_outputs(sample.args()));
      op.call(sample.args(), outs);
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  return runs(DType::kF32) && !runs(DType::kF64);
}

TEST(Derivative, OfEveryOperatorEqualsDifferences) {
  int checked = 0;
  for (const auto& op : ops::all_ops().all()) {
    if (!has_gradient(*op)) continue;
    for (const std::string& text : op->facts().samples) {
      const Sample sample = Sample::parse(text, op->schema(), DType::kF64);
      const ExchangedCall call(*op, sample);
      if (call.inputs().empty()) continue;
      for (const Tensor& input : call.inputs()) requires_grad_(input);
      try {
        if (call(call.inputs()).empty()) continue;  // nothing floating comes out
        std::string why;
        EXPECT_TRUE(gradcheck(call, call.inputs(), &why))
            << op->name() << " " << text << ": " << why;
        EXPECT_TRUE(gradgradcheck(call, call.inputs(), &why))
            << op->name() << " " << text << " twice: " << why;
        ++checked;
      } catch (const Error& error) {
        // An operator may refuse aloud: f64, or a derivative of some output that nobody has.
        const bool refuses =
            error.code() == ErrorCode::kUnimplemented || runs_in_f32_only(*op, text);
        EXPECT_TRUE(refuses) << op->name() << " " << text << ": " << error.what();
      }
    }
  }
  EXPECT_GT(checked, 200);
}
}  // namespace
}  // namespace muster
