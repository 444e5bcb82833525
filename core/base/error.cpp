#include "core/base/error.h"

#include <system_error>
#include <utility>

namespace muster {
namespace {
struct Row {
  ErrorCode code;
  std::string_view name;
  ErrorClass error_class;
  int exit_status;
};

constexpr Row kTable[] = {
    {ErrorCode::kOk, "Ok", ErrorClass::kNone, 0},
    {ErrorCode::kInvalidArgument, "InvalidArgument", ErrorClass::kUser, 64},
    {ErrorCode::kOutOfRange, "OutOfRange", ErrorClass::kUser, 65},
    {ErrorCode::kFailedPrecondition, "FailedPrecondition", ErrorClass::kUser, 65},
    {ErrorCode::kUnimplemented, "Unimplemented", ErrorClass::kUser, 65},
    {ErrorCode::kBadRecipe, "BadRecipe", ErrorClass::kUser, 78},
    {ErrorCode::kPeerLost, "PeerLost", ErrorClass::kPeer, 75},
    {ErrorCode::kTimeout, "Timeout", ErrorClass::kPeer, 75},
    {ErrorCode::kAborted, "Aborted", ErrorClass::kPeer, 75},
    {ErrorCode::kRendezvous, "Rendezvous", ErrorClass::kPeer, 75},
    {ErrorCode::kCorruption, "Corruption", ErrorClass::kData, 66},
    {ErrorCode::kNotFound, "NotFound", ErrorClass::kData, 66},
    {ErrorCode::kOutOfMemory, "OutOfMemory", ErrorClass::kResource, 71},
    {ErrorCode::kIo, "Io", ErrorClass::kResource, 74},
    {ErrorCode::kMismatch, "Mismatch", ErrorClass::kBug, 70},
    {ErrorCode::kInternal, "Internal", ErrorClass::kBug, 70},
};

const Row& row_of(ErrorCode code) noexcept { return kTable[static_cast<size_t>(code)]; }
}  // namespace

ErrorClass error_class(ErrorCode code) noexcept { return row_of(code).error_class; }
int exit_status(ErrorCode code) noexcept { return row_of(code).exit_status; }
std::string_view to_string(ErrorCode code) noexcept { return row_of(code).name; }

ErrorClass class_of_exit_status(int status) noexcept {
  if (status == 0) return ErrorClass::kNone;
  for (const Row& row : kTable) {
    if (row.exit_status == status) return row.error_class;
  }
  return ErrorClass::kNone;
}

std::string_view to_string(ErrorClass error_class) noexcept {
  switch (error_class) {
    case ErrorClass::kNone:
      return "none";
    case ErrorClass::kUser:
      return "user";
    case ErrorClass::kPeer:
      return "peer";
    case ErrorClass::kData:
      return "data";
    case ErrorClass::kResource:
      return "resource";
    case ErrorClass::kBug:
      return "bug";
  }
  return "none";
}

Error::Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {
  render();
}

Error& Error::add_context(std::string line) {
  context_.push_back(std::move(line));
  render();
  return *this;
}

void Error::render() {
  const size_t first_line = message_.find('\n');
  text_ = message_.substr(0, first_line) + " [" + std::string(to_string(code_)) + "]";
  if (first_line != std::string::npos) text_ += message_.substr(first_line);
  for (const std::string& line : context_) text_ += "\n  " + line;
}

std::string errno_text(int error_number) { return std::generic_category().message(error_number); }

namespace internal {
void assert_failed(const char* condition, const char* file, int line, const std::string& message) {
  throw Error(ErrorCode::kInternal, fmt::format("{}:{}: internal check `{}` does not hold: {}",
                                                file, line, condition, message));
}
}  // namespace internal
}  // namespace muster
