#include "core/schema/schema.h"

#include <gmock/gmock.h>

#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::AllOf;
using ::testing::HasSubstr;

Schema parsed(std::string_view text) { return parse_schema(text).value(); }

void expect_refused(std::string_view text, size_t column, std::string_view fact) {
  EXPECT_THAT(parse_schema(text),
              testing::FailsWith(ErrorCode::kInvalidArgument,
                                 AllOf(HasSubstr(std::string(fact)),
                                       HasSubstr(fmt::format("at column {};", column)))))
      << text;
}

TEST(Schema, ReadsNamespaceNameAndOverload) {
  const Schema schema = parsed("aten::add.out(Tensor a, *, Tensor(a!) out) -> Tensor(a!)");
  EXPECT_EQ(schema.ns, "aten");
  EXPECT_EQ(schema.name, "add");
  EXPECT_EQ(schema.overload, "out");
  EXPECT_EQ(schema.full_name(), "aten::add.out");
  EXPECT_EQ(parsed("relu(Tensor x) -> Tensor").full_name(), "relu");
  EXPECT_EQ(parsed("add.Scalar(Tensor x, Scalar y) -> Tensor").full_name(), "add.Scalar");
}

TEST(Schema, ReadsEveryType) {
  const Schema schema = parsed(
      "f(Tensor a, Scalar b, int c, float d, bool e, str f, ScalarType g, Device h, "
      "Generator? i) -> ()");
  ASSERT_EQ(schema.arguments.size(), 9u);
  for (size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(schema.arguments[i].type, static_cast<ArgumentType>(i));
    EXPECT_EQ(schema.arguments[i].name, std::string(1, static_cast<char>('a' + i)));
    EXPECT_EQ(schema.arguments[i].is_optional, i == 8);
  }
  EXPECT_TRUE(schema.returns.empty());
}

TEST(Schema, TellsListsFromOptionals) {
  const Schema schema =
      parsed("f(Tensor[] a, Tensor?[] b, int[2] c, int[]? d, Tensor? e, int[1]? f) -> Tensor[]");
  const auto& a = schema.arguments;
  EXPECT_TRUE(a[0].is_list && !a[0].is_optional && !a[0].has_optional_elements);
  EXPECT_TRUE(a[1].is_list && !a[1].is_optional && a[1].has_optional_elements);
  EXPECT_TRUE(a[2].is_list && a[2].list_size == 2);
  EXPECT_TRUE(a[3].is_list && a[3].is_optional && a[3].list_size == 0);
  EXPECT_TRUE(!a[4].is_list && a[4].is_optional);
  EXPECT_TRUE(a[5].is_list && a[5].is_optional && a[5].list_size == 1);
  EXPECT_TRUE(schema.returns[0].is_list);
}

TEST(Schema, ReadsAliasNotes) {
  const Schema view = parsed("split(Tensor(a -> *) self, int size, int dim=0) -> Tensor(a)[]");
  EXPECT_EQ(view.arguments[0].alias, "a");
  EXPECT_EQ(view.arguments[0].alias_after, "*");
  EXPECT_FALSE(view.arguments[0].is_write);
  EXPECT_EQ(view.returns[0].alias, "a");
  EXPECT_FALSE(view.is_mutating());

  const Schema in_place = parsed("add_(Tensor(a!) self, Tensor other) -> Tensor(a!)");
  EXPECT_TRUE(in_place.arguments[0].is_write);
  EXPECT_TRUE(in_place.returns[0].is_write);
  EXPECT_TRUE(in_place.is_mutating());

  const Schema set = parsed("f(Tensor(a! -> a|b) x, Tensor(*) y) -> Tensor(*)");
  EXPECT_EQ(set.arguments[0].alias_after, "a|b");
  EXPECT_EQ(set.arguments[1].alias, "*");
}

TEST(Schema, KeepsDefaultTextsAsWritten) {
  const Schema schema = parsed(
      "f(Tensor x, int[2] stride=1, int[] dims=[], int[2] pad=[0, -1], float eps=1e-05, "
      "float top=-inf, Scalar alpha=1, Scalar beta=0.5, bool keep=False, str mode=\"a, (b)\", "
      "ScalarType? dtype=None, ScalarType acc=f32, Tensor? w=None, int? n=None) -> Tensor");
  std::vector<std::string> texts;
  for (const Argument& argument : schema.arguments) {
    if (argument.default_text) texts.push_back(*argument.default_text);
  }
  EXPECT_THAT(texts, ::testing::ElementsAre("1", "[]", "[0, -1]", "1e-05", "-inf", "1", "0.5",
                                            "False", "\"a, (b)\"", "None", "f32", "None", "None"));
  EXPECT_FALSE(schema.arguments[0].default_text.has_value());
}

TEST(Schema, KeywordOnlyArgumentsFollowTheStar) {
  const Schema schema =
      parsed("f(Tensor x, int dim=-1, *, ScalarType dtype, Tensor(a!) out) -> Tensor(a!)");
  EXPECT_EQ(schema.num_positional(), 2u);
  EXPECT_FALSE(schema.arguments[1].kwarg_only);
  EXPECT_TRUE(schema.arguments[2].kwarg_only);
  EXPECT_TRUE(schema.arguments[3].kwarg_only);
  EXPECT_EQ(parsed("eye(*, int n) -> Tensor").num_positional(), 0u);
}

TEST(Schema, ReadsNamedAndPlainReturns) {
  EXPECT_EQ(parsed("f() -> (Tensor y, Tensor rstd)").returns[1].name, "rstd");
  EXPECT_EQ(parsed("f() -> (Tensor, int)").returns[1].type, ArgumentType::kInt);
  EXPECT_EQ(parsed("f() -> (Tensor y)").returns[0].name, "y");
  EXPECT_EQ(parsed("f() -> bool").returns[0].type, ArgumentType::kBool);
}

TEST(Schema, FindsArgumentsByName) {
  const Schema schema = parsed("f(Tensor x, int dim, *, bool keepdim=False) -> Tensor");
  EXPECT_EQ(schema.index_of("keepdim"), 2u);
  EXPECT_EQ(schema.index_of("x"), 0u);
  EXPECT_FALSE(schema.index_of("out").has_value());
}

TEST(Schema, TextOfAParsedSchemaParsesToTheSame) {
  for (const char* text :
       {"aten::add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)",
        "split(Tensor(a -> *) self, int size, int dim=0) -> Tensor(a)[]",
        "index(Tensor self, Tensor?[] indices) -> Tensor",
        "rms_norm(Tensor x, Tensor? weight=None, float? eps=None) -> (Tensor y, Tensor rstd)",
        "f(*, int[2]? n=[1, 2], str mode='x') -> ()", "f(Tensor(a! -> a|b)[] x) -> (Tensor y)",
        "f() -> (Tensor, Tensor)"}) {
    const Schema schema = parsed(text);
    EXPECT_EQ(to_string(schema), text);
    EXPECT_EQ(parsed(to_string(schema)), schema);
  }
}

TEST(Schema, ErrorsPointAtTheColumn) {
  expect_refused("", 1, "the operator's name");
  expect_refused("f", 2, "\"(\"");
  expect_refused("f(Tensor x", 11, "\")\"");
  expect_refused("f(tensor x) -> Tensor", 3, "a type (Tensor,");
  expect_refused("f(Tensor) -> Tensor", 9, "the argument's name");
  expect_refused("f(Tensor x, Tensor x) -> Tensor", 20, "second \"x\"");
  expect_refused("f(Tensor x, int n=1.5) -> Tensor", 19, "a default of type int");
  expect_refused("f(int n=None) -> Tensor", 9, "a default of type int");
  expect_refused("f(int[2] n=[1, 2, 3]) -> Tensor", 12, "a default of type int[2]");
  expect_refused("f(int n=--1) -> Tensor", 9, "a default of type int");
  expect_refused("f(str mode=mean) -> Tensor", 12, "a default of type str");
  expect_refused("f(int n=1, int m) -> Tensor", 16, "a default for \"m\"");
  expect_refused("f(Tensor x, *) -> Tensor", 14, "an argument after \"*\"");
  expect_refused("f(Tensor x, *, *) -> Tensor", 16, "a type");
  expect_refused("f(int(a) x) -> Tensor", 7, "a Tensor only");
  expect_refused("f(Tensor(a x) -> Tensor", 12, "\")\"");
  expect_refused("f(Tensor x) -> Tensor(a)", 16, "no argument is in \"a\"");
  expect_refused("f(Tensor x)", 12, "\"->\"");
  expect_refused("f(Tensor x) -> Tensor y", 23, "the end of the text");
  expect_refused("f(Tensor x) -> Tensor,", 22, "the end of the text");
  expect_refused("f(int[0] x) -> Tensor", 7, "a list size");
}

TEST(Schema, ErrorsDrawACaretBelowTheText) {
  EXPECT_THAT(parse_schema("f(tensor x) -> Tensor"),
              testing::FailsWith(ErrorCode::kInvalidArgument,
                                 HasSubstr("\n  f(tensor x) -> Tensor\n    ^")));
}
}  // namespace
}  // namespace muster
