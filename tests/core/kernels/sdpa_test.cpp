#include "core/kernels/cpu/sdpa.h"

#include <cmath>
#include <limits>

#include "tests/core/kernels/strided_array.h"
#include "tests/support/matchers.h"

namespace muster::kernels::cpu {
namespace {
using ::muster::testing::Place;
using ::muster::testing::same_bits_on_any_threads;
using ::muster::testing::scaled_difference;
using ::muster::testing::StridedArray;
using ::testing::HasSubstr;
using Values = std::vector<double>;
constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

enum class MaskKind { kNone, kBool, kFloat, kBoolPerKey };

struct Problem {
  int64_t b = 1, h = 1, hkv = 1, l = 1, s = 1, e = 1, ev = 1;
  Causal causal = Causal::kNone;
  MaskKind mask = MaskKind::kNone;
  double scale = 0.3;
  bool with_dlse = false;
};

// Operands and results of one dtype; the same seeds give the same values in every dtype.
template <typename T>
struct Attention {
  using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
  Problem p;
  StridedArray<T> q, k, v, out, dout, dq, dk, dv, mask_values, dmask;
  StridedArray<A> lse, dlse;
  StridedArray<bool> mask_bits;
  DimVector mask_sizes, mask_strides;

  explicit Attention(const Problem& problem, Place place = Place::kDense)
      : p(problem),
        q({p.b, p.h, p.l, p.e}, place),
        k({p.b, p.hkv, p.s, p.e}, place),
        v({p.b, p.hkv, p.s, p.ev}, place),
        out({p.b, p.h, p.l, p.ev}, place),
        dout({p.b, p.h, p.l, p.ev}, place),
        dq({p.b, p.h, p.l, p.e}, place),
        dk({p.b, p.hkv, p.s, p.e}, place),
        dv({p.b, p.hkv, p.s, p.ev}, place),
        mask_values({p.b, p.h, p.l, p.mask == MaskKind::kFloat ? p.s : 0}),
        dmask({p.b, p.h, p.l, p.mask == MaskKind::kFloat ? p.s : 0}),
        lse({p.b, p.h, p.l}),
        dlse({p.b, p.h, p.l}),
        mask_bits({p.b, p.h, p.l, p.mask == MaskKind::kFloat ? 0 : p.s}),
        mask_sizes({p.b, p.h, p.l, p.s}) {
    q.randomize(1, 2.0), k.randomize(2, 2.0), v.randomize(3), dout.randomize(4), dlse.randomize(5);
    mask_values.randomize(6);
    mask_strides = contiguous_strides(mask_sizes.span());
    for (int64_t i = 0; i < mask_bits.numel(); ++i) mask_bits[i] = i % 7 != 2 && i % 5 != 1;
    if (p.mask == MaskKind::kBoolPerKey) mask_strides = {p.s, 0, 0, 1};
    if (p.mask == MaskKind::kFloat) {
      for (int64_t i = 0; i < mask_values.numel(); ++i)
        if (i % 6 == 1) mask_values[i] = T(-std::numeric_limits<float>::infinity());
    }
  }

  [[nodiscard]] SdpaOptions options() const {
    SdpaOptions options{.scale = p.scale, .causal = p.causal, .mask = {}};
    if (p.mask == MaskKind::kFloat) options.mask.emplace(mask_values.view());
    if (p.mask == MaskKind::kBool || p.mask == MaskKind::kBoolPerKey)
      options.mask.emplace(mask_bits.view().data, DType::kBool, mask_sizes.span(),
                           mask_strides.span());
    return options;
  }
  [[nodiscard]] SdpaBackwardInputs inputs() const {
    SdpaBackwardInputs inputs{dout.view(), q.view(),   k.view(), v.view(),
                              out.view(),  lse.view(), {}};
    if (p.with_dlse) inputs.dlse.emplace(dlse.view());
    return inputs;
  }
  void math() {
    sdpa_math(out.view(), lse.view(), q.view(), k.view(), v.view(), options());
    SdpaGradients gradients{dq.view(), dk.view(), dv.view(), {}};
    if (p.mask == MaskKind::kFloat) gradients.dmask.emplace(dmask.view());
    sdpa_math_backward(gradients, inputs(), options());
  }
  void flash() {
    sdpa_flash(out.view(), lse.view(), q.view(), k.view(), v.view(), options());
    sdpa_flash_backward({dq.view(), dk.view(), dv.view(), {}}, inputs(), options());
  }
};

// What to add to the score of (b, h, i, j); -inf where the key is hidden.
template <typename T>
double bias_at(const Attention<T>& run, int64_t b, int64_t h, int64_t i, int64_t j) {
  const Problem& p = run.p;
  if (p.causal == Causal::kUpperLeft && j > i) return -kInf;
  if (p.causal == Causal::kLowerRight && j > i + p.s - p.l) return -kInf;
  if (p.mask == MaskKind::kNone) return 0.0;
  if (p.mask == MaskKind::kFloat)
    return static_cast<double>(run.mask_values[((b * p.h + h) * p.l + i) * p.s + j]);
  const int64_t at = b * run.mask_strides[0] + h * run.mask_strides[1] + i * run.mask_strides[2] +
                     j * run.mask_strides[3];
  return run.mask_bits.view().template as<bool>()[at] ? 0.0 : -kInf;
}

// out and lse from their definition, reading visible positions only.
void reference(const Attention<double>& run, Values& out, Values& lse) {
  const Problem& p = run.p;
  out.assign(static_cast<size_t>(p.b * p.h * p.l * p.ev), 0.0);
  lse.assign(static_cast<size_t>(p.b * p.h * p.l), -kInf);
  for (int64_t row = 0; row < p.b * p.h * p.l; ++row) {
    const int64_t i = row % p.l, h = row / p.l % p.h, b = row / p.l / p.h;
    const int64_t kv = b * p.hkv + h / (p.h / p.hkv);
    double sum = 0.0;
    for (int64_t j = 0; j < p.s; ++j) {
      double score = bias_at(run, b, h, i, j);
      if (score == -kInf) continue;
      for (int64_t e = 0; e < p.e; ++e)
        score += p.scale * run.q[row * p.e + e] * run.k[(kv * p.s + j) * p.e + e];
      const double weight = std::exp(score);
      sum += weight;
      for (int64_t e = 0; e < p.ev; ++e)
        out[row * p.ev + e] += weight * run.v[(kv * p.s + j) * p.ev + e];
    }
    if (sum == 0.0) continue;
    for (int64_t e = 0; e < p.ev; ++e) out[row * p.ev + e] /= sum;
    lse[row] = std::log(sum);
  }
}

std::vector<Problem> small_problems() {
  std::vector<Problem> problems;
  for (const Causal causal : {Causal::kNone, Causal::kUpperLeft, Causal::kLowerRight}) {
    for (const MaskKind mask :
         {MaskKind::kNone, MaskKind::kBool, MaskKind::kFloat, MaskKind::kBoolPerKey}) {
      for (const auto& [l, s] : {std::pair{3, 5}, {5, 3}, {1, 16}, {4, 4}})
        problems.push_back({2, 4, 2, l, s, 3, 2, causal, mask, 0.3, true});
    }
  }
  return problems;
}

TEST(SdpaMath, ForwardMatchesItsDefinition) {
  for (const Problem& problem : small_problems()) {
    Attention<double> run(problem);
    run.math();
    Values out, lse;
    reference(run, out, lse);
    EXPECT_LE(scaled_difference(run.out.values(), out), 1e-13);
    EXPECT_LE(scaled_difference(run.lse.values(), lse), 1e-13);
  }
}

// sum(out * dout) + sum(lse * dlse) over visible rows.
double objective(const Attention<double>& run) {
  Values out, lse;
  reference(run, out, lse);
  double sum = 0.0;
  for (size_t i = 0; i < out.size(); ++i) sum += out[i] * run.dout[static_cast<int64_t>(i)];
  for (size_t i = 0; i < lse.size(); ++i)
    if (lse[i] > -kInf) sum += lse[i] * run.dlse[static_cast<int64_t>(i)];
  return sum;
}

TEST(SdpaMath, GradientsMatchFiniteDifferences) {
  for (const Problem& problem : small_problems()) {
    Attention<double> run(problem);
    run.math();
    const auto check = [&](StridedArray<double>& array, const StridedArray<double>& gradient) {
      for (int64_t i = 0; i < array.numel(); i += 3) {
        constexpr double kStep = 1e-5;
        const double kept = array[i];
        if (kept == -kInf) continue;
        array[i] = kept + kStep;
        const double above = objective(run);
        array[i] = kept - kStep;
        const double below = objective(run);
        array[i] = kept;
        EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep), 1e-8);
      }
    };
    check(run.q, run.dq);
    check(run.k, run.dk);
    check(run.v, run.dv);
    if (problem.mask == MaskKind::kFloat) check(run.mask_values, run.dmask);
  }
}

template <typename T>
void expect_flash_matches_math(const Problem& problem, Place place, double tolerance) {
  Attention<double> want(problem);
  if constexpr (!std::is_same_v<T, float>) {  // the same rounded operands
    const Attention<T> rounded(problem);
    for (const auto& [to, from] : {std::pair{&want.q, &rounded.q},
                                   {&want.k, &rounded.k},
                                   {&want.v, &rounded.v},
                                   {&want.dout, &rounded.dout},
                                   {&want.mask_values, &rounded.mask_values}}) {
      const Values values = from->values();
      for (int64_t i = 0; i < to->numel(); ++i) (*to)[i] = values[static_cast<size_t>(i)];
    }
  }
  want.math();
  Attention<T> run(problem, place);
  run.flash();
  SCOPED_TRACE(fmt::format("B{} H{}/{} L{} S{} E{}/{} causal {} mask {} place {}", problem.b,
                           problem.h, problem.hkv, problem.l, problem.s, problem.e, problem.ev,
                           static_cast<int>(problem.causal), static_cast<int>(problem.mask),
                           static_cast<int>(place)));
  EXPECT_LE(scaled_difference(run.out.values(), want.out.values()), tolerance);
  EXPECT_LE(scaled_difference(run.lse.values(), want.lse.values()), 1e-5);
  EXPECT_LE(scaled_difference(run.dq.values(), want.dq.values()), tolerance);
  EXPECT_LE(scaled_difference(run.dk.values(), want.dk.values()), tolerance);
  EXPECT_LE(scaled_difference(run.dv.values(), want.dv.values()), tolerance);
}

TEST(SdpaFlash, MatchesMathOnSmallProblems) {
  for (const Problem& problem : small_problems()) {
    for (const Place place : {Place::kDense, Place::kTransposed, Place::kGaps}) {
      expect_flash_matches_math<float>(problem, place, 1e-5);
      expect_flash_matches_math<BFloat16>(problem, place, 1e-2);
    }
  }
}

TEST(SdpaFlash, MatchesMathAcrossBlocks) {
  for (const Causal causal : {Causal::kNone, Causal::kUpperLeft, Causal::kLowerRight}) {
    for (const MaskKind mask : {MaskKind::kNone, MaskKind::kBool, MaskKind::kFloat}) {
      expect_flash_matches_math<float>({1, 2, 2, 300, 700, 8, 12, causal, mask, 0.25, true},
                                       Place::kDense, 1e-5);
      expect_flash_matches_math<float>({1, 2, 1, 400, 530, 8, 8, causal, mask, 0.35},
                                       Place::kTransposed, 1e-5);
      expect_flash_matches_math<float>({3, 4, 1, 65, 129, 33, 17, causal, mask, 0.2}, Place::kDense,
                                       1e-5);
    }
  }
}

TEST(SdpaFlash, TakesZeroAndNegativeScalesAndEmptyDims) {
  for (const double scale : {0.0, -0.5}) {
    Problem problem{1, 2, 2, 70, 70, 8, 8, Causal::kUpperLeft};
    problem.scale = scale;
    expect_flash_matches_math<float>(problem, Place::kDense, 1e-5);
  }
  expect_flash_matches_math<float>({2, 2, 2, 0, 5, 4, 4}, Place::kDense, 1e-5);
  expect_flash_matches_math<float>({2, 2, 2, 5, 0, 4, 4}, Place::kDense, 1e-5);
  expect_flash_matches_math<float>({0, 2, 2, 5, 5, 4, 4}, Place::kDense, 1e-5);
  expect_flash_matches_math<float>({1, 2, 2, 5, 6, 0, 4}, Place::kDense, 1e-5);
}

TEST(Sdpa, WithoutAKeyDimWeightsAreUniformEvenForAnInfiniteScale) {
  for (const bool flash : {false, true}) {
    Attention<float> run({1, 1, 1, 2, 4, 0, 1});
    run.p.scale = kInf;
    for (int64_t j = 0; j < 4; ++j) run.v[j] = static_cast<float>(j);
    flash ? run.flash() : run.math();
    EXPECT_FLOAT_EQ(run.out[0], 1.5f);
  }
}

TEST(Sdpa, CausalAlignmentsDifferWhenLengthsDo) {
  Attention<float> upper({1, 1, 1, 1, 16, 4, 4, Causal::kUpperLeft});
  upper.flash();
  for (int64_t e = 0; e < 4; ++e) EXPECT_FLOAT_EQ(upper.out[e], upper.v[e]);  // key 0 alone
  Attention<float> lower({1, 1, 1, 1, 16, 4, 4, Causal::kLowerRight});
  lower.flash();
  Attention<float> all({1, 1, 1, 1, 16, 4, 4});
  all.flash();
  EXPECT_EQ(lower.out.values(), all.out.values());
}

// Two hidden keys: one by a mask for every query, one by the mask of a single query.
template <typename T>
void poison(Attention<T>& run, double value) {
  const Problem& p = run.p;
  const auto narrow = [](double x) { return static_cast<T>(x); };
  for (int64_t i = 0; i < p.l; ++i) run.mask_bits[i * p.s + 3] = false;
  for (int64_t e = 0; e < p.e; ++e) run.k[3 * p.e + e] = narrow(value);
  for (int64_t e = 0; e < p.ev; ++e) run.v[3 * p.ev + e] = narrow(value);
}

TEST(Sdpa, NanAndInfInHiddenKeysAndValuesDoNotLeak) {
  for (const bool flash : {false, true}) {
    for (const double value : {kNan, kInf}) {
      const Problem problem{1, 1, 1, 70, 80, 4, 4, Causal::kUpperLeft, MaskKind::kBool};
      Attention<float> clean(problem), poisoned(problem);
      poison(clean, 0.0);
      poison(poisoned, value);
      flash ? clean.flash() : clean.math();
      flash ? poisoned.flash() : poisoned.math();
      EXPECT_LE(scaled_difference(poisoned.out.values(), clean.out.values()), 1e-6);
      EXPECT_LE(scaled_difference(poisoned.dq.values(), clean.dq.values()), 1e-5);
      EXPECT_LE(scaled_difference(poisoned.dk.values(), clean.dk.values()), 1e-5);
      EXPECT_LE(scaled_difference(poisoned.dv.values(), clean.dv.values()), 1e-5);
    }
  }
}

TEST(Sdpa, NanInAVisibleValueReachesTheQueriesThatSeeItOnly) {
  for (const bool flash : {false, true}) {
    Attention<float> run({1, 1, 1, 70, 70, 4, 4, Causal::kUpperLeft});
    run.v[60 * 4] = std::nanf("");
    flash ? run.flash() : run.math();
    for (int64_t i = 0; i < 70; ++i) EXPECT_EQ(std::isnan(run.out[i * 4]), i >= 60) << i;
    EXPECT_FALSE(std::isnan(run.dv[10 * 4]));
    EXPECT_FALSE(std::isnan(run.dq[59 * 4]));
    EXPECT_TRUE(std::isnan(run.dq[60 * 4]));
  }
}

TEST(Sdpa, ARowWithoutAKeyGivesZeroAndFiniteGradients) {
  for (const bool flash : {false, true}) {
    Attention<float> run({1, 2, 2, 5, 6, 4, 4, Causal::kNone, MaskKind::kBool});
    for (int64_t j = 0; j < 6; ++j) run.mask_bits[2 * 6 + j] = false;  // head 0, query 2
    flash ? run.flash() : run.math();
    EXPECT_EQ(run.lse.values()[2], -kInf);
    for (int64_t e = 0; e < 4; ++e) {
      EXPECT_EQ(run.out[2 * 4 + e], 0.0f);
      EXPECT_EQ(run.dq[2 * 4 + e], 0.0f);
    }
    for (const auto* array : {&run.dq, &run.dk, &run.dv, &run.out})
      for (const double value : array->values()) EXPECT_TRUE(std::isfinite(value));
  }
}

TEST(Sdpa, ARowOfTheLowestFiniteMaskIsUniformAndSoAreItsGradients) {
  const Problem problem{1, 1, 1, 3, 6, 4, 4, Causal::kNone, MaskKind::kFloat};
  Attention<float> math(problem), flash(problem);
  for (Attention<float>* run : {&math, &flash}) {
    run->mask_values.fill(0.0);
    for (int64_t j = 0; j < 6; ++j) run->mask_values[6 + j] = std::numeric_limits<float>::lowest();
  }
  math.math();
  flash.flash();
  double mean = 0.0;
  for (int64_t j = 0; j < 6; ++j) mean += static_cast<double>(math.v[j * 4]) / 6.0;
  EXPECT_NEAR(flash.out[4], mean, 1e-6);
  EXPECT_LE(scaled_difference(flash.dv.values(), math.dv.values()), 1e-6);
  EXPECT_LE(scaled_difference(flash.dk.values(), math.dk.values()), 1e-6);
}

TEST(Sdpa, GivesTheSameBitsOnAnyNumberOfThreads) {
  for (const Problem& problem :
       {Problem{2, 6, 6, 200, 200, 32, 32, Causal::kUpperLeft},
        Problem{1, 2, 1, 130, 1100, 16, 16, Causal::kNone, MaskKind::kBool}}) {
    Attention<float> run(problem);
    EXPECT_TRUE(same_bits_on_any_threads([&] {
      run.flash();
      Values all = run.out.values();
      for (const auto* part : {&run.dq, &run.dk, &run.dv}) {
        const Values more = part->values();
        all.insert(all.end(), more.begin(), more.end());
      }
      return all;
    }));
  }
}

TEST(Sdpa, RefusesWhatDoesNotFit) {
  Attention<float> run({1, 4, 3, 2, 2, 2, 2});
  EXPECT_ERROR(run.math(), ErrorCode::kInvalidArgument, HasSubstr("got 4 and 3"));
  Attention<double> wide({1, 1, 1, 2, 2, 2, 2});
  EXPECT_ERROR(wide.flash(), ErrorCode::kInvalidArgument, HasSubstr("use sdpa_math"));
}

}  // namespace
}  // namespace muster::kernels::cpu
