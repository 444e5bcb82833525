#include "core/base/json_lines.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

namespace muster {
namespace {
TEST(JsonLines, HalfALineIsCountedAndTheRestIsRead) {
  std::vector<int64_t> steps;
  const int64_t damaged =
      for_each_line("{\"step\":1}\n\n{\"step\":2}\r\n{\"st", [&](std::string_view line) {
        const auto json = parse_json_object(line);
        if (!json) return false;
        steps.push_back(int_field(*json, "step").value());
        return true;
      });
  EXPECT_EQ(damaged, 1);
  EXPECT_THAT(steps, ::testing::ElementsAre(1, 2));
  EXPECT_EQ(for_each_line("", [](std::string_view) { return false; }), 0);
}

TEST(JsonLines, AFieldOfAnotherTypeIsAbsent) {
  const auto json =
      parse_json_object(R"({"step": 1.5, "text": 3, "rank": 2, "name": "a"})").value();
  EXPECT_EQ(int_field(json, "step"), std::nullopt);
  EXPECT_EQ(int_field(json, "rank"), 2);
  EXPECT_EQ(text_field(json, "text"), "");
  EXPECT_EQ(text_field(json, "name"), "a");
  EXPECT_FALSE(parse_json_object("[1]").has_value());
}

TEST(JsonLines, OnlyWholeNamesOfCheckpointsHaveAStep) {
  EXPECT_EQ(step_of_checkpoint_name("step-00000020"), 20);
  EXPECT_EQ(step_of_checkpoint_name("step-20.tmp"), std::nullopt);
  EXPECT_EQ(step_of_checkpoint_name("step-"), std::nullopt);
  EXPECT_EQ(step_of_checkpoint_name("20"), std::nullopt);
}
}  // namespace
}  // namespace muster
