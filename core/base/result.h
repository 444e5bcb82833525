#pragma once
/// `Result<T>`: a value or an Error, for the layers in which failure is ordinary.
///
/// Store, group, checkpoint/io and launcher return it; `.value()` throws, which is where the two
/// styles meet. It is not an optional: an empty Result does not exist.

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "core/base/error.h"

namespace muster {

template <typename T>
class [[nodiscard]] Result {
 public:
  using ValueType = T;

  Result(T value) : state_(std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }

  /// The value; throws the Error if there is none.
  T& value() & {
    if (!ok()) throw std::get<1>(state_);
    return std::get<0>(state_);
  }
  const T& value() const& {
    if (!ok()) throw std::get<1>(state_);
    return std::get<0>(state_);
  }
  T&& value() && {
    if (!ok()) throw std::get<1>(state_);
    return std::move(std::get<0>(state_));
  }

  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  T value_or(T fallback) const { return ok() ? std::get<0>(state_) : std::move(fallback); }

  /// The Error; only when !ok().
  [[nodiscard]] const Error& error() const { return std::get<1>(state_); }
  [[nodiscard]] Error& error() { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using ValueType = void;

  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const noexcept { return !error_.has_value(); }
  explicit operator bool() const noexcept { return ok(); }

  /// Throws the Error if there is one.
  void value() const {
    if (error_) throw *error_;
  }
  [[nodiscard]] const Error& error() const { return *error_; }
  [[nodiscard]] Error& error() { return *error_; }

 private:
  std::optional<Error> error_;
};

/// Formats an Error to be returned from a function that returns Result<T>.
template <typename... Args>
[[nodiscard]] Error make_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Error(code, fmt::format(format, std::forward<Args>(args)...));
}

/// Runs `body` and turns a thrown Error into a Result.
template <typename Body>
auto catch_error(Body&& body) -> Result<std::invoke_result_t<Body>> {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Body>>) {
      body();
      return {};
    } else {
      return body();
    }
  } catch (Error& error) {
    return error;
  }
}

}  // namespace muster

/// Evaluates a Result expression: yields its value, or returns its Error from the enclosing
/// function. An optional second argument (a string) is added as context.
#define MUSTER_TRY(expression, ...)                                   \
  ({                                                                  \
    auto muster_try_result = (expression);                            \
    if (!muster_try_result.ok()) [[unlikely]] {                       \
      __VA_OPT__(muster_try_result.error().add_context(__VA_ARGS__);) \
      return std::move(muster_try_result).error();                    \
    }                                                                 \
    ::muster::internal::unwrap(std::move(muster_try_result));         \
  })

namespace muster::internal {
template <typename T>
T unwrap(Result<T>&& result) {
  if constexpr (!std::is_void_v<T>) return std::move(result).value();
}
}  // namespace muster::internal
