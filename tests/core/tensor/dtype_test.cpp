#include "core/tensor/dtype.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tests/support/golden_case.h"
#include "tests/support/golden_close.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using testing::GoldenFile;

DType dtype_named(const nlohmann::json& name) {
  return parse_dtype(name.get<std::string>()).value();
}

// The value of a 16-bit pattern, from the definition of the format.
double value_of(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const uint32_t exponent = bits >> mantissa_bits & ((1u << exponent_bits) - 1);
  const double sign = bits >> 15 != 0 ? -1.0 : 1.0;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (exponent == (1u << exponent_bits) - 1) {
    return mantissa != 0 ? std::nan("") : sign * HUGE_VAL;
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1u << mantissa_bits),
                           static_cast<int>(exponent) - bias - mantissa_bits);
}

template <typename T>
T from_bits(uint32_t bits) {
  T value;
  value.bits = static_cast<uint16_t>(bits);
  return value;
}

template <typename T>
void expect_every_pattern_widens_and_returns(int exponent_bits, int mantissa_bits) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto wide = static_cast<float>(from_bits<T>(bits));
    const double exact = value_of(bits, exponent_bits, mantissa_bits);
    if (std::isnan(exact)) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(T(wide)))) << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(wide), exact) << bits;
    ASSERT_EQ(std::signbit(wide), bits >> 15 != 0) << bits;
    ASSERT_EQ(T(wide).bits, bits);
  }
}

// For neighbours a < b of the format: what lies below the middle becomes a, above it b, and the
// middle itself the one with an even mantissa.
template <typename T>
void expect_rounding_to_nearest_even(uint32_t largest_finite) {
  for (uint32_t bits = 0; bits < largest_finite; ++bits) {
    const auto a = static_cast<float>(from_bits<T>(bits));
    const auto b = static_cast<float>(from_bits<T>(bits + 1));
    const float middle = a + (b - a) / 2;
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(T(middle).bits, even) << a;
    ASSERT_EQ(T(-middle).bits, even | 0x8000u) << a;
    ASSERT_EQ(T(std::nextafter(middle, 0.0f)).bits, bits) << a;
    ASSERT_EQ(T(std::nextafter(middle, HUGE_VALF)).bits, bits + 1) << a;
  }
}

TEST(Half, EveryPatternWidensExactlyAndReturns) {
  expect_every_pattern_widens_and_returns<Half>(5, 10);
}
TEST(BFloat16, EveryPatternWidensExactlyAndReturns) {
  expect_every_pattern_widens_and_returns<BFloat16>(8, 7);
}
TEST(Half, RoundsToNearestEven) { expect_rounding_to_nearest_even<Half>(0x7BFF); }
TEST(BFloat16, RoundsToNearestEven) {
  // From the smallest normal on: below it the middle is a subnormal float, which also works.
  expect_rounding_to_nearest_even<BFloat16>(0x7F7F);
}

TEST(Half, TooLargeBecomesInfinityFromTheMiddleOn) {
  EXPECT_EQ(Half(65504.0f).bits, 0x7BFF);
  EXPECT_EQ(Half(65519.99f).bits, 0x7BFF);
  EXPECT_EQ(Half(65520.0f).bits, 0x7C00);
  EXPECT_EQ(Half(-1e30f).bits, 0xFC00);
}

// Compares bit patterns; any nan equals any nan.
template <typename T>
void expect_converts_like_the_golden(const Tensor& from, const Tensor& to_bits) {
  ASSERT_EQ(from.numel(), to_bits.numel());
  const auto* const inputs = from.data<float>();
  const auto* const bits = to_bits.data<int16_t>();
  for (int64_t i = 0; i < from.numel(); ++i) {
    const T got(inputs[i]);
    const T wanted = from_bits<T>(static_cast<uint16_t>(bits[i]));
    if (std::isnan(inputs[i])) {
      ASSERT_TRUE(std::isnan(static_cast<float>(got))) << i;
    } else {
      ASSERT_EQ(got.bits, wanted.bits) << "element " << i << ", " << inputs[i];
    }
  }
}

// i32 tensor of bit patterns as floats.
Tensor floats_of(const Tensor& bits) {
  Tensor floats = empty_from_spec(TensorSpec::contiguous(bits.sizes(), DType::kF32));
  std::memcpy(floats.data_ptr(), bits.data_ptr(), static_cast<size_t>(bits.numel() * 4));
  return floats;
}

TEST(Half, ConvertsLikeTheGolden) {
  const GoldenFile& file = GoldenFile::load("amp/convert");
  const auto& entry = file.find("f32_to_low");
  const Tensor from = floats_of(file.tensor(entry["args"][0]));
  ASSERT_GE(from.numel(), 2000);
  expect_converts_like_the_golden<Half>(from, file.tensor(entry["out"]["f16"]));
}

TEST(BFloat16, ConvertsLikeTheGolden) {
  const GoldenFile& file = GoldenFile::load("amp/convert");
  const auto& entry = file.find("f32_to_low");
  expect_converts_like_the_golden<BFloat16>(floats_of(file.tensor(entry["args"][0])),
                                            file.tensor(entry["out"]["bf16"]));
}

TEST(PromoteTypes, MatchesTheGoldenTable) {
  const auto& entry = GoldenFile::load("ops/promotion").find("promote_types");
  ASSERT_EQ(entry["rows"].size(), 100u);
  for (const auto& row : entry["rows"]) {
    EXPECT_EQ(promote_types(dtype_named(row[0]), dtype_named(row[1])), dtype_named(row[2])) << row;
  }
}

// Operators whose result dtype for two dimensioned tensors is the promoted one.
TEST(PromoteTypes, IsWhatArithmeticOfTensorsGives) {
  const GoldenFile& file = GoldenFile::load("ops/promotion");
  int num_rows = 0;
  for (const char* id : {"add.dim_dim", "mul.dim_dim", "result_type.dim_dim"}) {
    for (const auto& row : file.find(id)["rows"]) {
      EXPECT_EQ(promote_types(dtype_named(row[0]), dtype_named(row[1])), dtype_named(row[2]))
          << id << row;
      ++num_rows;
    }
  }
  EXPECT_EQ(num_rows, 300);
}

TEST(DType, NamesParseBackAndOthersAreRefused) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(to_string(dtype)).value(), dtype);
    EXPECT_EQ(parse_dtype(safetensors_name(dtype)).value(), dtype);
    EXPECT_EQ(visit_dtype(dtype, [](auto type) { return dtype_of<decltype(type)>; }), dtype);
    EXPECT_EQ(visit_dtype(dtype, [](auto type) { return int64_t{sizeof(type)}; }),
              item_nbytes(dtype));
  }
  EXPECT_THAT(parse_dtype("float"), testing::FailsWith(ErrorCode::kInvalidArgument,
                                                       ::testing::HasSubstr("got \"float\"")));
}
}  // namespace
}  // namespace muster
