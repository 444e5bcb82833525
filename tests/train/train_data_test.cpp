#include <fstream>
#include <set>

#include "core/base/file_system.h"
#include "tests/support/matchers.h"
#include "train/permutation.h"
#include "train/run_records.h"
#include "train/text_data.h"

namespace muster {
namespace {
TEST(Permutation, VisitsEveryIndexOnce) {
  for (const int64_t n : {1, 2, 3, 5, 64, 1000, 4097}) {
    const Permutation order(n, 42);
    std::set<int64_t> seen;
    for (int64_t i = 0; i < n; ++i) seen.insert(order(i));
    EXPECT_EQ(static_cast<int64_t>(seen.size()), n);
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), n - 1);
  }
}

TEST(Permutation, DependsOnTheKey) {
  const Permutation a(1000, 1), b(1000, 2);
  int equal = 0;
  for (int64_t i = 0; i < 1000; ++i) equal += a(i) == b(i) ? 1 : 0;
  EXPECT_LT(equal, 20);
}

TEST(SamplesOfRank, CoverTheGlobalBatchOnceForEveryWorldSize) {
  for (const int world : {1, 2, 3, 4, 7}) {
    std::set<int64_t> seen;
    for (int rank = 0; rank < world; ++rank) {
      for (const int64_t sample : samples_of_rank(100, 10, rank, world))
        EXPECT_TRUE(seen.insert(sample).second);
    }
    EXPECT_EQ(seen.size(), 10u);
    EXPECT_EQ(*seen.begin(), 100);
    EXPECT_EQ(*seen.rbegin(), 109);
  }
}

class TextFiles : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    std::ofstream(directory_.file(name)) << text;
  }
  Recipe::Data data() {
    Recipe::Data data;
    data.files = {directory_.file("*.txt")};
    data.seed = 3;
    return data;
  }
  TempDirectory directory_;
};

TEST_F(TextFiles, TargetsAreTheTokensShiftedByOne) {
  write("a.txt", "abcdefghijklmnopqrstuvwxyz");
  const TextData text = TextData::open(data(), 5).value();
  EXPECT_EQ(text.num_windows(), 5);
  const TextData::Batch batch = text.batch({0, 1, 2});
  EXPECT_EQ(batch.tokens.describe(), "i64[3, 5]");
  for (int64_t i = 0; i < 15; ++i) {
    EXPECT_EQ(batch.targets.data<int64_t>()[i], batch.tokens.data<int64_t>()[i] + 1);
  }
}

TEST_F(TextFiles, AnEpochShowsEveryWindowOnceAndTheNextAnotherOrder) {
  std::string text;
  for (int i = 0; i < 201; ++i) text += static_cast<char>(i);
  write("a.txt", text);
  const TextData corpus = TextData::open(data(), 2).value();
  std::vector<int64_t> first, second;
  for (int64_t sample = 0; sample < 200; ++sample) {
    const int64_t window = corpus.batch({sample}).tokens.data<int64_t>()[0] / 2;
    (sample < 100 ? first : second).push_back(window);
  }
  EXPECT_NE(first, second);
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 100u);
  EXPECT_EQ(std::set<int64_t>(second.begin(), second.end()).size(), 100u);
}

TEST_F(TextFiles, FingerprintFollowsTheText) {
  write("a.txt", "some text that is long enough");
  const std::string before = TextData::open(data(), 4)->fingerprint();
  EXPECT_EQ(TextData::open(data(), 4)->fingerprint(), before);
  write("b.txt", "!");
  EXPECT_NE(TextData::open(data(), 4)->fingerprint(), before);
}

TEST_F(TextFiles, TooLittleTextIsRefused) {
  write("a.txt", "abc");
  EXPECT_THAT(TextData::open(data(), 8),
              testing::FailsWith(ErrorCode::kInvalidArgument, ::testing::HasSubstr("got 3")));
}

TEST(LineFile, EndsATornLineBeforeItGoesOn) {
  const TempDirectory directory;
  const std::string path = directory.file("metrics.jsonl");
  std::ofstream(path) << "{\"step\":1}\n{\"st";
  LineFile file = LineFile::open(path).value();
  ASSERT_OK(file.append("{\"step\":2}"));
  EXPECT_EQ(read_text(real_file_system(), path).value(), "{\"step\":1}\n{\"st\n{\"step\":2}\n");
}
}  // namespace
}  // namespace muster
