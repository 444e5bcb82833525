#include "checkpoint/io/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/io/digest.h"
#include "core/base/hash.h"
#include "core/base/text.h"

namespace muster::checkpoint {
namespace {
using nlohmann::json;

constexpr std::string_view kFormat = "muster-checkpoint";

std::string checksum_line(std::string_view body) {
  return fmt::format("\"checksum\":\"xxh3-64:{}\"}}\n", hex64(hash_text(body)));
}

json box_json(const StoredBox& stored) {
  std::vector<std::string> checksums;
  for (const uint64_t checksum : stored.checksums) checksums.push_back(hex64(checksum));
  return {{"file", stored.file},           {"offset", stored.offset},   {"nbytes", stored.nbytes},
          {"offsets", stored.box.offsets}, {"sizes", stored.box.sizes}, {"checksums", checksums}};
}

json tensor_json(const StoredTensor& tensor) {
  json boxes = json::array();
  for (const StoredBox& stored : tensor.boxes) boxes.push_back(box_json(stored));
  return {{"name", tensor.name},
          {"dtype", std::string(to_string(tensor.dtype))},
          {"shape", tensor.global_sizes},
          {"digest", hex64(tensor.digest)},
          {"boxes", boxes}};
}

json file_json(const StoredFile& file) {
  return {{"name", file.name},
          {"nbytes", file.nbytes},
          {"checked_nbytes", file.checked_nbytes},
          {"checksum", hex64(file.checksum)}};
}

uint64_t parse_hex(const json& value) {
  const std::string& text = value.get_ref<const std::string&>();
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  MUSTER_CHECK(error == std::errc() && text.size() == 16 && end == text.data() + 16,
               ErrorCode::kCorruption, "a checksum has 16 hexadecimal digits; got \"{}\"", text);
  return number;
}

int64_t non_negative(const json& value, const char* what) {
  MUSTER_CHECK(value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{INT64_MAX},
               ErrorCode::kCorruption, "{} must be a whole number; got {}", what, value.dump());
  return value.get<int64_t>();
}

Dims parse_dims(const json& value, const char* what) {
  Dims dims;
  for (const json& n : value) dims.push_back(non_negative(n, what));
  return dims;
}

StoredFile parse_file(const json& value) {
  StoredFile file{value.at("name"), non_negative(value.at("nbytes"), "nbytes"),
                  non_negative(value.at("checked_nbytes"), "checked_nbytes"),
                  parse_hex(value.at("checksum"))};
  // A name that leaves the folder must never be opened.
  MUSTER_CHECK(
      !file.name.empty() && file.name[0] != '.' && file.name.find('/') == std::string::npos,
      ErrorCode::kCorruption, "a file name must be plain; got \"{}\"", file.name);
  MUSTER_CHECK(file.checked_nbytes <= file.nbytes, ErrorCode::kCorruption,
               "file {}: {} bytes checked of {}", file.name, file.checked_nbytes, file.nbytes);
  return file;
}

StoredBox parse_box(const json& value, const Manifest& manifest, const StoredTensor& tensor) {
  StoredBox stored{
      static_cast<size_t>(non_negative(value.at("file"), "file")),
      non_negative(value.at("offset"), "offset"),
      non_negative(value.at("nbytes"), "nbytes"),
      {parse_dims(value.at("offsets"), "offsets"), parse_dims(value.at("sizes"), "sizes")},
      {}};
  for (const json& checksum : value.at("checksums"))
    stored.checksums.push_back(parse_hex(checksum));
  MUSTER_CHECK(is_inside(stored.box, tensor.global_sizes), ErrorCode::kCorruption,
               "tensor \"{}\": box {} lies outside of {}", tensor.name, to_string(stored.box),
               to_string(tensor.global_sizes));
  const int64_t nbytes = numel(stored.box.sizes) * item_nbytes(tensor.dtype);
  const int64_t num_chunks = (nbytes + manifest.chunk_nbytes - 1) / manifest.chunk_nbytes;
  MUSTER_CHECK(
      stored.nbytes == nbytes && static_cast<int64_t>(stored.checksums.size()) == num_chunks,
      ErrorCode::kCorruption, "tensor \"{}\": box {} has {} bytes in {} chunks; got {} in {}",
      tensor.name, to_string(stored.box), nbytes, num_chunks, stored.nbytes,
      stored.checksums.size());
  MUSTER_CHECK(stored.file < manifest.files.size(), ErrorCode::kCorruption,
               "tensor \"{}\": file {} of {}", tensor.name, stored.file, manifest.files.size());
  const StoredFile& file = manifest.files[stored.file];
  MUSTER_CHECK(stored.offset >= file.checked_nbytes && stored.offset <= file.nbytes &&
                   nbytes <= file.nbytes - stored.offset,
               ErrorCode::kCorruption, "tensor \"{}\": bytes {} to {} lie outside of {}",
               tensor.name, stored.offset, stored.offset + nbytes, file.name);
  return stored;
}

StoredTensor parse_tensor(const json& value, const Manifest& manifest) {
  StoredTensor tensor;
  tensor.name = value.at("name");
  tensor.dtype = parse_dtype(value.at("dtype").get<std::string>()).value();
  tensor.global_sizes = parse_dims(value.at("shape"), "shape");
  tensor.digest = parse_hex(value.at("digest"));
  MUSTER_CHECK(catch_error([&] { return numel(tensor.global_sizes); }).ok(), ErrorCode::kCorruption,
               "tensor \"{}\": shape {} overflows", tensor.name, to_string(tensor.global_sizes));
  for (const json& box : value.at("boxes"))
    tensor.boxes.push_back(parse_box(box, manifest, tensor));
  return tensor;
}

Manifest parse_fields(const json& root) {
  Manifest manifest;
  manifest.save_id = root.at("save_id");
  manifest.step = non_negative(root.at("step"), "step");
  manifest.created = root.at("created");
  manifest.world_size = static_cast<int>(non_negative(root.at("world_size"), "world_size"));
  manifest.chunk_nbytes = non_negative(root.at("chunk_nbytes"), "chunk_nbytes");
  MUSTER_CHECK(manifest.chunk_nbytes > 0 && manifest.chunk_nbytes % 8 == 0, ErrorCode::kCorruption,
               "chunk_nbytes must be a multiple of 8; got {}", manifest.chunk_nbytes);
  manifest.mesh_json = root.at("mesh").dump();
  manifest.recipe_hash = root.at("recipe_hash");
  manifest.code_revision = root.at("code_revision");
  manifest.digest = root.at("digest");
  std::set<std::string> names;
  for (const json& file : root.at("files")) {
    manifest.files.push_back(parse_file(file));
    MUSTER_CHECK(names.insert(manifest.files.back().name).second, ErrorCode::kCorruption,
                 "file {} is listed twice", manifest.files.back().name);
  }
  for (const json& value : root.at("tensors")) {
    StoredTensor tensor = parse_tensor(value, manifest);
    MUSTER_CHECK(manifest.tensors.empty() || manifest.tensors.back().name < tensor.name,
                 ErrorCode::kCorruption, "tensors must ascend by name; got \"{}\"", tensor.name);
    manifest.tensors.push_back(std::move(tensor));
  }
  manifest.aliases = root.at("aliases").get<Aliases>();
  for (const auto& [alias, name] : manifest.aliases) {
    MUSTER_CHECK(manifest.find(name) != nullptr && manifest.find(alias) == nullptr,
                 ErrorCode::kCorruption, "alias \"{}\" must stand for a stored tensor; got \"{}\"",
                 alias, name);
  }
  return manifest;
}

std::string body_lines(const json& head, const json& files, const json& tensors) {
  std::string text = "{\n";
  for (const auto& [key, value] : head.items())
    text += fmt::format("{}:{},\n", json(key).dump(), value.dump());
  for (const auto& [key, list] : {std::pair("files", &files), std::pair("tensors", &tensors)}) {
    text += fmt::format("\"{}\":[", key);
    for (size_t i = 0; i < list->size(); ++i)
      text += fmt::format("{}\n {}", i == 0 ? "" : ",", (*list)[i].dump());
    text += "],\n";
  }
  return text;
}
}  // namespace

const StoredTensor* Manifest::find(std::string_view name) const {
  const auto it =
      std::lower_bound(tensors.begin(), tensors.end(), name,
                       [](const auto& tensor, auto wanted) { return tensor.name < wanted; });
  return it == tensors.end() || it->name != name ? nullptr : &*it;
}

const StoredFile* Manifest::find_file(std::string_view name) const {
  const auto it = std::find_if(files.begin(), files.end(),
                               [&](const StoredFile& file) { return file.name == name; });
  return it == files.end() ? nullptr : &*it;
}

int64_t Manifest::total_nbytes() const {
  int64_t total = 0;
  for (const StoredFile& file : files) total += file.nbytes;
  return total;
}

void finish_manifest(Manifest& manifest) {
  std::sort(manifest.tensors.begin(), manifest.tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  TotalDigest total;
  for (const StoredTensor& tensor : manifest.tensors) total.add(tensor.name, tensor.digest);
  manifest.digest = hex64(total.value());
}

std::string render_manifest(const Manifest& manifest) {
  const json head = {{"format", kFormat},
                     {"version", kFormatVersion},
                     {"save_id", manifest.save_id},
                     {"step", manifest.step},
                     {"created", manifest.created},
                     {"world_size", manifest.world_size},
                     {"chunk_nbytes", manifest.chunk_nbytes},
                     {"mesh", json::parse(manifest.mesh_json)},
                     {"recipe_hash", manifest.recipe_hash},
                     {"code_revision", manifest.code_revision},
                     {"digest", manifest.digest},
                     {"aliases", manifest.aliases}};
  json files = json::array();
  for (const StoredFile& file : manifest.files) files.push_back(file_json(file));
  json tensors = json::array();
  for (const StoredTensor& tensor : manifest.tensors) tensors.push_back(tensor_json(tensor));
  const std::string body = body_lines(head, files, tensors);
  return body + checksum_line(body);
}

Result<Manifest> parse_manifest(std::string_view text) {
  const size_t length = checksum_line("").size();
  if (text.size() <= length ||
      text.substr(text.size() - length) != checksum_line(text.substr(0, text.size() - length))) {
    return make_error(ErrorCode::kCorruption,
                      "manifest: the last line must be the checksum of all others; got {} bytes "
                      "that do not match it",
                      text.size());
  }
  try {
    const json root = json::parse(text);
    if (root.at("format") != kFormat) {
      return make_error(ErrorCode::kCorruption, "manifest: format must be \"{}\"; got {}", kFormat,
                        root.at("format").dump());
    }
    const int64_t version = non_negative(root.at("version"), "version");
    if (version > kFormatVersion) {
      return make_error(ErrorCode::kFailedPrecondition,
                        "manifest: this program reads versions up to {}; got {}", kFormatVersion,
                        version);
    }
    return parse_fields(root);
  } catch (const json::exception& error) {
    return make_error(ErrorCode::kCorruption,
                      "manifest: a field is missing or of the wrong kind; "
                      "got {}",
                      error.what());
  } catch (const Error& error) {
    return make_error(ErrorCode::kCorruption, "manifest: {}", error.message());
  }
}
}  // namespace muster::checkpoint
