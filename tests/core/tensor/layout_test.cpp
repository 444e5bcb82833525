#include "core/tensor/layout.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/golden_case.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::ElementsAre;
using testing::golden_ints;
using testing::GoldenFile;
using ::testing::HasSubstr;
using Json = nlohmann::json;

DimVector dims_of(const Json& value) { return DimVector(golden_ints(value)); }

Layout layout_of(const Json& value) {
  return {dims_of(value["sizes"]), dims_of(value["strides"]), value["offset"].get<int64_t>()};
}

std::string text_of(const Layout& layout) {
  return fmt::format("sizes {} strides {} offset {}", to_string(layout.sizes),
                     to_string(layout.strides), layout.offset);
}

// What a step makes of a layout, and whether the result still lies in the base's storage.
struct Step {
  Layout layout;
  bool is_copy = false;
};

Layout view_layout(const Layout& in, Dims wanted) {
  const DimVector sizes = infer_size(wanted, numel_of(in.sizes), "view");
  const auto strides = view_strides(in.sizes, in.strides, sizes);
  MUSTER_CHECK(strides.has_value(), ErrorCode::kInvalidArgument,
               "view: sizes and strides allow none");
  return {sizes, *strides, in.offset};
}

Step reshape_step(const Layout& in, Dims wanted) {
  const DimVector sizes = infer_size(wanted, numel_of(in.sizes), "reshape");
  if (const auto strides = view_strides(in.sizes, in.strides, sizes)) {
    return {{sizes, *strides, in.offset}};
  }
  return {{sizes, contiguous_strides(sizes), 0}, true};
}

Layout squeeze_all(const Layout& in) {
  Layout out = in;
  for (size_t i = in.sizes.size(); i-- > 0;) out = squeeze_layout(out, static_cast<int64_t>(i));
  return out;
}

// The piece of torch.chunk, split or tensor_split, found by sizes along the dim.
std::optional<Step> piece_step(const Layout& in, int64_t dim, const DimVector& pieces,
                               size_t index) {
  if (index >= pieces.size()) return std::nullopt;
  int64_t start = 0;
  for (size_t i = 0; i < index; ++i) start += pieces[i];
  return Step{slice_layout(in, dim, start, start + pieces[index], 1)};
}

// The layout functions alone; nothing for steps that need more than those.
std::optional<Step> apply_step(const Layout& in, const Json& step) {
  const auto name = step[0].get<std::string>();
  const auto number = [&](size_t i) { return step[i].get<int64_t>(); };
  const auto bound = [&](size_t i, int64_t otherwise) {
    return step[i].is_null() ? otherwise : number(i);
  };
  const auto size_of_dim = [&](int64_t dim) {
    return in
        .sizes[static_cast<size_t>(wrap_dim(dim, static_cast<int64_t>(in.sizes.size()), "size"))];
  };
  if (name == "view") return Step{view_layout(in, dims_of(step[1]))};
  if (name == "reshape") return reshape_step(in, dims_of(step[1]));
  if (name == "permute") return Step{permute_layout(in, dims_of(step[1]))};
  if (name == "transpose") return Step{transpose_layout(in, number(1), number(2))};
  if (name == "t" && in.sizes.size() <= 2) {
    return Step{in.sizes.size() < 2 ? in : transpose_layout(in, 0, 1)};
  }
  if (name == "expand") return Step{expand_layout(in, dims_of(step[1]))};
  if (name == "squeeze" && step.size() == 1) return Step{squeeze_all(in)};
  if (name == "squeeze" && step[1].is_number()) return Step{squeeze_layout(in, number(1))};
  if (name == "unsqueeze") return Step{unsqueeze_layout(in, number(1))};
  if (name == "select") return Step{select_layout(in, number(1), number(2))};
  if (name == "slice") {
    return Step{slice_layout(in, number(1), bound(2, 0), bound(3, INT64_MAX), number(4))};
  }
  if (name == "unfold") return Step{unfold_layout(in, number(1), number(2), number(3))};
  if (name == "diagonal") return Step{diagonal_layout(in, number(1), number(2), number(3))};
  if (name == "chunk") {
    return piece_step(in, number(2), chunk_sizes(size_of_dim(number(2)), number(1)),
                      static_cast<size_t>(number(3)));
  }
  if (name == "tensor_split") {
    return piece_step(in, number(2), tensor_split_sizes(size_of_dim(number(2)), number(1)),
                      static_cast<size_t>(number(3)));
  }
  if (name == "clone" || name == "empty_like") {
    return Step{{in.sizes, preserved_strides(in.sizes, in.strides), 0}, true};
  }
  if (name == "contiguous") {
    if (is_contiguous(in.sizes, in.strides)) return Step{in};
    return Step{{in.sizes, contiguous_strides(in.sizes), 0}, true};
  }
  return std::nullopt;
}

// Index of the step that a case says must be refused; -1 when all must work.
int64_t refused_step(const Json& entry) {
  return entry.contains("error") ? entry["error"]["at"].get<int64_t>() : -1;
}

// Runs one chain as far as the layout functions reach; true when that was to its end.
bool run_chain(const Json& entry) {
  Layout layout = layout_of(entry["base"]);
  bool is_copy = false;
  const int64_t refused = refused_step(entry);
  for (size_t i = 0; i < entry["steps"].size(); ++i) {
    std::optional<Step> step;
    const auto result = catch_error([&] { step = apply_step(layout, entry["steps"][i]); });
    if (static_cast<int64_t>(i) == refused) {
      if (result.ok() && !step) return false;  // a check of the operator, not of the layout
      EXPECT_FALSE(result.ok()) << entry["id"] << " must refuse step " << i << ": "
                                << entry["error"]["fact"];
      return true;
    }
    EXPECT_OK(result) << entry["id"] << " step " << i;
    if (!result.ok() || !step) return false;
    layout = step->layout;
    is_copy = is_copy || step->is_copy;
    const std::string wanted = text_of(layout_of(entry["trace"][i]));
    EXPECT_EQ(text_of(layout), wanted) << entry["id"] << " step " << i << " " << entry["steps"][i];
    if (text_of(layout) != wanted) return false;
  }
  const Json& out = entry["out"];
  EXPECT_EQ(is_contiguous(layout.sizes, layout.strides), out["contiguous"].get<bool>())
      << entry["id"];
  EXPECT_EQ(is_non_overlapping_and_dense(layout.sizes, layout.strides), out["dense"].get<bool>())
      << entry["id"];
  EXPECT_EQ(!is_copy, out["alias"].get<bool>()) << entry["id"];
  if (!is_copy && out.contains("values") && entry["base"]["dtype"] == "f32") {
    // The storage holds 0, 1, 2, ..: the values are the indices that the layout names.
    std::vector<double> values;
    const int64_t numel = numel_of(layout.sizes);
    for (int64_t flat = 0; flat < numel; ++flat) {
      int64_t left = flat, at = layout.offset;
      for (size_t d = layout.sizes.size(); d-- > 0;) {
        at += left % layout.sizes[d] * layout.strides[d];
        left /= layout.sizes[d];
      }
      values.push_back(static_cast<double>(at));
    }
    EXPECT_EQ(values, out["values"].get<std::vector<double>>()) << entry["id"];
  }
  return true;
}

TEST(Layout, ChainsOfViewsMatchTheGolden) {
  int num_whole = 0;
  int num_refused = 0;
  for (const Json& entry : GoldenFile::load("ops/views").cases()) {
    if (!entry.contains("steps")) continue;
    const bool is_whole = run_chain(entry);
    num_whole += is_whole && refused_step(entry) < 0 ? 1 : 0;
    num_refused += is_whole && refused_step(entry) >= 0 ? 1 : 0;
  }
  // The rest holds steps that are operators of their own (neg, flatten, as_strided, ..).
  EXPECT_GE(num_whole, 237);
  EXPECT_GE(num_refused, 60);
}

TEST(Layout, PieceSizesMatchTheGolden) {
  for (const Json& entry : GoldenFile::load("ops/chunk").cases()) {
    const auto n = entry["n"].get<int64_t>();
    const auto parts = entry["parts"].get<int64_t>();
    EXPECT_EQ(to_string(chunk_sizes(n, parts)), to_string(dims_of(entry["chunk"]))) << entry["id"];
    EXPECT_EQ(to_string(tensor_split_sizes(n, parts)), to_string(dims_of(entry["tensor_split"])))
        << entry["id"];
  }
}

TEST(Layout, NumelIsCheckedForOverflowAndSign) {
  EXPECT_EQ(checked_numel({}), 1);
  EXPECT_EQ(checked_numel({3, 0, 5}), 0);
  EXPECT_ERROR(checked_numel({2, -1}), ErrorCode::kInvalidArgument, HasSubstr("[2, -1]"));
  EXPECT_ERROR(checked_numel({int64_t{1} << 62, 2}), ErrorCode::kInvalidArgument,
               HasSubstr("63 bits"));
}

TEST(Layout, BroadcastNamesBothShapes) {
  EXPECT_EQ(to_string(broadcast_sizes({2, 1, 3}, {4, 1}, "add")), "[2, 4, 3]");
  EXPECT_EQ(to_string(broadcast_sizes({}, {0, 2}, "add")), "[0, 2]");
  EXPECT_EQ(to_string(broadcast_sizes({1}, {0}, "add")), "[0]");
  EXPECT_ERROR(broadcast_sizes({2, 3}, {2, 4}, "add"), ErrorCode::kInvalidArgument,
               ::testing::AllOf(HasSubstr("add:"), HasSubstr("[2, 3] and [2, 4]")));
}

TEST(Layout, ExpandabilityIsOneWay) {
  EXPECT_TRUE(is_expandable_to({1, 3}, {5, 2, 3}));
  EXPECT_FALSE(is_expandable_to({2, 3}, {1, 3}));
  EXPECT_FALSE(is_expandable_to({1, 1, 3}, {1, 3}));
}

TEST(Layout, ExtentCountsFromTheStartOfTheStorage) {
  EXPECT_EQ(storage_extent({{2, 3}, {3, 1}, 0}), 6);
  EXPECT_EQ(storage_extent({{2, 3}, {1, 2}, 4}), 10);
  EXPECT_EQ(storage_extent({{2, 0}, {9, 9}, 4}), 0);
  EXPECT_EQ(storage_extent({{}, {}, 7}), 8);
}

TEST(Layout, OverlapIsCertainForExpandedDimsOnly) {
  EXPECT_TRUE(certainly_overlaps_itself({2, 3}, {0, 1}));
  EXPECT_FALSE(certainly_overlaps_itself({1, 3}, {0, 1}));
  EXPECT_FALSE(certainly_overlaps_itself({2, 0}, {0, 1}));
  EXPECT_FALSE(certainly_overlaps_itself({3, 3}, {1, 1}));  // overlaps, but not certainly
}

TEST(Layout, DimsWrapOnceAndErrorsNameTheRange) {
  EXPECT_EQ(wrap_dim(-1, 3, "sum"), 2);
  EXPECT_EQ(wrap_dim(-1, 0, "sum"), 0);
  EXPECT_ERROR(wrap_dim(3, 3, "sum"), ErrorCode::kOutOfRange,
               HasSubstr("sum: dim must be in [-3, 2]; got 3"));
}

TEST(DimVector, GrowsBeyondItsInlineRoom) {
  DimVector dims;
  for (int64_t i = 0; i < 20; ++i) dims.push_back(i);
  dims.erase(0);
  dims.insert(2, 99);
  DimVector moved = std::move(dims);
  DimVector copy = moved;
  copy = DimVector{1, 2};
  EXPECT_EQ(moved.size(), 20u);
  EXPECT_EQ(moved[2], 99);
  EXPECT_EQ(moved.back(), 19);
  EXPECT_THAT(copy, ElementsAre(1, 2));
}
}  // namespace
}  // namespace muster
