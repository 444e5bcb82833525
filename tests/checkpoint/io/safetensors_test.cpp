#include "checkpoint/io/safetensors.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/matchers.h"

namespace muster::checkpoint {
namespace {
using ::muster::testing::FailsWith;
using nlohmann::json;
using ::testing::HasSubstr;

std::string golden(const std::string& name) {
  return path_join(MUSTER_SOURCE_DIR, "tests/golden/checkpoints/" + name);
}

std::vector<json> golden_lines(const std::string& name) {
  std::ifstream file(golden(name));
  std::vector<json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
  return lines;
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<int>(byte));
  return text;
}

// Opens a file and reads all tensors: what a complete load does.
Result<void> read_all(const std::string& path) {
  FileSystem& fs = real_file_system();
  const SafetensorsHeader header = MUSTER_TRY(read_safetensors_header(fs, path));
  for (const SafetensorsEntry& entry : header.tensors)
    MUSTER_TRY(read_safetensors_tensor(fs, path, header, entry));
  return {};
}

Result<SafetensorsHeader> parse(const std::string& text, int64_t data_nbytes = 8) {
  return parse_safetensors_header(text, data_nbytes);
}

constexpr const char* kEntry = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

TEST(Safetensors, ReadsEveryUnusualValidFile) {
  const std::vector<json> lines = golden_lines("safetensors.jsonl");
  ASSERT_EQ(lines.size(), 18u);
  for (const json& line : lines) {
    SCOPED_TRACE(line["id"]);
    const std::string path = golden(line["file"]);
    FileSystem& fs = real_file_system();
    const Result<SafetensorsHeader> header = read_safetensors_header(fs, path);
    ASSERT_OK(header);
    ASSERT_EQ(header->tensors.size(), line["tensors"].size());
    for (const auto& [name, wanted] : line["tensors"].items()) {
      const SafetensorsEntry* entry = header->find(name);
      ASSERT_NE(entry, nullptr) << name;
      EXPECT_EQ(entry->dtype, wanted["dtype"]);
      EXPECT_EQ(json(entry->shape), wanted["shape"]);
      EXPECT_EQ(entry->begin, wanted["begin"]);
      EXPECT_EQ(entry->end, wanted["end"]);
      const auto bytes = read_safetensors_tensor(fs, path, *header, *entry);
      ASSERT_OK(bytes);
      // The golden file keeps at most 64 bytes of each tensor.
      EXPECT_EQ(hex(std::span(*bytes).first(std::min<size_t>(bytes->size(), 64))), wanted["data"]);
    }
    const json metadata = line.value("metadata", json());
    EXPECT_EQ(json(header->metadata), metadata.is_null() ? json::object() : metadata);
  }
}

TEST(Safetensors, RefusesEveryMalformedFileButNullMetadata) {
  const std::vector<json> lines = golden_lines("safetensors_bad.jsonl");
  ASSERT_EQ(lines.size(), 84u);
  for (const json& line : lines) {
    SCOPED_TRACE(line["id"].get<std::string>() + ": " + line["fault"].get<std::string>());
    const Result<void> result = read_all(golden(line["file"]));
    if (line["id"] == "metadata_null")
      EXPECT_OK(result);
    else
      EXPECT_THAT(result, FailsWith(ErrorCode::kCorruption, HasSubstr("safetensors")));
  }
}

TEST(Safetensors, TenThousandTensorsOnOneRangeAreAnOverlap) {
  std::string text = "{";
  for (int i = 0; i < 10000; ++i) {
    text += fmt::format(R"({}"{}":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                        i == 0 ? "" : ",", i);
  }
  EXPECT_THAT(parse(text + "}"), FailsWith(ErrorCode::kCorruption, HasSubstr("an overlap")));
}

TEST(Safetensors, ErrorsNameTheTensorAndTheRule) {
  const auto fault = [](const std::string& entry) {
    const Result<SafetensorsHeader> result = parse("{\"w\":" + entry + "}");
    return result.ok() ? std::string("ok") : std::string(result.error().message());
  };
  EXPECT_THAT(fault(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"),
              HasSubstr("tensor \"w\" begins at 8 and ends at 0"));
  EXPECT_THAT(fault(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
              HasSubstr("tensor \"w\" is [3] of F32 and needs 12 bytes; its range has 8"));
  EXPECT_THAT(fault(R"({"dtype":"F31","shape":[2],"data_offsets":[0,8]})"),
              HasSubstr("unknown dtype \"F31\""));
  EXPECT_THAT(fault(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})"),
              HasSubstr("overflows: [4294967296, 4294967296]"));
  EXPECT_THAT(fault(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
              HasSubstr("shape must be a list of integers; got a negative number"));
  EXPECT_THAT(fault(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"),
              HasSubstr("no plain integer"));
  EXPECT_THAT(
      fault(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8e0]})"),
      HasSubstr("data_offsets must be two integers; got a number that is no plain integer"));
  EXPECT_THAT(fault(R"({"dtype":"F32","shape":[2]})"),
              HasSubstr("tensor \"w\" has no data_offsets"));
  EXPECT_THAT(fault(R"({"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]})"),
              HasSubstr("has the field \"shape\" twice"));
}

TEST(Safetensors, JsonErrorsSayWhichByte) {
  EXPECT_THAT(parse(R"({"x":{"dtype":"F32",,"shape":[2],"data_offsets":[0,8]}})"),
              FailsWith(ErrorCode::kCorruption, HasSubstr("no valid JSON at byte 21")));
}

TEST(Safetensors, ANulEndsNothing) {
  const std::string text = kEntry;
  EXPECT_THAT(parse(text + std::string(1, '\0') + "}"),
              FailsWith(ErrorCode::kCorruption, HasSubstr("a NUL at byte 54")));
  EXPECT_THAT(parse(text + std::string(3, '\0')),
              FailsWith(ErrorCode::kCorruption, HasSubstr("a NUL at byte 54")));
}

TEST(Safetensors, NestingIsLimitedToThreeLevels) {
  EXPECT_OK(parse(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":[1]}})"));
  EXPECT_THAT(parse(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":[[1]]}})"),
              FailsWith(ErrorCode::kCorruption, HasSubstr("nests deeper than 3 levels")));
}

TEST(Safetensors, UnknownFieldsAreIgnoredWithAWarning) {
  const auto header =
      parse(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"device":{"kind":"cpu"}}})");
  ASSERT_OK(header);
  EXPECT_THAT(header->warnings, ::testing::ElementsAre(HasSubstr("unknown field \"device\"")));
}

TEST(Safetensors, HolesAndTrailingBytesAreRefused) {
  EXPECT_THAT(parse(kEntry, 12), FailsWith(ErrorCode::kCorruption, HasSubstr("end at 12")));
  EXPECT_THAT(parse(kEntry, 4), FailsWith(ErrorCode::kCorruption, HasSubstr("end at 4")));
  EXPECT_THAT(parse(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})"),
              FailsWith(ErrorCode::kCorruption, HasSubstr("must begin at 0")));
}

TEST(Safetensors, AHeaderLengthThatLiesAllocatesNothing) {
  const TempDirectory dir;
  const std::string path = dir.file("lie.safetensors");
  std::string bytes(1024, ' ');
  const uint64_t lie = 99'000'000;
  std::memcpy(bytes.data(), &lie, sizeof(lie));
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_THAT(read_safetensors_header(real_file_system(), path),
              FailsWith(ErrorCode::kCorruption,
                        HasSubstr("a header of 99000000 bytes does not fit a file of 1024")));
}

TEST(Safetensors, WritesWideTypesFirstAlignedAndReadableAgain) {
  const TempDirectory dir;
  const std::string path = dir.file("out.safetensors");
  const std::vector<std::byte> data(64, std::byte{1});
  const auto bytes = [&](size_t n) { return std::span(data).first(n); };
  const std::vector<SafetensorsTensor> tensors{
      {"flag", "BOOL", {3}, bytes(3)}, {"b", "F32", {2}, bytes(8)},
      {"a", "F32", {1, 2}, bytes(8)},  {"half", "BF16", {5}, bytes(10)},
      {"scalar", "I64", {}, bytes(8)}, {"empty", "F64", {0, 7}, bytes(0)}};
  ASSERT_OK(write_safetensors(real_file_system(), path, {{"format", "pt"}}, tensors));
  const auto header = read_safetensors_header(real_file_system(), path);
  ASSERT_OK(header);
  std::vector<std::string> order;
  for (const SafetensorsEntry& entry : header->tensors) {
    order.push_back(entry.name);
    EXPECT_EQ((header->data_begin + entry.begin) % (*safetensors_bits(entry.dtype) / 8), 0)
        << entry.name;
  }
  EXPECT_EQ(order, (std::vector<std::string>{"scalar", "empty", "a", "b", "half", "flag"}));
  EXPECT_EQ(header->data_begin % 8, 0);
  EXPECT_EQ(header->metadata.at("format"), "pt");
  ASSERT_OK(read_all(path));
}

TEST(Safetensors, AFileWithoutTensorsIsValid) {
  const TempDirectory dir;
  const std::string path = dir.file("none.safetensors");
  ASSERT_OK(write_safetensors(real_file_system(), path, {{"a", "b"}}, {}));
  const auto header = read_safetensors_header(real_file_system(), path);
  ASSERT_OK(header);
  EXPECT_TRUE(header->tensors.empty());
}

TEST(Safetensors, TheWriterRefusesWhatReadersWould) {
  const std::vector<std::byte> data(8);
  const auto render = [&](const std::string& name, const std::string& dtype, const Dims& shape) {
    const std::vector<SafetensorsTensor> one{{name, dtype, shape, data}};
    return render_safetensors_header({}, one);
  };
  EXPECT_THAT(render("__metadata__", "F32", {2}),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("cannot be called")));
  EXPECT_THAT(render("x", "F31", {2}), FailsWith(ErrorCode::kInvalidArgument, HasSubstr("F31")));
  EXPECT_THAT(render("x", "F32", {3}),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("8 bytes")));
  EXPECT_THAT(render("\xff", "F32", {2}),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("UTF-8")));
  const std::vector<SafetensorsTensor> twice{{"x", "F32", {2}, data}, {"x", "F32", {2}, data}};
  EXPECT_THAT(render_safetensors_header({}, twice),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("\"x\" twice")));
}

TEST(Safetensors, TheWriterRefusesAHeaderAboveTheLimit) {
  EXPECT_THAT(render_safetensors_header({{"note", std::string(100'000'000, 'x')}}, {}),
              FailsWith(ErrorCode::kInvalidArgument, HasSubstr("at most 100000000 bytes")));
}

TEST(Safetensors, AFileCanBeReplacedByWhatWasReadFromIt) {
  const TempDirectory dir;
  const std::string path = dir.file("same.safetensors");
  const std::vector<std::byte> data(8, std::byte{7});
  const std::vector<SafetensorsTensor> tensors{{"x", "F32", {2}, data}};
  ASSERT_OK(write_safetensors(real_file_system(), path, {}, tensors));
  const auto before = real_file_system().read(path);
  ASSERT_OK(write_safetensors(real_file_system(), path, {}, tensors));
  EXPECT_EQ(*real_file_system().read(path), *before);
  EXPECT_EQ(*real_file_system().list(dir.path()), std::vector<std::string>{"same.safetensors"});
}

TEST(Safetensors, OutputOfTheWriterIsByteStable) {
  const std::vector<std::byte> data(8);
  const std::vector<SafetensorsTensor> tensors{{"x", "F32", {2}, data}};
  const auto header = render_safetensors_header({{"format", "pt"}}, tensors);
  ASSERT_OK(header);
  EXPECT_EQ(
      header->substr(8),
      R"({"__metadata__":{"format":"pt"},"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})"
      "   ");
  EXPECT_EQ((*header)[0], static_cast<char>(header->size() - 8));
}
}  // namespace
}  // namespace muster::checkpoint
