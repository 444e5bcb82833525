#include "core/base/stream_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace muster {
namespace {
TEST(StreamCopy, CopiesExactlyTheBytesAtAnyAlignmentAndLength) {
  std::vector<uint8_t> source(1024);
  std::iota(source.begin(), source.end(), uint8_t{1});
  constexpr uint8_t kUntouched = 255;
  for (const int64_t nbytes : {0, 1, 15, 63, 64, 65, 127, 128, 200, 777}) {
    for (const int64_t shift : {0, 1, 8, 16, 63}) {
      for (const int64_t from : {0, 3, 32}) {
        std::vector<uint8_t> target(1024, kUntouched);
        stream_bytes(reinterpret_cast<std::byte*>(target.data() + shift),
                     reinterpret_cast<const std::byte*>(source.data() + from), nbytes);
        stream_fence();
        const auto begin = target.begin() + shift;
        ASSERT_TRUE(std::equal(begin, begin + nbytes, source.begin() + from))
            << nbytes << " bytes from " << from << " to " << shift;
        const auto is_untouched = [](uint8_t byte) { return byte == kUntouched; };
        ASSERT_TRUE(std::all_of(target.begin(), begin, is_untouched)) << nbytes << " " << shift;
        ASSERT_TRUE(std::all_of(begin + nbytes, target.end(), is_untouched))
            << nbytes << " " << shift;
      }
    }
  }
}
}  // namespace
}  // namespace muster
