#include "checkpoint/io/manifest.h"

#include <fmt/format.h>

#include "checkpoint/io/save_session.h"
#include "core/base/file_system.h"
#include "core/base/hash.h"
#include "core/base/text.h"
#include "tests/support/matchers.h"

namespace muster::checkpoint {
namespace {
using ::muster::testing::FailsWith;
using ::testing::HasSubstr;

Manifest example() {
  Manifest manifest;
  manifest.save_id = std::string(32, 'c');
  manifest.step = 12;
  manifest.created = "2026-01-31T12:00:00.000Z";
  manifest.world_size = 2;
  manifest.chunk_nbytes = 16;
  manifest.mesh_json = R"({"fsdp":2})";
  manifest.recipe_hash = hex64(1);
  manifest.code_revision = "r\"1";
  manifest.files = {{"rank-00000.safetensors", 128, 96, 7}, {"train.json", 10, 10, 8}};
  manifest.tensors = {{"w", DType::kF32, {2, 4}, 99, {{0, 96, 32, full_box({2, 4}), {1, 2}}}},
                      {"a", DType::kI64, {}, 98, {{0, 96, 8, full_box({}), {3}}}}};
  manifest.aliases = {{"head", "w"}};
  finish_manifest(manifest);
  return manifest;
}

// A manifest with one part of its text exchanged and a checksum that fits again.
std::string changed(const std::string& from, const std::string& to) {
  std::string text = render_manifest(example());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  text.erase(text.rfind("\"checksum\""));
  return text + fmt::format("\"checksum\":\"xxh3-64:{}\"}}\n", hex64(hash_text(text)));
}

TEST(Manifest, RendersAndParsesToTheSame) {
  const auto parsed = parse_manifest(render_manifest(example()));
  ASSERT_OK(parsed);
  EXPECT_EQ(*parsed, example());
  EXPECT_EQ(parsed->find("w")->digest, 99u);
  EXPECT_EQ(parsed->find("head"), nullptr);
  EXPECT_EQ(parsed->find_file("train.json")->nbytes, 10);
  EXPECT_EQ(parsed->total_nbytes(), 138);
}

TEST(Manifest, TextIsStable) {
  EXPECT_EQ(render_manifest(example()),
            R"({
"aliases":{"head":"w"},
"chunk_nbytes":16,
"code_revision":"r\"1",
"created":"2026-01-31T12:00:00.000Z",
"digest":"315b6084b475113d",
"format":"muster-checkpoint",
"mesh":{"fsdp":2},
"recipe_hash":"0000000000000001",
"save_id":"cccccccccccccccccccccccccccccccc",
"step":12,
"version":1,
"world_size":2,
"files":[
 {"checked_nbytes":96,"checksum":"0000000000000007","name":"rank-00000.safetensors","nbytes":128},
 {"checked_nbytes":10,"checksum":"0000000000000008","name":"train.json","nbytes":10}],
"tensors":[
 {"boxes":[{"checksums":["0000000000000003"],"file":0,"nbytes":8,"offset":96,"offsets":[],"sizes":[]}],"digest":"0000000000000062","dtype":"i64","name":"a","shape":[]},
 {"boxes":[{"checksums":["0000000000000001","0000000000000002"],"file":0,"nbytes":32,"offset":96,"offsets":[0,0],"sizes":[2,4]}],"digest":"0000000000000063","dtype":"f32","name":"w","shape":[2,4]}],
"checksum":"xxh3-64:cd5790583f489f45"}
)");
}

TEST(Manifest, TheExampleInTheDocumentationIsReal) {
  const auto text =
      read_text(real_file_system(), path_join(MUSTER_SOURCE_DIR, "docs/checkpoint_format.md"));
  ASSERT_OK(text);
  EXPECT_THAT(*text, HasSubstr("```\n" + render_manifest(example()) + "```\n"));
}

TEST(Manifest, EveryCutIsNoticed) {
  const std::string text = render_manifest(example());
  for (size_t n = 0; n < text.size(); ++n)
    ASSERT_FALSE(parse_manifest(std::string_view(text).substr(0, n)).ok()) << n;
  EXPECT_FALSE(parse_manifest(text + "\n").ok());
}

TEST(Manifest, ANewerVersionIsRefusedByName) {
  EXPECT_THAT(parse_manifest(changed("\"version\":1", "\"version\":2")),
              FailsWith(ErrorCode::kFailedPrecondition, HasSubstr("versions up to 1; got 2")));
}

TEST(Manifest, ValuesThatCannotBeAreNamed) {
  const auto fails = [](const std::string& from, const std::string& to, const std::string& text) {
    EXPECT_THAT(parse_manifest(changed(from, to)),
                FailsWith(ErrorCode::kCorruption, HasSubstr(text)));
  };
  fails("muster-checkpoint", "other", "format must be");
  fails("\"step\":12", "\"step\":-12", "step must be a whole number; got -12");
  fails("\"step\":12", "\"step\":1.5", "step must be a whole number; got 1.5");
  fails("\"step\":12,\n", "", "step");
  fails("\"chunk_nbytes\":16", "\"chunk_nbytes\":0", "multiple of 8; got 0");
  fails("\"chunk_nbytes\":16", "\"chunk_nbytes\":32", "has 32 bytes in 1 chunks; got 32 in 2");
  fails("\"name\":\"train.json\"", "\"name\":\"../x\"", "a file name must be plain; got \"../x\"");
  fails("\"name\":\"train.json\"", "\"name\":\"rank-00000.safetensors\"", "is listed twice");
  fails("\"checked_nbytes\":10", "\"checked_nbytes\":11", "11 bytes checked of 10");
  fails("\"dtype\":\"f32\"", "\"dtype\":\"f31\"", "f31");
  fails("\"sizes\":[2,4]", "\"sizes\":[2,5]", "lies outside of [2, 4]");
  fails("\"shape\":[2,4]", "\"shape\":[4294967296,4294967296]", "tensor \"w\"");
  fails("\"file\":0,\"nbytes\":32", "\"file\":9,\"nbytes\":32", "file 9 of 2");
  fails("\"nbytes\":32,\"offset\":96", "\"nbytes\":32,\"offset\":104", "lie outside of rank-00000");
  fails("\"nbytes\":32,\"offset\":96", "\"nbytes\":32,\"offset\":90", "lie outside of rank-00000");
  fails("{\"head\":\"w\"}", "{\"head\":\"x\"}", "alias \"head\" must stand for a stored tensor");
  fails("{\"head\":\"w\"}", "{\"w\":\"a\"}", "alias \"w\"");
  fails("\"name\":\"a\"", "\"name\":\"z\"", "ascend by name");
  fails("0000000000000062", "000000000000006", "16 hexadecimal digits");
}

TEST(Manifest, MergingNamesTheTensorOnWhichRanksDisagree) {
  WrittenFiles one;
  one.files = {{"rank-00000.safetensors", 128, 96, 7}};
  one.boxes = {{"w", DType::kF32, {4}, 5, {0, 96, 8, {{0}, {2}}, {1}}}};
  WrittenFiles two = one;
  two.boxes[0].stored.box = {{2}, {2}};
  Manifest manifest;
  ASSERT_OK(merge_written({one, two}, manifest));
  EXPECT_EQ(manifest.tensors[0].boxes[1].file, 1u);
  two.boxes[0].dtype = DType::kI32;
  Manifest other;
  EXPECT_THAT(merge_written({one, two}, other),
              FailsWith(ErrorCode::kMismatch,
                        HasSubstr("tensor \"w\" must be the same on all ranks; got f32 [4] on "
                                  "global rank 0 and i32 [4] on global rank 1")));
  Manifest third;
  EXPECT_THAT(merge_written({one}, third),
              FailsWith(ErrorCode::kMismatch, HasSubstr("2 of 4 elements")));
}
}  // namespace
}  // namespace muster::checkpoint
