#pragma once
/// What the reported cases share: a fixture that runs each case on every backend with real peers,
/// and tensors of one value.

#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include "tests/support_ranks/ranks.h"

namespace muster::testing {

class OnEveryBackend : public ::testing::TestWithParam<BackendMember> {
 protected:
  static void run_ranks(int world, const std::function<void(RankContext&)>& body) {
    testing::run_ranks(world, body, 60s, GetParam().name);
  }
  static std::unique_ptr<World> spawn_ranks(int world, const std::string& body) {
    return std::make_unique<World>(world, body, 60s, GetParam().name);
  }
};

inline Tensor filled(int64_t count, float value) {
  Tensor tensor = empty_from_spec(TensorSpec::contiguous({count}, DType::kF32));
  std::fill_n(tensor.data<float>(), count, value);
  return tensor;
}

inline void expect_all(const Tensor& tensor, float value) {
  for (int64_t i = 0; i < tensor.numel(); ++i)
    ASSERT_EQ(tensor.data<float>()[i], value) << "element " << i;
}

}  // namespace muster::testing

/// A suite of TEST_P cases that run once for each backend that joined.
#define SUITE_ON_EVERY_BACKEND(suite)                                                 \
  class suite : public ::muster::testing::OnEveryBackend {};                          \
  INSTANTIATE_TEST_SUITE_P(Backends, suite,                                           \
                           ::testing::ValuesIn(::muster::testing::backend_members()), \
                           [](const auto& p) { return p.param.name; })
