// What c10d's Gloo backend computes, or refuses, on three ranks; every backend must agree.
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/support/golden_case.h"
#include "tests/support_ranks/ranks.h"

namespace muster {
namespace {
using nlohmann::json;
using testing::BackendMember;
using testing::GoldenFile;
using testing::RankContext;

constexpr int kRanks = 3;

class CollectivesGolden : public ::testing::TestWithParam<BackendMember> {
 protected:
  static void run_ranks(const std::function<void(RankContext&)>& body) {
    testing::run_ranks(kRanks, body, 60s, GetParam().name);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, CollectivesGolden,
                         ::testing::ValuesIn(testing::backend_members()),
                         [](const auto& p) { return p.param.name; });

template <typename T>
constexpr bool kIsHalf = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

Tensor tensor_of(const std::vector<double>& values, DType dtype) {
  Tensor tensor =
      empty_from_spec(TensorSpec::contiguous({static_cast<int64_t>(values.size())}, dtype));
  visit_dtype(dtype, [&](auto type) {
    using T = decltype(type);
    for (size_t i = 0; i < values.size(); ++i) {
      if constexpr (kIsHalf<T>) {
        tensor.data<T>()[i] = T(static_cast<float>(values[i]));
      } else {
        tensor.data<T>()[i] = static_cast<T>(values[i]);
      }
    }
  });
  return tensor;
}

std::vector<double> values_of(const Tensor& tensor) {
  return visit_dtype(tensor.dtype(), [&](auto type) {
    using T = decltype(type);
    std::vector<double> values;
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      const T value = static_cast<const T*>(tensor.data_ptr())[i];
      if constexpr (kIsHalf<T>) {
        values.push_back(static_cast<double>(static_cast<float>(value)));
      } else {
        values.push_back(static_cast<double>(value));
      }
    }
    return values;
  });
}

// Nested lists, numbers and booleans as one row.
std::vector<double> flatten(const json& value) {
  std::vector<double> row;
  if (value.is_array()) {
    for (const json& part : value) {
      for (const double x : flatten(part)) row.push_back(x);
    }
  } else if (value.is_boolean()) {
    row.push_back(value.get<bool>() ? 1 : 0);
  } else {
    row.push_back(testing::golden_number(value));
  }
  return row;
}

void expect_row(const Tensor& tensor, const json& expected, const std::string& id) {
  const std::vector<double> actual = values_of(tensor), wanted = flatten(expected);
  ASSERT_EQ(actual.size(), wanted.size()) << id;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (std::isnan(wanted[i])) {
      EXPECT_TRUE(std::isnan(actual[i])) << id << " element " << i;
    } else {
      EXPECT_EQ(actual[i], wanted[i]) << id << " element " << i;
    }
  }
}

// "rank r holds [1, 2, 3] + 2 r in every reduce (bool: is even)".
Tensor input_of(int rank, DType dtype) {
  std::vector<double> values;
  for (int i = 1; i <= 3; ++i) {
    const int x = i + 2 * rank;
    values.push_back(dtype == DType::kBool ? (x % 2 == 0 ? 1 : 0) : x);
  }
  return tensor_of(values, dtype);
}

const std::map<std::string, ReduceOp> kOps = {
    {"SUM", ReduceOp::kSum}, {"AVG", ReduceOp::kAvg},   {"PRODUCT", ReduceOp::kProduct},
    {"MIN", ReduceOp::kMin}, {"MAX", ReduceOp::kMax},   {"BAND", ReduceOp::kBand},
    {"BOR", ReduceOp::kBor}, {"BXOR", ReduceOp::kBxor},
};

std::vector<std::string> words_of(const std::string& id) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : id + " ") {
    if (c != ' ') {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::exchange(word, ""));
    }
  }
  return words;
}

// The call of a row, or nothing if the row is of another form.
std::function<Tensor(ProcessGroup&)> reduction_of(const std::string& id) {
  const std::vector<std::string> words = words_of(id);
  const size_t count = words.size();
  if (count < 2 || !parse_dtype(words[count - 1]).ok()) return {};
  const DType dtype = parse_dtype(words[count - 1]).value();
  if (words[0] == "all_gather_into_tensor") {
    return [dtype](ProcessGroup& group) {
      Tensor output = tensor_of(std::vector<double>(9), dtype);
      group.run(group.all_gather_into_tensor(output, input_of(group.group_rank(), dtype)));
      return output;
    };
  }
  const auto op = kOps.find(words[count - 2]);
  if (op == kOps.end()) return {};
  return [kind = words[0], dtype, op = op->second](ProcessGroup& group) {
    Tensor tensor = input_of(group.group_rank(), dtype);
    if (kind == "reduce_scatter_tensor") {
      Tensor output = tensor_of({0}, dtype);
      group.run(group.reduce_scatter_tensor(output, tensor, op));
      return output;
    }
    group.run(kind == "reduce" ? group.reduce(tensor, 1, op) : group.all_reduce(tensor, op));
    return tensor;
  };
}

TEST_P(CollectivesGolden, ReductionsAndGathersOfEveryDtype) {
  const GoldenFile& golden = GoldenFile::load("parallel/collectives");
  run_ranks([&](RankContext& ctx) {
    int compared = 0, refused = 0;
    for (const json& row : golden.cases()) {
      std::string id = row.at("id");
      const auto call = reduction_of(id);
      if (!call) continue;
      // c10d has no i16; there the numbers are those of i64.
      const bool is_i16 = id.ends_with("i16");
      const json& source = is_i16 ? golden.find(id.substr(0, id.size() - 3) + "i64") : row;
      const json& expected = source.at("ranks").at(static_cast<size_t>(ctx.group_rank()));
      if (expected.is_object()) {
        EXPECT_ERROR(call(ctx.group()), ErrorCode::kInvalidArgument, ::testing::_) << id;
        ++refused;
      } else {
        const Tensor result = call(ctx.group());
        if (!expected.is_null()) expect_row(result, expected, id);
        ++compared;
      }
    }
    EXPECT_GE(compared, 70);
    EXPECT_GE(refused, 20);
  });
}

TEST_P(CollectivesGolden, MovesBetweenRanks) {
  const GoldenFile& golden = GoldenFile::load("parallel/collectives");
  run_ranks([&](RankContext& ctx) {
    ProcessGroup& group = ctx.group();
    const auto rank = static_cast<size_t>(ctx.group_rank());
    const auto row = [&](const std::string& id) { return golden.find(id).at("ranks").at(rank); };
    const Tensor x = input_of(ctx.group_rank(), DType::kF32);
    group.run(group.broadcast(x, 2));
    expect_row(x, row("broadcast from 2"), "broadcast");

    std::vector<Tensor> pieces;
    for (int r = 0; r < kRanks && rank == 1; ++r)
      pieces.push_back(tensor_of({0, 0, 0}, DType::kF32));
    group.run(group.gather(pieces, input_of(ctx.group_rank(), DType::kF32), 1));
    for (size_t r = 0; r < pieces.size(); ++r)
      expect_row(pieces[r], row("gather to 1").at(r), "gather");
    const Tensor back = tensor_of({0, 0, 0}, DType::kF32);
    group.run(group.scatter(back, pieces, 1));
    expect_row(back, row("scatter from 1"), "scatter");
  });
}

TEST_P(CollectivesGolden, AllToAllSingleWithAndWithoutSplits) {
  const GoldenFile& golden = GoldenFile::load("parallel/collectives");
  run_ranks([&](RankContext& ctx) {
    ProcessGroup& group = ctx.group();
    const auto rank = static_cast<size_t>(ctx.group_rank());
    const auto row = [&](const std::string& id) { return golden.find(id).at("ranks").at(rank); };
    const double base = 10.0 * static_cast<double>(rank);
    const Tensor even = tensor_of({0, 0, 0}, DType::kF32);
    group.run(group.all_to_all_single(even, tensor_of({base, base + 1, base + 2}, DType::kF32)));
    expect_row(even, row("all_to_all_single even"), "even");

    // Rank r sends splits[r][j] rows to rank j.
    const std::vector<std::vector<int64_t>> splits = {{0, 1, 2}, {2, 0, 1}, {1, 1, 0}};
    std::vector<int64_t> incoming;
    for (const auto& of_rank : splits) incoming.push_back(of_rank[rank]);
    std::vector<double> values;
    for (int64_t i = 0; i < splits[rank][0] + splits[rank][1] + splits[rank][2]; ++i)
      values.push_back(base + static_cast<double>(i));
    const json expected = row("all_to_all_single uneven");
    const Tensor uneven = tensor_of(std::vector<double>(expected.size()), DType::kF32);
    group.run(
        group.all_to_all_single(uneven, tensor_of(values, DType::kF32), incoming, splits[rank]));
    expect_row(uneven, expected, "uneven");

    EXPECT_ERROR(static_cast<void>(group.all_to_all_single(tensor_of({0, 0, 0, 0}, DType::kF32),
                                                           tensor_of({0, 0, 0, 0}, DType::kF32))),
                 ErrorCode::kInvalidArgument, ::testing::HasSubstr("must divide by 3"));
  });
}

TEST_P(CollectivesGolden, EdgesOfAllReduceAndGroups) {
  const GoldenFile& golden = GoldenFile::load("parallel/collectives");
  run_ranks([&](RankContext& ctx) {
    ProcessGroup& group = ctx.group();
    const auto rank = static_cast<size_t>(ctx.group_rank());
    const auto row = [&](const std::string& id) { return golden.find(id).at("ranks").at(rank); };
    const Tensor empty = tensor_of({}, DType::kF32);
    group.run(group.all_reduce(empty));
    expect_row(empty, row("all_reduce of an empty tensor"), "empty");
    const double small[] = {1.0, 0x1p-9, 0x1p-9};
    const Tensor rounded = tensor_of({small[rank]}, DType::kBF16);
    group.run(group.all_reduce(rounded));
    expect_row(rounded, row("all_reduce SUM bf16 of 1, 2^-9, 2^-9"), "bf16");
    EXPECT_THAT(group.subgroup("twice", {0, 0}, ctx.deadline()),
                testing::FailsWith(ErrorCode::kInvalidArgument, ::testing::HasSubstr("[0, 0]")));
    EXPECT_THAT(group.subgroup("beyond", {0, 3}, ctx.deadline()),
                testing::FailsWith(ErrorCode::kInvalidArgument, ::testing::HasSubstr("got 3")));
    if (rank == 1) return;
    const auto pair = group.subgroup("pair", {0, 2}, ctx.deadline()).value();
    const Tensor x = input_of(ctx.group_rank(), DType::kF32);
    pair->run(pair->broadcast(x, 1));  // group rank 1 is global rank 2
    expect_row(x, row("broadcast src 2 in group [0, 2]"), "group broadcast");
    EXPECT_EQ(pair->global_rank(), static_cast<int>(rank));
    EXPECT_ERROR(static_cast<void>(pair->broadcast(x, 2)), ErrorCode::kInvalidArgument,
                 ::testing::HasSubstr("in [0, 2)"));
  });
}
}  // namespace
}  // namespace muster
