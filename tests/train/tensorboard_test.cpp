// Event files, read back by a reader of this file's own and, where it is installed, TensorBoard's.
#include "train/tensorboard.h"

#include <gmock/gmock.h>
#include <sys/wait.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/file_system.h"
#include "tests/support/matchers.h"

namespace muster {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// ---- A reader that shares nothing with the writer -----------------------------------------------

// CRC-32C bit by bit, as it is defined: reflected division by 0x1edc6f41.
uint32_t slow_crc(std::string_view bytes) {
  uint32_t crc = 0xffffffffU;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82f63b78U : crc >> 1;
  }
  return ~crc;
}

uint32_t slow_masked(std::string_view bytes) {
  const uint32_t crc = slow_crc(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

template <typename T>
T fixed(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));  // little-endian, as the file
  return value;
}

// The records of a file; stops at the first damaged one.
std::vector<std::string> records_of(std::string_view file) {
  std::vector<std::string> records;
  while (file.size() >= 16) {
    const auto length = fixed<uint64_t>(file);
    if (fixed<uint32_t>(file.substr(8)) != slow_masked(file.substr(0, 8))) break;
    if (file.size() < 16 + length) break;
    const std::string_view record = file.substr(12, length);
    if (fixed<uint32_t>(file.substr(12 + length)) != slow_masked(record)) break;
    records.emplace_back(record);
    file.remove_prefix(16 + length);
  }
  return records;
}

struct Field {
  uint64_t number = 0;
  uint64_t integer = 0;   // wire types 0, 1, 5
  std::string_view text;  // wire type 2
};

uint64_t varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0; !bytes.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) break;
  }
  return value;
}

std::vector<Field> fields_of(std::string_view message) {
  std::vector<Field> fields;
  while (!message.empty()) {
    const uint64_t key = varint(message);
    Field field;
    field.number = key >> 3;
    size_t size = 0;
    switch (key & 7) {
      case 0:
        field.integer = varint(message);
        break;
      case 1:
        field.integer = fixed<uint64_t>(message);
        size = 8;
        break;
      case 2:
        size = varint(message);
        field.text = message.substr(0, size);
        break;
      case 5:
        field.integer = fixed<uint32_t>(message);
        size = 4;
        break;
      default:
        ADD_FAILURE() << "wire type " << (key & 7);
        return fields;
    }
    message.remove_prefix(size);
    fields.push_back(field);
  }
  return fields;
}

std::optional<Field> field_of(std::string_view message, uint64_t number) {
  for (const Field& field : fields_of(message)) {
    if (field.number == number) return field;
  }
  return std::nullopt;
}

int64_t step_of(std::string_view event) {
  const std::optional<Field> step = field_of(event, 2);
  return step ? static_cast<int64_t>(step->integer) : 0;
}

std::vector<std::string> events_of(const std::string& path) {
  const Result<std::string> text = read_text(real_file_system(), path);
  EXPECT_OK(text);
  return records_of(text.value_or(""));
}

// ---- Cases --------------------------------------------------------------------------------------

uint32_t crc_of(std::string_view text) {
  const std::span<const char> chars(text.data(), text.size());
  return crc32c(std::as_bytes(chars));
}

TEST(Crc32c, MatchesTheValuesOfRfc3720) {
  EXPECT_EQ(crc_of("123456789"), 0xe3069283U);
  EXPECT_EQ(crc_of(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc_of(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc_of(""), 0U);
}

TEST(TensorBoardWriter, WritesScalarsThatReadBack) {
  const TempDirectory directory;
  auto writer = TensorBoardWriter::open(directory.file("tb/run"), 3);
  ASSERT_OK(writer);
  EXPECT_THAT((*writer)->path(), HasSubstr("/tb/run/events.out.tfevents."));
  ASSERT_OK((*writer)->scalar("train/loss", 3, 2.25));
  const TensorBoardScalar two[] = {{"lr", 1e-3}, {"tokens/s", 54321.0}};
  ASSERT_OK((*writer)->scalars(int64_t{1} << 40, two));
  const std::vector<std::string> events = events_of((*writer)->path());
  ASSERT_THAT(events, SizeIs(4));

  EXPECT_EQ(field_of(events[0], 3)->text, "brain.Event:2");
  EXPECT_EQ(step_of(events[0]), 0);
  EXPECT_EQ(step_of(events[1]), 3);
  EXPECT_EQ(field_of(field_of(events[1], 7)->text, 1)->integer, 1U);  // session start
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  EXPECT_NEAR(std::bit_cast<double>(field_of(events[2], 1)->integer), now, 60);

  EXPECT_EQ(step_of(events[2]), 3);
  const std::string_view loss = field_of(field_of(events[2], 5)->text, 1)->text;
  EXPECT_EQ(field_of(loss, 1)->text, "train/loss");
  EXPECT_EQ(std::bit_cast<float>(static_cast<uint32_t>(field_of(loss, 2)->integer)), 2.25F);

  EXPECT_EQ(step_of(events[3]), int64_t{1} << 40);
  const std::vector<Field> values = fields_of(field_of(events[3], 5)->text);
  ASSERT_THAT(values, SizeIs(2));
  EXPECT_EQ(field_of(values[1].text, 1)->text, "tokens/s");
  EXPECT_EQ(std::bit_cast<float>(static_cast<uint32_t>(field_of(values[0].text, 2)->integer)),
            1e-3F);
}

TEST(TensorBoardWriter, KeepsWholeRecordsWhenTheLastIsTorn) {
  const TempDirectory directory;
  const std::string path = [&] {
    auto writer = TensorBoardWriter::open(directory.path());
    EXPECT_OK(writer);
    EXPECT_OK((*writer)->scalar("a", 1, 1.0));
    EXPECT_OK((*writer)->scalar("a", 2, 2.0));
    return (*writer)->path();
  }();
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 5);
  EXPECT_THAT(events_of(path), SizeIs(3));
}

TEST(TensorBoardWriter, BeginsAFileAtEachStart) {
  const TempDirectory directory;
  auto first = TensorBoardWriter::open(directory.path());
  auto second = TensorBoardWriter::open(directory.path());
  ASSERT_OK(first);
  ASSERT_OK(second);
  EXPECT_NE((*first)->path(), (*second)->path());
}

TEST(TensorBoardWriter, SaysWhichFileCannotBeWritten) {
  EXPECT_THAT(TensorBoardWriter::open("/proc/none"),
              testing::FailsWith(ErrorCode::kIo, HasSubstr("/proc/none")));
}

// A Python that can import tensorboard: $MUSTER_TEST_PYTHON, or the one in the path.
std::string python_with_tensorboard() {
  const char* chosen = std::getenv("MUSTER_TEST_PYTHON");
  const std::string python = chosen != nullptr ? chosen : "python3";
  const std::string import = python + " -c 'import tensorboard' > /dev/null 2>&1";
  return std::system(import.c_str()) == 0 ? python : "";
}

TEST(TensorBoardWriter, IsReadByTensorBoardWhichDropsWhatARestartDidAgain) {
  const std::string python = python_with_tensorboard();
  if (python.empty()) GTEST_SKIP() << "no tensorboard in $MUSTER_TEST_PYTHON or python3";
  const TempDirectory directory;
  {
    auto first = TensorBoardWriter::open(directory.path(), 1);
    ASSERT_OK(first);
    for (int step = 1; step <= 5; ++step) ASSERT_OK((*first)->scalar("loss", step, 10.0 - step));
    auto second = TensorBoardWriter::open(directory.path(), 4);
    ASSERT_OK(second);
    for (int step = 4; step <= 6; ++step) ASSERT_OK((*second)->scalar("loss", step, 20.0 - step));
  }
  const std::string command = fmt::format("timeout 120 {} {}/tests/train/read_tensorboard.py {}",
                                          python, MUSTER_SOURCE_DIR, directory.path());
  std::string out;
  FILE* pipe = ::popen(command.c_str(), "r");
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) out.append(buffer, n);
  ASSERT_EQ(::pclose(pipe), 0) << out;
  const nlohmann::json loss = nlohmann::json::parse(out)["loss"];
  const nlohmann::json expected = {{1, 9.0}, {2, 8.0}, {3, 7.0}, {4, 16.0}, {5, 15.0}, {6, 14.0}};
  EXPECT_EQ(loss, expected);
}
}  // namespace
}  // namespace muster
