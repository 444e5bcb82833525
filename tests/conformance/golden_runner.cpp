#include "tests/conformance/golden_runner.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/ops/op_registry.h"
#include "tests/conformance/golden_call.h"
#include "tests/support/golden_close.h"

namespace muster::testing {
namespace {
using Json = nlohmann::json;
using Kind = GoldenOutcome::Kind;

// What is wrong with a case; the first difference ends it.
struct Difference {
  std::string text;
};

template <typename... Parts>
[[noreturn]] void differ(fmt::format_string<Parts...> format, Parts&&... parts) {
  throw Difference{fmt::format(format, std::forward<Parts>(parts)...)};
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool is_all_zero(const Tensor& tensor) {
  const Tensor zeros = empty_from_spec(TensorSpec::contiguous(tensor.sizes(), tensor.dtype()));
  std::fill_n(static_cast<std::byte*>(zeros.data_ptr()), zeros.numel() * item_nbytes(zeros.dtype()),
              std::byte{0});
  return static_cast<bool>(is_close(tensor, zeros, {}));
}

// True when a message holds a word that PyTorch's has, or muster's word for it.
bool names(const std::string& message, const std::string& word) {
  const std::string text = lower(message);
  if (text.find(lower(word)) != std::string::npos) return true;
  if (word == "dimension") return text.find("dim") != std::string::npos;
  return word == "zero" && text.find(" 0") != std::string::npos;
}

class CaseRun {
 public:
  CaseRun(const GoldenFile& file, const Json& entry)
      : file_(file), entry_(entry), call_(GoldenCall::read(file, entry)) {
    to_muster(call_);
    op_ = ops::all_ops().find_or_null(call_.op);
  }

  GoldenOutcome run() {
    if (op_ == nullptr) return {Kind::kNoOperator, call_.op};
    try {
      if (entry_.contains("error")) {
        expect_refusal();
      } else {
        expect_results();
      }
    } catch (const Difference& difference) {
      return {Kind::kDiffers, difference.text};
    } catch (const std::exception& error) {
      return {Kind::kDiffers, error.what()};
    }
    return {};
  }

 private:
  void expect_refusal() {
    for (const Json& path : entry_.value("requires_grad", Json::array())) {
      requires_grad_(call_.tensors.at(path.get<std::string>()));
    }
    const BoundArguments bound(op_->schema(), call_);
    try {
      call_op(*op_, bound.values());
    } catch (const Error& error) {
      if (error_class(error.code()) != ErrorClass::kUser) {
        differ("refused with the wrong class: {}", error.what());
      }
      for (const Json& name : entry_["error"]["names"]) {
        const auto wanted = name.get<std::string>();
        if (!names(error.what(), wanted)) {
          differ("the refusal does not name \"{}\": {}", wanted, error.what());
        }
      }
      return;
    }
    differ("not refused: {}", entry_["error"].value("fact", ""));
  }

  void expect_results() {
    const bool has_grads = entry_.contains("grads") && !entry_["grads"].is_null();
    if (has_grads) make_leaves();
    const BoundArguments bound(op_->schema(), call_);
    outs_ = call_op(*op_, bound.values());
    compare_outs();
    compare_shape_rule(bound.values());
    if (has_grads) compare_grads();
  }

  void make_leaves() {
    for (const auto& [path, unused] : entry_["grads"].items()) {
      static_cast<void>(unused);
      leaves_[path] = requires_grad_(call_.tensors.at(path));
    }
    // A leaf may not be written in place; a copy of it may.
    if (op_->writes_self() && leaves_.count("0") > 0) {
      const Op& clone = ops::find_op("clone");
      call_.tensors["0"] = call_one(clone, leaves_["0"]);
    }
  }

  [[nodiscard]] bool has_one_result() const { return is_tensor_reference(entry_["out"]); }

  static void flatten(const Json& value, std::vector<Json>& into) {
    if (!value.is_array()) return into.push_back(value);
    for (const Json& part : value) flatten(part, into);
  }

  void compare_outs() {
    std::vector<Json> wanted;
    flatten(entry_["out"], wanted);
    if (wanted.size() != outs_.size()) {
      differ("{} results, expected {}", outs_.size(), wanted.size());
    }
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!is_tensor_reference(wanted[i])) differ("result {} is no tensor in the golden", i);
      const Tensor expected = file_.tensor(wanted[i]);
      const auto same = is_close(outs_[i], expected, out_tolerance(entry_, expected.dtype()));
      if (!same) differ("result {}: {}", i, same.message());
      compare_strides(i, expected.sizes());
    }
  }

  void compare_strides(size_t i, Dims sizes) const {
    DimVector wanted = contiguous_strides(sizes);
    if (const auto strides = entry_.find("out_strides"); strides != entry_.end()) {
      wanted = DimVector(golden_ints(has_one_result() ? *strides : (*strides)[i]));
    } else if (entry_["ns"] == "linalg") {
      return;  // layouts of factorisations are not recorded
    }
    if (to_string(outs_[i].strides()) != to_string(wanted)) {
      differ("result {}: strides {}, expected {}", i, to_string(outs_[i].strides()),
             to_string(wanted));
    }
  }

  void compare_shape_rule(Args values) const {
    const OpDef::Facts& facts = op_->facts();
    if (facts.composite != nullptr || op_->writes_self()) return;
    const std::vector<TensorSpec> specs = op_->infer(values);
    for (size_t i = 0; i < specs.size(); ++i) {
      const TensorSpec real = TensorSpec::of(outs_[i]);
      if (specs[i].describe() != real.describe() || !(specs[i].strides == real.strides)) {
        differ("result {}: the shape rule says {} strides {}, the call made {} strides {}", i,
               specs[i], to_string(specs[i].strides), real, to_string(real.strides));
      }
    }
  }

  // Results that have a gradient, with what is fed into each.
  void read_grad_outs(bool wants_second) {
    std::vector<Json> fed;
    if (has_one_result()) {
      fed.push_back(entry_["grad_out"]);
    } else {
      fed = entry_["grad_out"].get<std::vector<Json>>();
    }
    for (size_t i = 0; i < fed.size(); ++i) {
      if (fed[i].is_null()) continue;
      Tensor grad_out = file_.tensor(fed[i]);
      if (wants_second) {
        requires_grad_(grad_out);
        const std::string path = has_one_result() ? "grad_out" : "grad_out." + std::to_string(i);
        second_leaves_[path] = grad_out;
      }
      if (!outs_.at(i).requires_grad()) differ("result {} has no history", i);
      roots_.push_back(outs_[i]);
      grad_outs_.push_back(grad_out);
    }
  }

  void compare_grads() {
    const bool wants_second = entry_.contains("grads2") && !entry_["grads2"].is_null();
    read_grad_outs(wants_second);
    std::vector<Tensor> inputs;
    for (const auto& [path, leaf] : leaves_) inputs.push_back(leaf);
    const std::vector<Tensor> grads =
        grad(roots_, inputs, grad_outs_, {.create_graph = wants_second, .allow_unused = true});
    size_t i = 0;
    std::map<std::string, Tensor> by_path;
    for (const auto& [path, leaf] : leaves_) {
      compare_grad("gradient", path, grads[i], entry_["grads"][path]);
      by_path[path] = grads[i++];
    }
    if (wants_second) compare_second_grads(by_path);
  }

  void compare_second_grads(const std::map<std::string, Tensor>& grads) {
    std::vector<Tensor> outputs, fed, inputs;
    for (const auto& [path, v] : entry_["v"].items()) {
      const Tensor& output = grads.at(path);
      if (!output.defined() || !output.requires_grad()) continue;
      outputs.push_back(output);
      fed.push_back(file_.tensor(v));
    }
    std::map<std::string, Tensor> all = leaves_;
    all.insert(second_leaves_.begin(), second_leaves_.end());
    for (const auto& [path, leaf] : all) inputs.push_back(leaf);
    std::vector<Tensor> second(inputs.size());
    if (!outputs.empty()) second = grad(outputs, inputs, fed, {.allow_unused = true});
    size_t i = 0;
    for (const auto& [path, leaf] : all) {
      const Tensor& got = second[i++];
      if (entry_["grads2"].contains(path)) {
        compare_grad("second gradient", path, got, entry_["grads2"][path]);
      }
    }
  }

  // A null means independence, which zeros say too, and the other way round.
  void compare_grad(const char* what, const std::string& path, const Tensor& got,
                    const Json& wanted) const {
    if (wanted.is_null()) {
      if (got.defined() && !is_all_zero(got)) differ("{} of {}: expected none", what, path);
      return;
    }
    const Tensor expected = file_.tensor(wanted);
    if (!got.defined() && is_all_zero(expected)) return;
    const auto same = is_close(got, expected, grad_tolerance(entry_, expected.dtype(), path));
    if (!same) differ("{} of {}: {}", what, path, same.message());
  }

  const GoldenFile& file_;
  const Json& entry_;
  GoldenCall call_;
  const Op* op_ = nullptr;
  std::vector<Tensor> outs_;
  std::map<std::string, Tensor> leaves_;
  std::map<std::string, Tensor> second_leaves_;
  std::vector<Tensor> roots_;
  std::vector<Tensor> grad_outs_;
};
}  // namespace

GoldenOutcome run_golden_case(const GoldenFile& file, const Json& entry) {
  try {
    return CaseRun(file, entry).run();
  } catch (const std::exception& error) {
    return {Kind::kDiffers, error.what()};
  }
}
}  // namespace muster::testing
