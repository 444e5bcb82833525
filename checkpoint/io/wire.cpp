#include "checkpoint/io/wire.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/base/text.h"

namespace muster::checkpoint {
namespace {
using nlohmann::json;

uint64_t from_hex(const std::string& text, size_t at) {
  return std::stoull(text.substr(at, 16), nullptr, 16);
}

// A box travels as a list, and its checksums as one text: 16 bytes a chunk.
json box_to_json(const WrittenBox& box) {
  std::string checksums;
  for (const uint64_t checksum : box.stored.checksums) checksums += hex64(checksum);
  return json::array({box.name, static_cast<int>(box.dtype), box.global_sizes,
                      box.stored.box.offsets, box.stored.box.sizes, box.stored.file,
                      box.stored.offset, box.stored.nbytes, hex64(box.digest_sum), checksums});
}

WrittenBox box_from_json(const json& value) {
  WrittenBox box;
  box.name = value.at(0);
  box.dtype = static_cast<DType>(value.at(1).get<int>());
  box.global_sizes = value.at(2).get<Dims>();
  box.stored.box = {value.at(3).get<Dims>(), value.at(4).get<Dims>()};
  box.stored.file = value.at(5);
  box.stored.offset = value.at(6);
  box.stored.nbytes = value.at(7);
  box.digest_sum = from_hex(value.at(8), 0);
  const std::string checksums = value.at(9);
  for (size_t at = 0; at + 16 <= checksums.size(); at += 16)
    box.stored.checksums.push_back(from_hex(checksums, at));
  return box;
}
}  // namespace

json error_to_json(const Error& error) {
  return {{"ok", false},
          {"code", static_cast<int>(error.code())},
          {"message", error.message()},
          {"context", error.context()}};
}

Result<void> check_reply(const json& reply, const std::string& prefix) {
  if (reply.value("ok", false)) return {};
  Error error = make_error(static_cast<ErrorCode>(reply.value("code", 0)), "{}{}", prefix,
                           reply.value("message", ""));
  for (const std::string& line : reply.value("context", std::vector<std::string>()))
    error.add_context(line);
  return error;
}

Result<json> parse_reply(const std::string& text) {
  json reply = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (reply.is_object()) return reply;
  return make_error(ErrorCode::kInternal, "checkpoint: a reply must be a JSON object; got {} bytes",
                    text.size());
}

json written_to_json(const WrittenFiles& written) {
  json files = json::array();
  for (const StoredFile& file : written.files)
    files.push_back({file.name, file.nbytes, file.checked_nbytes, hex64(file.checksum)});
  json boxes = json::array();
  for (const WrittenBox& box : written.boxes) boxes.push_back(box_to_json(box));
  return {{"ok", true}, {"files", files}, {"boxes", boxes}};
}

Result<WrittenFiles> written_from_json(const json& reply) {
  WrittenFiles written;
  try {
    for (const json& file : reply.at("files")) {
      written.files.push_back(
          {file.at(0), file.at(1), file.at(2), from_hex(file.at(3).get<std::string>(), 0)});
    }
    for (const json& box : reply.at("boxes")) written.boxes.push_back(box_from_json(box));
  } catch (const std::exception& error) {
    return make_error(ErrorCode::kInternal, "checkpoint: a report is malformed; got {}",
                      error.what());
  }
  return written;
}
}  // namespace muster::checkpoint
