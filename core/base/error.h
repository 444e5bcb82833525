#pragma once
/// The one error table of the project, and the exception that carries an entry of it.
///
/// Every code belongs to a class; the class alone decides what the agent does after a worker exits
/// with it, so no log is ever parsed. Exit statuses follow sysexits(3). Tensor, autograd, nn and
/// train throw `Error`; store, group, checkpoint and launcher return `Result<T>` (result.h).

#include <fmt/core.h>

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

enum class ErrorCode : uint8_t {
  kOk = 0,
  // class user: the caller asked for something impossible. No restart helps.
  kInvalidArgument,
  kOutOfRange,
  kFailedPrecondition,
  kUnimplemented,
  kBadRecipe,
  // class peer: another process of the job is gone or late. A restart of the group helps.
  kPeerLost,
  kTimeout,
  kAborted,
  kRendezvous,
  // class data: stored bytes are not what was written.
  kCorruption,
  kNotFound,
  // class resource: the machine ran out of something.
  kOutOfMemory,
  kIo,
  // class bug: ranks diverged, or muster itself is wrong.
  kMismatch,
  kInternal,
};

enum class ErrorClass : uint8_t { kNone, kUser, kPeer, kData, kResource, kBug };

/// The class of a code; it decides what the agent does (docs/failure_model.md).
ErrorClass error_class(ErrorCode code) noexcept;

/// The process exit status of a code: 64, 65, 78 user; 75 peer; 66 data; 71, 74 resource; 70 bug.
int exit_status(ErrorCode code) noexcept;

/// The class that an exit status of a worker stands for; kNone for 0 and for statuses outside the
/// table.
ErrorClass class_of_exit_status(int status) noexcept;

/// "InvalidArgument", "PeerLost", ...
std::string_view to_string(ErrorCode code) noexcept;

/// "user", "peer", ...
std::string_view to_string(ErrorClass error_class) noexcept;

/// A code, a message and the context it passed through, innermost first.
///
/// The message reads `<operation>: <what must hold>; got <values>`. what() is the message, one line
/// per context, and the code in brackets at the end of the first line.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message);

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  [[nodiscard]] const std::string& message() const noexcept { return message_; }
  [[nodiscard]] const std::vector<std::string>& context() const noexcept { return context_; }
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }

  /// Adds one line of context, outermost last, and returns itself.
  Error& add_context(std::string line);

 private:
  void render();

  ErrorCode code_;
  std::string message_;
  std::vector<std::string> context_;
  std::string text_;
};

/// Formats and throws an Error.
template <typename... Args>
[[noreturn]] void throw_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

namespace internal {
[[noreturn]] void assert_failed(const char* condition, const char* file, int line,
                                const std::string& message);
}  // namespace internal

/// The text of an errno value, thread-safe.
std::string errno_text(int error_number);

}  // namespace muster

/// The caller is wrong: MUSTER_CHECK(condition, code, format, args...). Stays on in release builds.
#define MUSTER_CHECK(condition, code, ...)        \
  do {                                            \
    if (!(condition)) [[unlikely]] {              \
      ::muster::throw_error((code), __VA_ARGS__); \
    }                                             \
  } while (false)

/// We are wrong: MUSTER_ASSERT(condition, format, args...). Throws kInternal. Stays on in release
/// builds.
#define MUSTER_ASSERT(condition, ...)                                   \
  do {                                                                  \
    if (!(condition)) [[unlikely]] {                                    \
      ::muster::internal::assert_failed(#condition, __FILE__, __LINE__, \
                                        ::fmt::format(__VA_ARGS__));    \
    }                                                                   \
  } while (false)
