#include "core/base/result.h"

#include <gmock/gmock.h>

#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::HasSubstr;

Result<int> half(int n) {
  if (n % 2 != 0) return make_error(ErrorCode::kInvalidArgument, "half: n must be even; got {}", n);
  return n / 2;
}

Result<int> quarter(int n) {
  const int once = MUSTER_TRY(half(n), "while halving once");
  return half(once);
}

TEST(Result, TryPassesTheValueOn) {
  ASSERT_OK(quarter(8));
  EXPECT_EQ(quarter(8).value(), 2);
}

TEST(Result, TryReturnsTheErrorWithContext) {
  EXPECT_THAT(quarter(3), testing::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("got 3")));
  EXPECT_THAT(quarter(3),
              testing::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("while halving once")));
  EXPECT_THAT(quarter(6), testing::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("got 3")));
}

TEST(Result, ValueThrowsTheError) {
  EXPECT_ERROR(static_cast<void>(half(1).value()), ErrorCode::kInvalidArgument, HasSubstr("half"));
}

TEST(Error, ExitStatusFollowsTheClass) {
  EXPECT_EQ(exit_status(ErrorCode::kInvalidArgument), 64);
  EXPECT_EQ(exit_status(ErrorCode::kBadRecipe), 78);
  EXPECT_EQ(exit_status(ErrorCode::kPeerLost), 75);
  EXPECT_EQ(exit_status(ErrorCode::kCorruption), 66);
  EXPECT_EQ(exit_status(ErrorCode::kOutOfMemory), 71);
  EXPECT_EQ(exit_status(ErrorCode::kIo), 74);
  EXPECT_EQ(exit_status(ErrorCode::kMismatch), 70);
  EXPECT_EQ(class_of_exit_status(75), ErrorClass::kPeer);
  EXPECT_EQ(class_of_exit_status(1), ErrorClass::kNone);
}

TEST(Error, WhatShowsCodeOnTheFirstLineAndContextBelow) {
  Error error(ErrorCode::kMismatch, "all_reduce: ranks diverged\n  rank 0: f32[4]");
  error.add_context("in step 3");
  EXPECT_STREQ(error.what(),
               "all_reduce: ranks diverged [Mismatch]\n  rank 0: f32[4]\n  in step 3");
}
}  // namespace
}  // namespace muster
