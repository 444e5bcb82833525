#include "core/dispatch/value.h"

#include <fmt/format.h>

namespace muster {
namespace {
std::string_view tag_name(ValueTag tag) {
  switch (tag) {
    case ValueTag::kNone:
      return "none";
    case ValueTag::kTensor:
      return "a tensor";
    case ValueTag::kTensorList:
      return "a list of tensors";
    case ValueTag::kInt:
      return "an integer";
    case ValueTag::kDouble:
      return "a number";
    case ValueTag::kBool:
      return "a bool";
    case ValueTag::kIntList:
      return "a list of integers";
    case ValueTag::kString:
      return "a string";
    case ValueTag::kDType:
      return "a dtype";
    case ValueTag::kDevice:
      return "a device";
    case ValueTag::kGenerator:
      return "a generator";
  }
  return "none";
}
}  // namespace

Scalar Value::scalar() const {
  if (tag_ == ValueTag::kDouble) return Scalar(double_);
  if (tag_ == ValueTag::kBool) return Scalar(int_ != 0);
  expect(ValueTag::kInt);
  return Scalar(int_);
}

void Value::wrong_tag(ValueTag wanted) const {
  throw_error(ErrorCode::kInvalidArgument, "argument: it must be {}; got {} ({})", tag_name(wanted),
              tag_name(tag_), describe());
}

std::string Value::describe() const {
  switch (tag_) {
    case ValueTag::kNone:
      return "none";
    case ValueTag::kTensor:
      return tensor_->describe();
    case ValueTag::kTensorList: {
      std::string text = "(";
      for (uint32_t i = 0; i < length_; ++i) text += (i > 0 ? ", " : "") + tensor_[i].describe();
      return text + ")";
    }
    case ValueTag::kInt:
      return fmt::format("{}", int_);
    case ValueTag::kDouble:
      return fmt::format("{}", double_);
    case ValueTag::kBool:
      return int_ != 0 ? "true" : "false";
    case ValueTag::kIntList:
      return to_string(ints());
    case ValueTag::kString:
      return fmt::format("\"{}\"", text());
    case ValueTag::kDType:
      return std::string(to_string(dtype()));
    case ValueTag::kDevice:
      return to_string(device());
    case ValueTag::kGenerator:
      return "generator";
  }
  return "none";
}

OwnedValue::OwnedValue(const Value& value) {
  if (value.tag() == ValueTag::kIntList) {
    kept_ = DimVector(value.ints());
  } else if (value.tag() == ValueTag::kString) {
    kept_ = std::string(value.text());
  } else if (!value.is_tensor() && !value.is_tensor_list()) {
    plain_ = value;
  }
}

Value OwnedValue::view() const {
  if (const auto* ints = std::get_if<DimVector>(&kept_)) return Value(Dims(*ints));
  if (const auto* text = std::get_if<std::string>(&kept_)) return Value(std::string_view(*text));
  return plain_;
}
}  // namespace muster
