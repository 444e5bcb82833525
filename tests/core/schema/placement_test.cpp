#include "core/schema/placement.h"

#include <gmock/gmock.h>

#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = PlacementPattern::Kind;
using Relation = RuleCondition::Relation;

ShardRule rule_of(std::string_view text) { return parse_shard_rule(text).value(); }

void expect_refused(std::string_view text, size_t column, std::string_view fact) {
  EXPECT_THAT(parse_shard_rule(text),
              testing::FailsWith(ErrorCode::kInvalidArgument,
                                 AllOf(HasSubstr(std::string(fact)),
                                       HasSubstr(fmt::format("at column {};", column)))))
      << text;
}

TEST(Placement, TextAndBack) {
  for (const Placement placement :
       {Placement::replicate(), Placement::shard(0), Placement::shard(-1), Placement::partial(),
        Placement::partial(PartialOp::kMax), Placement::partial(PartialOp::kAvg),
        Placement::strided_shard(1, 2)}) {
    EXPECT_EQ(parse_placement(to_string(placement)).value(), placement);
  }
  EXPECT_EQ(to_string(Placement::partial()), "P");
  EXPECT_EQ(to_string(Placement::strided_shard(0, 4)), "S(0, 4)");
  EXPECT_EQ(parse_placement("P(sum)").value(), Placement::partial());
}

TEST(Placement, ListsHoldOneEntryPerMeshAxis) {
  const auto placements = parse_placements("[S(0), R, P(min)]").value();
  EXPECT_THAT(placements, ElementsAre(Placement::shard(0), Placement::replicate(),
                                      Placement::partial(PartialOp::kMin)));
  EXPECT_EQ(to_string(placements), "[S(0), R, P(min)]");
  EXPECT_TRUE(parse_placements("[]").value().empty());
}

TEST(Placement, AsksItsKind) {
  EXPECT_TRUE(Placement::shard(1).is_shard_of(1));
  EXPECT_FALSE(Placement::shard(1).is_shard_of(0));
  EXPECT_TRUE(Placement::strided_shard(1, 2).is_shard_of(1));
  EXPECT_NE(Placement::strided_shard(1, 2), Placement::shard(1));
  EXPECT_TRUE(Placement{}.is_replicate());
  EXPECT_TRUE(Placement::partial().is_partial());
}

TEST(Placement, RefusesOtherText) {
  EXPECT_THAT(parse_placement("S"),
              testing::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("\"(\" at column 2")));
  EXPECT_THAT(parse_placement("S(b)"),
              testing::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("a dim at column 3")));
  EXPECT_THAT(parse_placement("P(mean)"),
              testing::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("max or min at column 3")));
  EXPECT_THAT(parse_placement("R R"),
              testing::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("the end of the text")));
  EXPECT_THAT(parse_placements("[S(0), S(0, 0)]"),
              testing::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("a split factor")));
}

TEST(ShardRule, ReadsLettersFixedDimsAndPartials) {
  const ShardRule rule = rule_of("S(b), R, *, S(-1) -> S(b+1), P, P(max), S(0)");
  ASSERT_EQ(rule.inputs.size(), 4u);
  EXPECT_EQ(rule.inputs[0].kind, Kind::kShard);
  EXPECT_EQ(rule.inputs[0].dim, (DimPattern{'b', 0, ""}));
  EXPECT_EQ(rule.inputs[1].kind, Kind::kReplicate);
  EXPECT_EQ(rule.inputs[2].kind, Kind::kAny);
  EXPECT_EQ(rule.inputs[3].dim, (DimPattern{0, -1, ""}));
  ASSERT_EQ(rule.outputs.size(), 4u);
  EXPECT_EQ(rule.outputs[0].dim, (DimPattern{'b', 1, ""}));
  EXPECT_EQ(rule.outputs[1].op, PartialOp::kSum);
  EXPECT_EQ(rule.outputs[2].op, PartialOp::kMax);
  EXPECT_EQ(rule.outputs[3].dim, (DimPattern{0, 0, ""}));
}

TEST(ShardRule, ReadsConditions) {
  const ShardRule rule =
      rule_of("S(b) -> S(b/dim) where b < ndim(x) - 1 and b not in dim and b >= 2 and b != -1");
  EXPECT_EQ(rule.outputs[0].dim.dropped, "dim");
  ASSERT_EQ(rule.conditions.size(), 4u);
  EXPECT_EQ(rule.conditions[0], (RuleCondition{'b', Relation::kLess, -1, "x", ""}));
  EXPECT_EQ(rule.conditions[1], (RuleCondition{'b', Relation::kNotIn, 0, "", "dim"}));
  EXPECT_EQ(rule.conditions[2], (RuleCondition{'b', Relation::kGreaterEqual, 2, "", ""}));
  EXPECT_EQ(rule.conditions[3], (RuleCondition{'b', Relation::kNotEqual, -1, "", ""}));
}

TEST(ShardRule, TextOfARuleParsesToTheSame) {
  for (const char* text :
       {"S(b), S(b) -> S(b)", "P, P -> P", "S(1), S(0) -> P", "* -> R",
        "S(b), R -> S(b), S(b) where b < ndim(x) - 1", "S(b) -> S(b-1) where b > dim",
        "S(b) -> S(b/dim) where b not in dim", "S(r) -> P(avg) where r in dim and r <= ndim(x)"}) {
    EXPECT_EQ(to_string(rule_of(text)), text);
    EXPECT_EQ(rule_of(to_string(rule_of(text))), rule_of(text));
  }
}

TEST(ShardRule, ErrorsPointAtTheColumn) {
  expect_refused("", 1, "S(dim), R, P, P(op) or *");
  expect_refused("S(b)", 5, "\"->\"");
  expect_refused("S(b) -> S(c)", 11, "no input has \"c\"");
  expect_refused("S(b) -> *", 9, "S(dim), R, P or P(op)");
  expect_refused("S(bb) -> R", 3, "one letter a .. z");
  expect_refused("S(b) -> P(median)", 11, "sum, avg, product, max or min");
  expect_refused("S(b) -> S(b) where c < 1", 20, "no input has \"c\"");
  expect_refused("S(b) -> S(b) where b", 21, "<, <=, >");
  expect_refused("S(b) -> S(b) where b not 1", 26, "\"in\"");
  expect_refused("S(b) -> S(b) or b < 1", 14, "the end of the text");
  expect_refused("S(b+0) -> R", 5, "a number of dims");
}

TEST(ShardRule, IsCheckedAgainstTheSchema) {
  const Schema schema =
      parse_schema("sum(Tensor x, int[] dim=[], bool keepdim=False) -> Tensor").value();
  EXPECT_OK(check_shard_rule(rule_of("S(b) -> S(b/dim) where b not in dim"), schema));
  EXPECT_THAT(check_shard_rule(rule_of("S(b), R -> S(b)"), schema),
              testing::FailsWith(ErrorCode::kInvalidArgument,
                                 HasSubstr("sum: 1 inputs and 1 outputs, one per tensor")));
  EXPECT_THAT(check_shard_rule(rule_of("S(b) -> S(b), R"), schema),
              testing::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("S(b) -> S(b), R")));
  EXPECT_THAT(check_shard_rule(rule_of("S(b) -> S(b/dims)"), schema),
              testing::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("\"dims\" must be")));
  EXPECT_THAT(check_shard_rule(rule_of("S(b) -> S(b) where b < ndim(y)"), schema),
              testing::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("\"y\" must be")));
}
}  // namespace
}  // namespace muster
