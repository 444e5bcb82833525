#pragma once
/// How a tensor lies on one mesh axis, and the one-axis sharding rules of operators. Data only.
///
/// A rule says: when the inputs lie so, the local results are the outputs that lie so, without
/// communication. All-replicated is implied for every operator. dist/tensor applies a rule to each
/// mesh axis in turn and redistributes inputs that fit none.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/schema/schema.h"

namespace muster {

/// How the ranks' values of a Partial combine to the true value.
enum class PartialOp : uint8_t { kSum, kAvg, kProduct, kMax, kMin };

/// "sum", "avg", "product", "max", "min".
std::string_view to_string(PartialOp op) noexcept;

/// One tensor on one mesh axis.
struct Placement {
  enum class Kind : uint8_t {
    kReplicate,     ///< every rank holds the whole
    kShard,         ///< rank r holds chunk r along `dim`, sizes as torch.chunk
    kStridedShard,  ///< as kShard, after another axis has cut `dim` into `split_factor` parts
    kPartial,       ///< the whole is the combination of the ranks' values
  };
  Kind kind = Kind::kReplicate;
  PartialOp op = PartialOp::kSum;
  int32_t dim = 0;
  int32_t split_factor = 1;

  static constexpr Placement replicate() { return {}; }
  static constexpr Placement shard(int32_t dim) { return {Kind::kShard, PartialOp::kSum, dim, 1}; }
  static constexpr Placement strided_shard(int32_t dim, int32_t split_factor) {
    return {Kind::kStridedShard, PartialOp::kSum, dim, split_factor};
  }
  static constexpr Placement partial(PartialOp op = PartialOp::kSum) {
    return {Kind::kPartial, op, 0, 1};
  }
  [[nodiscard]] constexpr bool is_replicate() const { return kind == Kind::kReplicate; }
  [[nodiscard]] constexpr bool is_partial() const { return kind == Kind::kPartial; }
  /// kShard or kStridedShard.
  [[nodiscard]] constexpr bool is_shard() const {
    return kind == Kind::kShard || kind == Kind::kStridedShard;
  }
  [[nodiscard]] constexpr bool is_shard_of(int32_t which_dim) const {
    return is_shard() && dim == which_dim;
  }
  constexpr bool operator==(const Placement&) const = default;
};

/// "R", "S(0)", "S(0, 2)" for a strided shard, "P" for a partial sum, "P(max)".
std::string to_string(Placement placement);
/// "[S(0), R]": one entry per mesh axis.
std::string to_string(std::span<const Placement> placements);
/// Reads what to_string() gives. @error kInvalidArgument with the column
Result<Placement> parse_placement(std::string_view text);
/// Reads "[S(0), R]". @error kInvalidArgument with the column
Result<std::vector<Placement>> parse_placements(std::string_view text);

/// A dim in a rule: fixed, or a letter that stands for any dim.
///
/// One letter names the same dim in all operands, aligned at the last dim as in broadcasting. Where
/// an operand lacks the dim or has size 1 there, it must be replicated instead.
struct DimPattern {
  char letter = 0;     ///< 'a' .. 'z'; 0 for a fixed dim
  int32_t offset = 0;  ///< the fixed dim (negative: from the end), or what is added to the letter
  /// `S(b/dim)`: the place of b after the dims that argument `dim` names are gone; b itself when
  /// the operator has `keepdim` and it is true. "" for none.
  std::string dropped;
  bool operator==(const DimPattern&) const = default;
};

/// One operand of a rule.
struct PlacementPattern {
  enum class Kind : uint8_t { kReplicate, kShard, kPartial, kAny };
  Kind kind = Kind::kReplicate;
  PartialOp op = PartialOp::kSum;
  DimPattern dim;
  bool operator==(const PlacementPattern&) const = default;
};

/// A condition on a letter of a rule.
struct RuleCondition {
  enum class Relation : uint8_t {
    kLess,
    kLessEqual,
    kGreater,
    kGreaterEqual,
    kEqual,
    kNotEqual,
    kIn,
    kNotIn
  };
  char letter = 0;
  Relation relation = Relation::kEqual;
  /// The right side is `number`, plus the number of dims of argument `ndim_of` if that is not "",
  /// or the value of the int or int[] argument `argument` if that is not "". Dims count from the
  /// front; negative numbers count from the end of the first input.
  int32_t number = 0;
  std::string ndim_of;
  std::string argument;
  bool operator==(const RuleCondition&) const = default;
};

/// A one-axis rule: one pattern per tensor argument (a Tensor[] counts once, for all its elements)
/// and one per return.
struct ShardRule {
  std::vector<PlacementPattern> inputs;
  std::vector<PlacementPattern> outputs;
  std::vector<RuleCondition> conditions;
  bool operator==(const ShardRule&) const = default;
};

/// Reads "S(b), R -> S(b), S(b) where b < ndim(x) - 1".
///
/// Operands: `R`; `S(0)`, `S(-1)`, `S(b)`, `S(b+1)`, `S(b/dim)`; `P`, `P(max)`; `*` for an input
/// whose placement does not matter. Conditions are joined by `and`; relations: < <= > >= == != in,
/// not in; right sides: `2`, `-1`, `ndim(x)`, `ndim(x) - 1`, `dim` (an argument).
/// @error kInvalidArgument with the column; also for a letter that no input has
Result<ShardRule> parse_shard_rule(std::string_view text);

/// Checks a rule against the operator: one pattern per tensor argument and return, and known
/// argument names. @error kInvalidArgument names the operator
Result<void> check_shard_rule(const ShardRule& rule, const Schema& schema);

/// The canonical text; parse_shard_rule() of it gives an equal rule.
std::string to_string(const ShardRule& rule);

}  // namespace muster
