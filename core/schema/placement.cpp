#include "core/schema/placement.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>

#include "core/schema/text_cursor.h"

namespace muster {
namespace {
constexpr std::array<std::string_view, 5> kPartialOpNames = {"sum", "avg", "product", "max", "min"};
constexpr std::array<std::string_view, 8> kRelations = {
    "<", "<=", ">", ">=", "==", "!=", "in", "not in"};

std::string partial_text(PartialOp op) {
  return op == PartialOp::kSum ? "P" : fmt::format("P({})", to_string(op));
}

Result<PartialOp> parse_partial_op(TextCursor& cursor) {
  const size_t at = cursor.skip_blanks();
  const std::string_view name = MUSTER_TRY(cursor.identifier("a reduction"));
  for (size_t i = 0; i < kPartialOpNames.size(); ++i) {
    if (name == kPartialOpNames[i]) return static_cast<PartialOp>(i);
  }
  return cursor.error_at(at, "sum, avg, product, max or min");
}

// After "P": nothing for a sum, or "(op)".
Result<PartialOp> parse_partial_rest(TextCursor& cursor) {
  if (!cursor.accept("(")) return PartialOp::kSum;
  const PartialOp op = MUSTER_TRY(parse_partial_op(cursor));
  MUSTER_TRY(cursor.expect(")"));
  return op;
}

Result<Placement> parse_one_placement(TextCursor& cursor) {
  const size_t at = cursor.skip_blanks();
  if (cursor.accept("R")) return Placement::replicate();
  if (cursor.accept("P")) return Placement::partial(MUSTER_TRY(parse_partial_rest(cursor)));
  if (!cursor.accept("S")) return cursor.error_at(at, "S(dim), R, P or P(op)");
  MUSTER_TRY(cursor.expect("("));
  Placement placement = Placement::shard(MUSTER_TRY(cursor.integer("a dim")));
  if (cursor.accept(",")) {
    placement.kind = Placement::Kind::kStridedShard;
    placement.split_factor = MUSTER_TRY(cursor.positive_integer("a split factor"));
  }
  MUSTER_TRY(cursor.expect(")"));
  return placement;
}

std::string to_string(const DimPattern& dim) {
  if (dim.letter == 0) return std::to_string(dim.offset);
  std::string text(1, dim.letter);
  if (dim.offset != 0) text += fmt::format("{:+}", dim.offset);
  if (!dim.dropped.empty()) text += "/" + dim.dropped;
  return text;
}

std::string to_string(const PlacementPattern& pattern) {
  switch (pattern.kind) {
    case PlacementPattern::Kind::kReplicate:
      return "R";
    case PlacementPattern::Kind::kShard:
      return fmt::format("S({})", to_string(pattern.dim));
    case PlacementPattern::Kind::kPartial:
      return partial_text(pattern.op);
    case PlacementPattern::Kind::kAny:
      break;
  }
  return "*";
}

std::string to_string(const std::vector<PlacementPattern>& patterns) {
  std::string text;
  for (const PlacementPattern& pattern : patterns) {
    text += (text.empty() ? "" : ", ") + to_string(pattern);
  }
  return text;
}

std::string to_string(const RuleCondition& condition) {
  std::string right = condition.argument;
  if (!condition.ndim_of.empty()) {
    right = fmt::format("ndim({})", condition.ndim_of);
    if (condition.number != 0) {
      right += fmt::format(" {} {}", condition.number < 0 ? '-' : '+', std::abs(condition.number));
    }
  } else if (right.empty()) {
    right = std::to_string(condition.number);
  }
  return fmt::format("{} {} {}", condition.letter,
                     kRelations[static_cast<size_t>(condition.relation)], right);
}
}  // namespace

std::string_view to_string(PartialOp op) noexcept {
  return kPartialOpNames[static_cast<size_t>(op)];
}

std::string to_string(Placement placement) {
  switch (placement.kind) {
    case Placement::Kind::kReplicate:
      return "R";
    case Placement::Kind::kShard:
      return fmt::format("S({})", placement.dim);
    case Placement::Kind::kStridedShard:
      return fmt::format("S({}, {})", placement.dim, placement.split_factor);
    case Placement::Kind::kPartial:
      break;
  }
  return partial_text(placement.op);
}

std::string to_string(std::span<const Placement> placements) {
  std::string text;
  for (const Placement placement : placements) {
    text += (text.empty() ? "" : ", ") + to_string(placement);
  }
  return "[" + text + "]";
}

Result<Placement> parse_placement(std::string_view text) {
  TextCursor cursor("placement", text);
  const Placement placement = MUSTER_TRY(parse_one_placement(cursor));
  if (!cursor.at_end()) return cursor.error("the end of the text");
  return placement;
}

Result<std::vector<Placement>> parse_placements(std::string_view text) {
  TextCursor cursor("placements", text);
  MUSTER_TRY(cursor.expect("["));
  std::vector<Placement> placements;
  if (!cursor.accept("]")) {
    do {
      placements.push_back(MUSTER_TRY(parse_one_placement(cursor)));
    } while (cursor.accept(","));
    MUSTER_TRY(cursor.expect("]"));
  }
  if (!cursor.at_end()) return cursor.error("the end of the text");
  return placements;
}

std::string to_string(const ShardRule& rule) {
  std::string text = fmt::format("{} -> {}", to_string(rule.inputs), to_string(rule.outputs));
  for (size_t i = 0; i < rule.conditions.size(); ++i) {
    text += (i == 0 ? " where " : " and ") + to_string(rule.conditions[i]);
  }
  return text;
}

namespace {
class RuleParser {
 public:
  explicit RuleParser(std::string_view text) : cursor_("shard rule", text) {}

  Result<ShardRule> parse() {
    rule_.inputs = MUSTER_TRY(parse_side(/*is_input=*/true));
    MUSTER_TRY(cursor_.expect("->"));
    rule_.outputs = MUSTER_TRY(parse_side(/*is_input=*/false));
    if (cursor_.accept_word("where")) {
      do {
        rule_.conditions.push_back(MUSTER_TRY(parse_condition()));
      } while (cursor_.accept_word("and"));
    }
    if (!cursor_.at_end()) return cursor_.error("the end of the text");
    return std::move(rule_);
  }

 private:
  Result<std::vector<PlacementPattern>> parse_side(bool is_input) {
    std::vector<PlacementPattern> patterns;
    do {
      patterns.push_back(MUSTER_TRY(parse_pattern(is_input)));
      if (is_input && patterns.back().kind == PlacementPattern::Kind::kShard) {
        known_letters_ += patterns.back().dim.letter;
      }
    } while (cursor_.accept(","));
    return patterns;
  }

  Result<PlacementPattern> parse_pattern(bool is_input) {
    const size_t at = cursor_.skip_blanks();
    PlacementPattern pattern;
    if (cursor_.accept("R")) return pattern;
    if (is_input && cursor_.accept("*")) {
      pattern.kind = PlacementPattern::Kind::kAny;
    } else if (cursor_.accept("P")) {
      pattern.kind = PlacementPattern::Kind::kPartial;
      pattern.op = MUSTER_TRY(parse_partial_rest(cursor_));
    } else if (cursor_.accept("S")) {
      pattern.kind = PlacementPattern::Kind::kShard;
      MUSTER_TRY(cursor_.expect("("));
      pattern.dim = MUSTER_TRY(parse_dim(is_input));
      MUSTER_TRY(cursor_.expect(")"));
    } else {
      return cursor_.error_at(at, is_input ? "S(dim), R, P, P(op) or *" : "S(dim), R, P or P(op)");
    }
    return pattern;
  }

  Result<DimPattern> parse_dim(bool is_input) {
    DimPattern dim;
    if (!cursor_.at_identifier()) {
      dim.offset = MUSTER_TRY(cursor_.integer("a dim or a letter"));
      return dim;
    }
    dim.letter = MUSTER_TRY(parse_letter(/*must_be_known=*/!is_input));
    if (cursor_.accept("+")) {
      dim.offset = MUSTER_TRY(cursor_.positive_integer("a number of dims"));
    } else if (cursor_.accept("-")) {
      dim.offset = -MUSTER_TRY(cursor_.positive_integer("a number of dims"));
    }
    if (cursor_.accept("/")) dim.dropped = MUSTER_TRY(cursor_.identifier("an argument's name"));
    return dim;
  }

  Result<char> parse_letter(bool must_be_known) {
    const size_t at = cursor_.skip_blanks();
    const std::string_view name = MUSTER_TRY(cursor_.identifier("a letter"));
    if (name.size() != 1 || name[0] < 'a' || name[0] > 'z') {
      return cursor_.error_at(at, "one letter a .. z");
    }
    if (must_be_known && known_letters_.find(name[0]) == std::string::npos) {
      return cursor_.error_at(at, fmt::format("a letter of an input; no input has \"{}\"", name));
    }
    return name[0];
  }

  Result<RuleCondition> parse_condition() {
    RuleCondition condition;
    condition.letter = MUSTER_TRY(parse_letter(/*must_be_known=*/true));
    condition.relation = MUSTER_TRY(parse_relation());
    if (!cursor_.at_identifier()) {
      condition.number = MUSTER_TRY(cursor_.integer("a number, ndim(argument) or an argument"));
    } else if (cursor_.accept_word("ndim")) {
      MUSTER_TRY(cursor_.expect("("));
      condition.ndim_of = MUSTER_TRY(cursor_.identifier("an argument's name"));
      MUSTER_TRY(cursor_.expect(")"));
      if (cursor_.accept("+")) {
        condition.number = MUSTER_TRY(cursor_.positive_integer("a number"));
      } else if (cursor_.accept("-")) {
        condition.number = -MUSTER_TRY(cursor_.positive_integer("a number"));
      }
    } else {
      condition.argument = MUSTER_TRY(cursor_.identifier("an argument's name"));
    }
    return condition;
  }

  Result<RuleCondition::Relation> parse_relation() {
    using Relation = RuleCondition::Relation;
    if (cursor_.accept_word("in")) return Relation::kIn;
    if (cursor_.accept_word("not")) {
      if (!cursor_.accept_word("in")) return cursor_.error("\"in\"");
      return Relation::kNotIn;
    }
    // The longer of two that begin alike comes first.
    for (const Relation relation : {Relation::kLessEqual, Relation::kLess, Relation::kGreaterEqual,
                                    Relation::kGreater, Relation::kEqual, Relation::kNotEqual}) {
      if (cursor_.accept(kRelations[static_cast<size_t>(relation)])) return relation;
    }
    return cursor_.error("<, <=, >, >=, ==, !=, in or not in");
  }

  TextCursor cursor_;
  ShardRule rule_;
  std::string known_letters_;
};

Result<void> check_argument(const std::string& name, const ShardRule& rule, const Schema& schema) {
  if (name.empty() || schema.index_of(name)) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "shard rule of {}: \"{}\" must be an argument; got \"{}\"", schema.full_name(),
                    name, to_string(rule));
}
}  // namespace

Result<ShardRule> parse_shard_rule(std::string_view text) { return RuleParser(text).parse(); }

Result<void> check_shard_rule(const ShardRule& rule, const Schema& schema) {
  size_t num_tensors = 0;
  for (const Argument& argument : schema.arguments) {
    if (argument.type == ArgumentType::kTensor) ++num_tensors;
  }
  if (rule.inputs.size() != num_tensors || rule.outputs.size() != schema.returns.size()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "shard rule of {}: {} inputs and {} outputs, one per tensor; got \"{}\"",
                      schema.full_name(), num_tensors, schema.returns.size(), to_string(rule));
  }
  for (const auto* side : {&rule.inputs, &rule.outputs}) {
    for (const PlacementPattern& pattern : *side) {
      MUSTER_TRY(check_argument(pattern.dim.dropped, rule, schema));
    }
  }
  for (const RuleCondition& condition : rule.conditions) {
    MUSTER_TRY(check_argument(condition.ndim_of, rule, schema));
    MUSTER_TRY(check_argument(condition.argument, rule, schema));
  }
  return {};
}
}  // namespace muster
