#include "tests/core/ops/golden_call.h"

#include "core/ops/op_registry.h"

namespace muster::testing {
namespace {
using nlohmann::json;

bool has_dim(const json& c) {
  const json kwargs = c.value("kwargs", json::object());
  return c["args"].size() > 1 || kwargs.contains("dim");
}

// Where PyTorch's name, or its arguments, are not ours: the case in our terms.
void rename_arguments(json& c, const std::string& op) {
  json& args = c["args"];
  json& kwargs = c["kwargs"];
  if (op == "arange") {
    // arange(end), arange(start, end), ..
    if (args.size() == 1) args.insert(args.begin(), 0);
  }
  if (op == "roll" && args.size() == 2 && !kwargs.contains("dims")) args.push_back(json::array());
  const bool is_variance = op == "var" || op == "std" || op == "var_mean" || op == "std_mean";
  // (x, unbiased) and (x, dim, unbiased, keepdim).
  for (size_t i = 1; is_variance && i < args.size() && i < 3; ++i) {
    if (!args[i].is_boolean()) continue;
    kwargs["unbiased"] = args[i];
    if (i + 1 < args.size()) kwargs["keepdim"] = args[i + 1];
    while (args.size() > i) args.erase(args.size() - 1);
  }
  if (is_variance && kwargs.contains("unbiased")) {
    kwargs["correction"] = kwargs["unbiased"].get<bool>() ? 1 : 0;
    kwargs.erase("unbiased");
  }
  if (op == "norm") {
    // "fro" is the 2-norm of all elements.
    for (json* p : {args.size() > 1 ? &args[1] : &kwargs["p"]}) {
      if (*p == "fro") *p = 2;
    }
    if (kwargs.contains("p") && kwargs["p"].is_null()) kwargs.erase("p");
  }
  if (op == "clone" && kwargs.value("memory_format", "") == "preserve_format") {
    kwargs.erase("memory_format");
  }
  // Methods that take sizes or dims one by one.
  const bool spreads = op == "view" || op == "expand" || op == "repeat" || op == "permute";
  if (spreads && args.size() > 1 && args[1].is_number()) {
    json sizes = json::array();
    for (size_t i = 1; i < args.size(); ++i) sizes.push_back(args[i]);
    args = json::array({args[0], sizes});
  }
  if (op == "to" && kwargs.contains("dtype") && args.size() == 1) args.push_back(kwargs["dtype"]);
  if (op == "to") kwargs.erase("dtype");
  if (kwargs.contains("src") && op == "scatter") args.push_back(kwargs["src"]);
  if (kwargs.contains("value") && op == "scatter") {
    args.push_back(kwargs["value"]);
    kwargs.erase("value");
  }
}

std::string our_name(const json& c) {
  const std::string op = c["op"], ns = c["ns"];
  const json& args = c["args"];
  if (op == "max" || op == "min") {
    const bool of_two = args.size() == 2 && is_tensor_reference(args[1]);
    if (of_two) return op == "max" ? "maximum" : "minimum";
    return has_dim(c) ? op + "_dim" : op;
  }
  if (op == "clone" &&
      c.value("kwargs", json::object()).value("memory_format", "") == "contiguous_format") {
    return "clone_contiguous";
  }
  if (op == "split" && args.size() > 1 && args[1].is_array()) return "split_with_sizes";
  if (op == "swapaxes") return "transpose";
  if (op == "rsub") return "sub";
  if (op == "broadcast_to") return "expand";
  if (op == "tile" || op == "ravel") return "";
  return op;
}
}  // namespace

std::string golden_op_name(const json& c) {
  return c["ns"].get<std::string>() + "." + c["op"].get<std::string>();
}

std::optional<GoldenCall> GoldenCall::make(const GoldenFile& file, const json& golden_case) {
  json c = golden_case;
  if (!c.contains("kwargs")) c["kwargs"] = json::object();
  const std::string name = our_name(golden_case);
  if (name.empty()) return std::nullopt;
  GoldenCall call;
  call.op_ = ops::all_ops().find_or_null(name);
  if (call.op_ == nullptr) return std::nullopt;
  rename_arguments(c, name);
  if (name == "clone_contiguous") c["kwargs"].erase("memory_format");
  // Paths are those of PyTorch's call, also where its operands are swapped in ours.
  std::vector<std::string> paths;
  for (size_t i = 0; i < c["args"].size(); ++i) paths.push_back(std::to_string(i));
  if (golden_case["op"] == "rsub" || golden_case["op"] == "embedding") {
    std::swap(c["args"][0], c["args"][1]);
    std::swap(paths[0], paths[1]);
  }
  json kwargs = c["kwargs"];
  if (name == "embedding" && kwargs.value("padding_idx", 0) < 0) {
    // torch.nn.functional counts a negative padding index from the end before the operator sees it.
    kwargs["padding_idx"] =
        file.tensor(c["args"][0]).size(0) + kwargs["padding_idx"].get<int64_t>();
  }
  const std::vector<Argument>& arguments = call.op_->schema().arguments;
  if (c["args"].size() > arguments.size()) return std::nullopt;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Argument& argument = arguments[i];
    if (i < c["args"].size()) {
      if (!call.bind(file, argument, c["args"][i], paths[i])) return std::nullopt;
    } else if (kwargs.contains(argument.name)) {
      if (!call.bind(file, argument, kwargs[argument.name], argument.name)) return std::nullopt;
      kwargs.erase(argument.name);
    } else if (!call.bind_default(argument)) {
      return std::nullopt;
    }
  }
  if (!kwargs.empty()) return std::nullopt;
  return call;
}

bool GoldenCall::bind(const GoldenFile& file, const Argument& argument, const json& value,
                      const std::string& path) {
  if (value.is_null()) {
    values_.emplace_back();
    return true;
  }
  if (is_tensor_reference(value)) {
    if (argument.type != ArgumentType::kTensor || argument.is_list) return false;
    tensors_.push_back(file.tensor(value));
    by_path_[path] = &tensors_.back();
    values_.emplace_back(tensors_.back());
    return true;
  }
  if (argument.type == ArgumentType::kTensor && argument.is_list) {
    lists_.emplace_back();
    std::vector<Tensor>& list = lists_.back();
    list.reserve(value.size());
    for (size_t i = 0; i < value.size(); ++i) {
      list.push_back(value[i].is_null() ? Tensor() : file.tensor(value[i]));
      if (!value[i].is_null()) by_path_[path + "." + std::to_string(i)] = &list.back();
    }
    values_.emplace_back(list);
    return true;
  }
  if (argument.is_list) {
    ints_.emplace_back();
    if (!value.is_array() && !value.is_number_integer()) return false;
    if (value.is_array()) {
      for (const int64_t v : golden_ints(value)) ints_.back().push_back(v);
    } else {
      ints_.back().push_back(value.get<int64_t>());
    }
    values_.emplace_back(ints_.back());
    return true;
  }
  if (value.is_boolean()) {
    values_.emplace_back(value.get<bool>());
  } else if (value.is_number_integer()) {
    values_.emplace_back(value.get<int64_t>());
  } else if (is_golden_number(value)) {
    values_.emplace_back(golden_number(value));
  } else if (value.is_string() && argument.type == ArgumentType::kScalarType) {
    values_.emplace_back(parse_dtype(value.get<std::string>()).value());
  } else if (value.is_string()) {
    texts_.push_back(value.get<std::string>());
    values_.emplace_back(std::string_view(texts_.back()));
  } else {
    return false;
  }
  return true;
}

bool GoldenCall::bind_default(const Argument& argument) {
  if (!argument.default_text) return false;
  const std::string& text = *argument.default_text;
  if (text == "None") {
    values_.emplace_back();
  } else if (text == "True" || text == "False") {
    values_.emplace_back(text == "True");
  } else if (text.front() == '\'' || text.front() == '"') {
    texts_.push_back(text.substr(1, text.size() - 2));
    values_.emplace_back(std::string_view(texts_.back()));
  } else if (text.find_first_of(".e") != std::string::npos) {
    values_.emplace_back(std::stod(text));
  } else {
    values_.emplace_back(static_cast<int64_t>(std::stoll(text)));
  }
  return true;
}

std::vector<std::string> GoldenCall::paths() const {
  std::vector<std::string> paths;
  for (const auto& [path, tensor] : by_path_) paths.push_back(path);
  return paths;
}
}  // namespace muster::testing
