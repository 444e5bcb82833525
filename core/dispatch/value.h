#pragma once
/// Value: one argument of an operator call, as a tagged union that owns nothing.
///
/// Every call, typed or by name, passes its arguments as an array of these on the stack, so that
/// one convention serves kernels, autograd, tracing and tests, and costs no allocation. A Value is
/// valid during the call; whoever keeps arguments longer copies them into an OwnedValue.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/tensor/generator.h"
#include "core/tensor/scalar.h"
#include "core/tensor/tensor.h"

namespace muster {

enum class ValueTag : uint8_t {
  kNone,
  kTensor,
  kTensorList,
  kInt,
  kDouble,
  kBool,
  kIntList,
  kString,
  kDType,
  kDevice,
  kGenerator,
};

class Value {
 public:
  Value() noexcept = default;
  Value(std::nullopt_t) noexcept {}  // NOLINT(google-explicit-constructor)
  /// An undefined tensor is "none".
  Value(const Tensor& tensor) noexcept {  // NOLINT
    if (tensor.defined()) {
      tag_ = ValueTag::kTensor;
      tensor_ = &tensor;
    }
  }
  Value(std::span<const Tensor> list) noexcept  // NOLINT
      : tag_(ValueTag::kTensorList),
        length_(static_cast<uint32_t>(list.size())),
        tensor_(list.data()) {}
  Value(const std::vector<Tensor>& list) noexcept
      : Value(std::span<const Tensor>(list)) {}                               // NOLINT
  Value(int value) noexcept : Value(static_cast<int64_t>(value)) {}           // NOLINT
  Value(int64_t value) noexcept : tag_(ValueTag::kInt), int_(value) {}        // NOLINT
  Value(double value) noexcept : tag_(ValueTag::kDouble), double_(value) {}   // NOLINT
  Value(bool value) noexcept : tag_(ValueTag::kBool), int_(value ? 1 : 0) {}  // NOLINT
  Value(Scalar value) noexcept {                                              // NOLINT
    if (value.is_floating()) {
      tag_ = ValueTag::kDouble;
      double_ = value.to_double();
    } else {
      tag_ = value.is_bool() ? ValueTag::kBool : ValueTag::kInt;
      int_ = value.to_int();
    }
  }
  Value(Dims list) noexcept  // NOLINT
      : tag_(ValueTag::kIntList), length_(static_cast<uint32_t>(list.size())), ints_(list.data()) {}
  Value(const DimVector& list) noexcept : Value(Dims(list)) {}  // NOLINT
  Value(std::string_view text) noexcept                         // NOLINT
      : tag_(ValueTag::kString), length_(static_cast<uint32_t>(text.size())), text_(text.data()) {}
  Value(const char* text) noexcept : Value(std::string_view(text)) {}  // NOLINT
  Value(DType dtype) noexcept
      : tag_(ValueTag::kDType), int_(static_cast<int64_t>(dtype)) {}  // NOLINT
  Value(Device device) noexcept                                       // NOLINT
      : tag_(ValueTag::kDevice), int_(static_cast<int64_t>(device.type) << 8 | device.index) {}
  Value(Generator* generator) noexcept {  // NOLINT
    if (generator != nullptr) {
      tag_ = ValueTag::kGenerator;
      generator_ = generator;
    }
  }
  template <typename T>
  Value(const std::optional<T>& value) noexcept : Value() {  // NOLINT
    if (value) *this = Value(*value);
  }

  [[nodiscard]] ValueTag tag() const noexcept { return tag_; }
  [[nodiscard]] bool is_none() const noexcept { return tag_ == ValueTag::kNone; }
  [[nodiscard]] bool is_tensor() const noexcept { return tag_ == ValueTag::kTensor; }
  [[nodiscard]] bool is_tensor_list() const noexcept { return tag_ == ValueTag::kTensorList; }
  [[nodiscard]] bool is_number() const noexcept {
    return tag_ == ValueTag::kInt || tag_ == ValueTag::kDouble || tag_ == ValueTag::kBool;
  }

  // Accessors. @error kInvalidArgument naming the type found
  [[nodiscard]] const Tensor& tensor() const {
    expect(ValueTag::kTensor);
    return *tensor_;
  }
  [[nodiscard]] std::span<const Tensor> tensors() const {
    expect(ValueTag::kTensorList);
    return {tensor_, length_};
  }
  [[nodiscard]] int64_t integer() const {
    if (tag_ != ValueTag::kInt && tag_ != ValueTag::kBool) expect(ValueTag::kInt);
    return int_;
  }
  [[nodiscard]] double number() const { return scalar().to_double(); }
  [[nodiscard]] bool boolean() const {
    if (tag_ == ValueTag::kInt) return int_ != 0;
    expect(ValueTag::kBool);
    return int_ != 0;
  }
  [[nodiscard]] Scalar scalar() const;
  [[nodiscard]] Dims ints() const {
    expect(ValueTag::kIntList);
    return Dims(std::span<const int64_t>(ints_, length_));
  }
  [[nodiscard]] std::string_view text() const {
    expect(ValueTag::kString);
    return {text_, length_};
  }
  [[nodiscard]] DType dtype() const {
    expect(ValueTag::kDType);
    return static_cast<DType>(int_);
  }
  [[nodiscard]] Device device() const {
    expect(ValueTag::kDevice);
    return {static_cast<DeviceType>(int_ >> 8), static_cast<int8_t>(int_ & 0xFF)};
  }
  /// The generator passed, or the thread's default one.
  [[nodiscard]] Generator& generator() const {
    if (tag_ == ValueTag::kNone) return default_generator();
    expect(ValueTag::kGenerator);
    return *generator_;
  }

  /// "f32[2, 3]", "0.5", "[1, 2]": for error messages and traces.
  [[nodiscard]] std::string describe() const;

 private:
  void expect(ValueTag wanted) const {
    if (tag_ != wanted) [[unlikely]]
      wrong_tag(wanted);
  }
  [[noreturn]] void wrong_tag(ValueTag wanted) const;

  ValueTag tag_ = ValueTag::kNone;
  uint32_t length_ = 0;
  union {
    const Tensor* tensor_;
    const int64_t* ints_;
    const char* text_;
    Generator* generator_;
    int64_t int_ = 0;
    double double_;
  };
};

using Args = std::span<const Value>;

/// A copy of a non-tensor Value that outlives the call. Tensors are kept elsewhere (saved tensors).
class OwnedValue {
 public:
  OwnedValue() = default;
  explicit OwnedValue(const Value& value);
  /// A Value that points into this object.
  [[nodiscard]] Value view() const;

 private:
  Value plain_;
  std::variant<std::monostate, DimVector, std::string> kept_;
};

}  // namespace muster
