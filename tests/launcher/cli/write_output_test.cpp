#include "launcher/cli/write_output.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/file_system.h"
#include "tests/launcher/agent/run_muster.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::HasSubstr;

TEST(WriteOutput, ReplacesAFileAndWritesThroughALink) {
  const TempDirectory folder;
  ASSERT_OK(write_output(folder.file("a"), "long text"));
  ASSERT_OK(write_output(folder.file("a"), "one"));
  EXPECT_EQ(read_text(real_file_system(), folder.file("a")).value(), "one");
  ASSERT_EQ(::symlink(folder.file("a").c_str(), folder.file("link").c_str()), 0);
  ASSERT_OK(write_output(folder.file("link"), "two"));
  struct stat info {};
  ASSERT_EQ(::lstat(folder.file("link").c_str(), &info), 0);
  EXPECT_TRUE(S_ISLNK(info.st_mode));
  EXPECT_EQ(read_text(real_file_system(), folder.file("a")).value(), "two");
}

TEST(WriteOutput, AFolderIsRefusedAndNothingIsLeft) {
  const TempDirectory folder;
  ASSERT_OK(real_file_system().make_directories(folder.file("d")));
  EXPECT_FALSE(write_output(folder.file("d"), "x").ok());
  EXPECT_EQ(real_file_system().list(folder.path()).value(), std::vector<std::string>{"d"});
}

TEST(WriteOutput, WhereItCannotWriteIsToldBeforeTheWork) {
  const TempDirectory folder;
  EXPECT_OK(check_output(folder.file("new")));
  EXPECT_OK(check_output("/dev/null"));
  EXPECT_EQ(real_file_system().list(folder.path()).value(), std::vector<std::string>{});
  EXPECT_THAT(check_output(folder.file("none/new")),
              testing::FailsWith(ErrorCode::kNotFound, HasSubstr("there is no ")));
  EXPECT_THAT(check_output(folder.path()),
              testing::FailsWith(ErrorCode::kIo, HasSubstr("got a folder")));
}

// As in `... > file` on a full disk: exit 0 would tell a script that the file is whole.
TEST(Output, WhatCannotBePrintedFails) {
  for (const std::string command : {"status", "status --json", "recipe keys", "help"}) {
    testing::MusterProcess shell(
        {.args = {"-c", testing::binary_directory() + "/muster " + command + " > /dev/full"},
         .environment = {},
         .directory = "",
         .binary = "/bin/sh"});
    const testing::Outcome outcome = shell.wait();
    EXPECT_EQ(outcome.status, 74) << command << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("No space left on device")) << command;
  }
}
}  // namespace
}  // namespace muster
