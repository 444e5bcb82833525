#pragma once
/// GoogleTest helpers for Result and Error.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/result.h"

namespace muster::testing {

template <typename T>
::testing::AssertionResult is_ok(const Result<T>& result) {
  if (result.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << result.error().what();
}

/// Matches a failed Result (or an Error) by code and by its message.
MATCHER_P2(FailsWith, code, message_matcher,
           "fails with " + std::string(to_string(code)) + " and a message that " +
               ::testing::DescribeMatcher<std::string>(message_matcher, negation)) {
  if (arg.ok()) {
    *result_listener << "which succeeded";
    return false;
  }
  *result_listener << "whose error is: " << arg.error().what();
  return arg.error().code() == code &&
         ::testing::Matches(message_matcher)(std::string(arg.error().what()));
}

/// Runs `body` and returns what it threw as a failed Result.
template <typename Body>
Result<void> thrown_by(Body&& body) {
  return catch_error([&] { body(); });
}

}  // namespace muster::testing

#define ASSERT_OK(expression) ASSERT_TRUE(::muster::testing::is_ok(expression))
#define EXPECT_OK(expression) EXPECT_TRUE(::muster::testing::is_ok(expression))

/// Expects that a statement throws an Error with this code whose text matches.
#define EXPECT_ERROR(statement, code, matcher)                  \
  EXPECT_THAT(::muster::testing::thrown_by([&] { statement; }), \
              ::muster::testing::FailsWith(code, matcher))
