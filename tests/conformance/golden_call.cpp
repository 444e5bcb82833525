#include "tests/conformance/golden_call.h"

#include "core/base/text.h"

namespace muster::testing {
namespace {
using Json = nlohmann::json;

// Replaces tensor references by their paths.
Json take_tensors(const GoldenFile& file, const Json& value, const std::string& path,
                  std::map<std::string, Tensor>& tensors) {
  if (is_tensor_reference(value)) {
    tensors.emplace(path, file.tensor(value));
    return Json{{"path", path}};
  }
  const std::string prefix = path.empty() ? "" : path + ".";
  if (value.is_array()) {
    Json list = Json::array();
    for (size_t i = 0; i < value.size(); ++i) {
      list.push_back(take_tensors(file, value[i], prefix + std::to_string(i), tensors));
    }
    return list;
  }
  if (value.is_object()) {
    Json object = Json::object();
    for (const auto& [key, entry] : value.items()) {
      object[key] = take_tensors(file, entry, prefix + key, tensors);
    }
    return object;
  }
  return value;
}

Value number_value(const Json& given) {
  if (given.is_boolean()) return given.get<bool>();
  if (given.is_number_integer()) return given.get<int64_t>();
  MUSTER_CHECK(is_golden_number(given), ErrorCode::kInvalidArgument,
               "golden call: a number; got {}", given.dump());
  return golden_number(given);
}

// A schema's default as the JSON that a case would hold.
Json default_json(const Argument& argument) {
  const std::string& text = *argument.default_text;
  if (text == "None") return nullptr;
  if (text == "True" || text == "False") return text == "True";
  if (text.front() == '"' || text.front() == '\'') return text.substr(1, text.size() - 2);
  if (text == "inf" || text == "-inf" || text == "nan") return text;
  if (argument.type == ArgumentType::kScalarType) return text;
  if (argument.type == ArgumentType::kFloat) return std::stod(text);
  return Json::parse(text);
}
}  // namespace

GoldenCall GoldenCall::read(const GoldenFile& file, const Json& entry) {
  GoldenCall call;
  call.op = entry["ns"].get<std::string>() + "." + entry["op"].get<std::string>();
  call.args = take_tensors(file, entry["args"], "", call.tensors);
  if (entry.contains("kwargs")) {
    call.kwargs = take_tensors(file, entry["kwargs"], "", call.tensors);
  }
  return call;
}

const Json* GoldenCall::find(size_t position, const std::string& name) const {
  if (position < args.size()) return &args[position];
  const auto found = kwargs.find(name);
  return found == kwargs.end() ? nullptr : &*found;
}

BoundArguments::BoundArguments(const Schema& schema, const GoldenCall& call) {
  MUSTER_CHECK(call.args.size() <= schema.arguments.size(), ErrorCode::kInvalidArgument,
               "golden call of {}: {} arguments for {}", call.op, call.args.size(),
               to_string(schema));
  for (const auto& [name, value] : call.kwargs.items()) {
    const auto index = schema.index_of(name);
    MUSTER_CHECK(index.has_value() && *index >= call.args.size(), ErrorCode::kInvalidArgument,
                 "golden call of {}: keyword \"{}\" for {}", call.op, name, to_string(schema));
  }
  for (size_t i = 0; i < schema.arguments.size(); ++i) {
    const Argument& argument = schema.arguments[i];
    const Json* const given = call.find(i, argument.name);
    if (given != nullptr) {
      values_.push_back(value_of(*given, argument, call));
      continue;
    }
    MUSTER_CHECK(argument.default_text.has_value() || argument.is_optional,
                 ErrorCode::kInvalidArgument, "golden call of {}: no \"{}\" for {}", call.op,
                 argument.name, to_string(schema));
    values_.push_back(default_of(argument, call));
  }
}

Value BoundArguments::default_of(const Argument& argument, const GoldenCall& call) {
  if (!argument.default_text) return Value();
  return value_of(default_json(argument), argument, call);
}

Value BoundArguments::value_of(const Json& given, const Argument& argument,
                               const GoldenCall& call) {
  if (given.is_null()) return Value();
  if (argument.is_list) return list_of(given, argument, call);
  if (given.is_object() && given.contains("path")) {
    tensors_.push_back(call.tensors.at(given["path"].get<std::string>()));
    return tensors_.back();
  }
  if (argument.type == ArgumentType::kScalarType) {
    return parse_dtype(given.get<std::string>()).value();
  }
  if (argument.type == ArgumentType::kStr) {
    texts_.push_back(given.get<std::string>());
    return std::string_view(texts_.back());
  }
  if (argument.type == ArgumentType::kFloat && is_golden_number(given)) return golden_number(given);
  return number_value(given);
}

Value BoundArguments::list_of(const Json& given, const Argument& argument, const GoldenCall& call) {
  const Json list = given.is_array() ? given : Json::array({given});
  if (argument.type == ArgumentType::kTensor) {
    std::vector<Tensor> tensors;
    for (const Json& entry : list) {
      tensors.push_back(entry.is_null() ? Tensor()
                                        : call.tensors.at(entry["path"].get<std::string>()));
    }
    tensor_lists_.push_back(std::move(tensors));
    return tensor_lists_.back();
  }
  for (const Json& entry : list) {
    MUSTER_CHECK(entry.is_number_integer(), ErrorCode::kInvalidArgument,
                 "golden call of {}: a list of integers for \"{}\"; got {}", call.op, argument.name,
                 given.dump());
  }
  int_lists_.emplace_back(list.get<std::vector<int64_t>>());
  return int_lists_.back();
}

std::vector<Tensor> call_op(const Op& op, Args values) {
  std::vector<Tensor> outs(op.num_outputs(values));
  op.call(values, outs);
  return outs;
}
}  // namespace muster::testing
