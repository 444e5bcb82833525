// Where gradients lie at the border between local tensors and DTensors, against PyTorch's record.
#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "dist/tensor/redistribute.h"
#include "tests/support/golden_case.h"
#include "tests/support/golden_close.h"
#include "tests/support_ranks/mesh.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using Json = nlohmann::json;
using Placements = std::vector<Placement>;
constexpr Placement kR = Placement::replicate();
constexpr Placement kP = Placement::partial();

const testing::GoldenFile& golden_file() {
  return testing::GoldenFile::load("parallel/dtensor_grad");
}

// "to_local P(avg)" -> P(avg).
Placement placement_in(const std::string& id, size_t begin) {
  return parse_placement(id.substr(begin, id.find_first_of(", ", begin) - begin)).value();
}

class Case {
 public:
  Case(const Json& golden, MeshRef mesh)
      : golden_(golden),
        id_(golden["id"].get<std::string>()),
        mesh_(std::move(mesh)),
        rank_(static_cast<size_t>(mesh_->coordinate()[0])),
        reduced_before_(mesh_->group(0)->num_launched(CollectiveKind::kAllReduce)),
        gathered_before_(mesh_->group(0)->num_launched(CollectiveKind::kAllGather)),
        full_(golden_file().tensor(golden["full"])) {}

  // False for cases about calls that muster lacks.
  bool run() {
    if (id_.starts_with("from_local R, to_local")) return use_differs_by_rank(), true;
    if (id_.starts_with("mesh")) return false;  // ranks in another order than theirs
    if (id_.starts_with("from_local R grad_placements")) return use_differs_by_rank(), true;
    if (id_.starts_with("from_local")) return from_local_then_full(), true;
    if (id_.starts_with("to_local R grad_placements")) return told_gradient(), true;
    if (id_.starts_with("to_local")) return to_local_alone(), true;
    return full_tensor_of_a_leaf(), true;
  }

 private:
  [[nodiscard]] Tensor golden_grad() const { return golden_file().tensor(golden_["grad"][rank_]); }
  [[nodiscard]] Tensor loss_weight() const { return golden_file().tensor(golden_["loss_weight"]); }
  // A piece whose reduction is the whole; rank 1 holds the extremes.
  [[nodiscard]] Tensor piece(Placement placement) const {
    if (!placement.is_partial()) {
      return clone(local_tensor(distribute_tensor(full_, mesh_, {placement})));
    }
    const bool is_first = rank_ == 0;
    if (placement.op == PartialOp::kSum) return is_first ? sub(full_, 12) : full_like(full_, 12.0);
    if (placement.op == PartialOp::kAvg) return is_first ? add(full_, 12) : sub(full_, 12);
    return is_first ? sub(full_, 2) : clone(full_);
  }
  [[nodiscard]] Tensor leaf(Placement placement) const {
    return requires_grad_(
        from_local(piece(placement), mesh_, {placement}, DimVector(full_.sizes())));
  }
  void expect_same(const Tensor& actual, const Tensor& expected) const {
    EXPECT_TRUE(testing::is_close(actual, expected));
  }
  // Checks what the case has communicated so far, too.
  void run_backward(const Tensor& loss) {
    backward(loss);
    if (!golden_.contains("comm")) return;
    const auto recorded = [&](const char* name) {
      return golden_["comm"].value(name, uint64_t{0});
    };
    const ProcessGroup& group = *mesh_->group(0);
    // Who won an extreme is asked in backward: the largest value, and how many ranks hold it.
    const uint64_t asked = id_.starts_with("from_local P(max)") ? 2 : 0;
    EXPECT_EQ(group.num_launched(CollectiveKind::kAllReduce) - reduced_before_,
              recorded("all_reduce") + asked);
    EXPECT_EQ(group.num_launched(CollectiveKind::kAllGather) - gathered_before_,
              recorded("all_gather_into_tensor"));
  }
  void expect_placement(const Tensor& grad) const {
    EXPECT_EQ(to_string(dtensor_spec(grad).placements[0]),
              to_string(parse_placement(golden_["placements"][0].get<std::string>()).value()));
  }

  void from_local_then_full() {
    const Placement placement = placement_in(id_, std::string("from_local ").size());
    const Tensor local = requires_grad_(piece(placement));
    const Tensor d = from_local(local, mesh_, {placement}, DimVector(full_.sizes()));
    run_backward(sum(mul(full_tensor(d), loss_weight())));
    // PyTorch hands the gradient of an average or an extreme on as it is; here it is the adjoint.
    Tensor expected = golden_grad();
    if (placement.is_partial() && placement.op == PartialOp::kAvg) expected = div(expected, 2);
    if (placement.is_partial() && placement.op == PartialOp::kMax && rank_ == 0) {
      expected = zeros_like(expected);
    }
    expect_same(grad_of(local), expected);
  }

  void to_local_alone() {
    const Placement placement = placement_in(id_, std::string("to_local ").size());
    const Tensor d = leaf(placement);
    const Tensor weight = golden_file().tensor(golden_["weight"][rank_]);
    run_backward(sum(mul(to_local(d), weight)));
    if (placement.is_partial() && placement.op != PartialOp::kSum) {
      // Each rank used its own value: the gradient of the whole is the sum of theirs.
      const Tensor other = golden_file().tensor(golden_["weight"][1 - rank_]);
      expect_same(full_tensor(grad_of(d)), add(weight, other));
      return;
    }
    expect_placement(grad_of(d));
    expect_same(local_tensor(grad_of(d)), golden_grad());
  }

  void told_gradient() {
    const std::string told = id_.substr(id_.rfind(' ') + 1);
    const Placement placement = parse_placement(told).value();
    const Tensor d = leaf(kR);
    const Tensor weight = golden_file().tensor(golden_["weight"][rank_]);
    const Tensor total = sum(mul(to_local(d, Placements{placement}), weight));
    if (placement.is_shard()) {
      // There a whole gradient becomes a "piece"; here pieces have the sizes of pieces.
      EXPECT_ERROR(backward(total), ErrorCode::kInvalidArgument, ::testing::HasSubstr("piece"));
      return;
    }
    backward(total);
    expect_placement(grad_of(d));
    expect_same(local_tensor(grad_of(d)), golden_grad());
  }

  void full_tensor_of_a_leaf() {
    const Placement placement = placement_in(id_, std::string("full_tensor ").size());
    const Tensor d = leaf(placement);
    const bool is_told = id_.find("grad_placements") != std::string::npos;
    const Tensor whole = is_told ? full_tensor(d, Placements{kP}) : full_tensor(d);
    const double factor = is_told ? 1.0 + static_cast<double>(rank_) : 1.0;
    if (golden_.contains("error")) {
      // Refused there: the reduction of the gradient first gives the answer.
      const Tensor weight = ones_like(full_);
      backward(sum(mul(mul(whole, weight), factor)));
      expect_same(full_tensor(grad_of(d)), mul(weight, 3));
      return;
    }
    run_backward(sum(mul(mul(whole, loss_weight()), factor)));
    expect_placement(grad_of(d));
    expect_same(local_tensor(grad_of(d)), golden_grad());
  }

  // A replicated weight of two ones, used on tokens that differ.
  void use_differs_by_rank() {
    const Tensor local = requires_grad_(ones({2}, DType::kF64));
    const bool takes_shares = id_.starts_with("from_local R grad_placements P(sum)");
    const Tensor d = takes_shares ? from_local(local, mesh_, {kR}, DimVector{2}, Placements{kP})
                                  : from_local(local, mesh_, {kR}, DimVector{2});
    const bool is_told = id_.find("to_local grad_placements") != std::string::npos;
    const Tensor used = is_told ? to_local(d, Placements{kP}) : to_local(d);
    const Tensor tokens = mul(to(tensor({1.0, 2.0}), DType::kF64), 1.0 + double(rank_));
    run_backward(sum(mul(used, tokens)));
    expect_same(grad_of(local), golden_grad());
  }

  const Json& golden_;
  std::string id_;
  MeshRef mesh_;
  size_t rank_;
  uint64_t reduced_before_, gathered_before_;
  Tensor full_;
};

TEST(DTensorGolden, GradientsLieWhereTheBorderSays) {
  int checked = 0;
  testing::run_ranks(2, [&](testing::RankContext& ctx) {
    const MeshRef mesh = testing::mesh_of(ctx, {{"x", 2}});
    for (const Json& golden : golden_file().cases()) {
      // Refused cases have no values; they are of the same tensor as the others.
      Json whole = golden;
      if (!whole.contains("full")) whole["full"] = golden_file().cases()[0]["full"];
      SCOPED_TRACE(whole["id"].get<std::string>());
      const bool is_checked = Case(whole, mesh).run();
      if (ctx.group_rank() == 0 && is_checked) ++checked;
    }
  });
  EXPECT_EQ(checked, 30);
}
}  // namespace
}  // namespace muster
