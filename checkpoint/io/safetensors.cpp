#include "checkpoint/io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

namespace muster::checkpoint {
namespace {
struct TypeInfo {
  std::string_view name;
  int bits;
};
// In the order of the format: later ones are stored first.
constexpr TypeInfo kTypes[] = {
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
};
constexpr int64_t kLengthNbytes = 8;

int type_position(std::string_view name) {
  for (size_t i = 0; i < std::size(kTypes); ++i)
    if (kTypes[i].name == name) return static_cast<int>(i);
  return -1;
}

Result<void> check_tensor(const SafetensorsTensor& tensor) {
  const std::optional<int> bits = safetensors_bits(tensor.dtype);
  const bool is_named =
      tensor.name != "__metadata__" && tensor.name.find('\0') == std::string::npos;
  if (!is_named) {
    return make_error(ErrorCode::kInvalidArgument,
                      "write safetensors: a tensor cannot be called \"{}\"", tensor.name);
  }
  if (!bits) {
    return make_error(ErrorCode::kInvalidArgument,
                      "write safetensors: tensor \"{}\" has the unknown dtype \"{}\"", tensor.name,
                      tensor.dtype);
  }
  const int64_t total_bits = MUSTER_TRY(catch_error([&] { return numel(tensor.shape); })) * *bits;
  if (total_bits % 8 != 0 || total_bits / 8 != static_cast<int64_t>(tensor.data.size())) {
    return make_error(ErrorCode::kInvalidArgument,
                      "write safetensors: tensor \"{}\" is {} of {}; got {} bytes", tensor.name,
                      to_string(tensor.shape), tensor.dtype, tensor.data.size());
  }
  return {};
}

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }
}  // namespace

const SafetensorsEntry* SafetensorsHeader::find(std::string_view name) const {
  const auto it = std::find_if(tensors.begin(), tensors.end(),
                               [&](const SafetensorsEntry& entry) { return entry.name == name; });
  return it == tensors.end() ? nullptr : &*it;
}

std::optional<int> safetensors_bits(std::string_view dtype) {
  const int at = type_position(dtype);
  if (at < 0) return std::nullopt;
  return kTypes[at].bits;
}

std::optional<DType> dtype_of_safetensors(std::string_view name) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const DType dtype = static_cast<DType>(i);
    if (safetensors_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

Result<SafetensorsHeader> read_safetensors_header(FileSystem& fs, const std::string& path) {
  const FileInfo info = MUSTER_TRY(fs.info(path));
  if (!info.exists)
    return make_error(ErrorCode::kNotFound, "read safetensors: {} does not exist", path);
  if (info.nbytes < kLengthNbytes) {
    return make_error(ErrorCode::kCorruption,
                      "read safetensors: {}: a file has at least 8 bytes; got {}", path,
                      info.nbytes);
  }
  std::byte field[kLengthNbytes];
  MUSTER_TRY(fs.read_at(path, 0, field));
  uint64_t length = 0;
  for (int i = 0; i < kLengthNbytes; ++i) length |= static_cast<uint64_t>(field[i]) << (8 * i);
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeaderNbytes)) {
    return make_error(ErrorCode::kCorruption,
                      "read safetensors: {}: a header has at most {} bytes; got {}", path,
                      kMaxSafetensorsHeaderNbytes, length);
  }
  const int64_t data_begin = kLengthNbytes + static_cast<int64_t>(length);
  if (data_begin > info.nbytes) {
    return make_error(ErrorCode::kCorruption,
                      "read safetensors: {}: a header of {} bytes does not fit a file of {}", path,
                      length, info.nbytes);
  }
  std::string json(length, '\0');
  MUSTER_TRY(fs.read_at(path, kLengthNbytes, std::as_writable_bytes(std::span(json))));
  SafetensorsHeader header =
      MUSTER_TRY(parse_safetensors_header(json, info.nbytes - data_begin), "in " + path);
  header.data_begin = data_begin;
  return header;
}

Result<std::vector<std::byte>> read_safetensors_tensor(FileSystem& fs, const std::string& path,
                                                       const SafetensorsHeader& header,
                                                       const SafetensorsEntry& entry) {
  std::vector<std::byte> bytes(static_cast<size_t>(entry.end - entry.begin));
  if (!bytes.empty()) MUSTER_TRY(fs.read_at(path, header.data_begin + entry.begin, bytes));
  if (entry.dtype == "BOOL") {
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] > std::byte{1}) {
        return make_error(
            ErrorCode::kCorruption,
            "read safetensors: {}: BOOL tensor \"{}\" must hold 0 and 1; got {} at {}", path,
            entry.name, static_cast<int>(bytes[i]), i);
      }
    }
  }
  return bytes;
}

std::vector<size_t> safetensors_order(std::span<const SafetensorsTensor> tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const int type_a = type_position(tensors[a].dtype);
    const int type_b = type_position(tensors[b].dtype);
    if (type_a != type_b) return type_a > type_b;
    return tensors[a].name < tensors[b].name;
  });
  return order;
}

Result<std::string> render_safetensors_header(const std::map<std::string, std::string>& metadata,
                                              std::span<const SafetensorsTensor> tensors,
                                              int64_t alignment) {
  MUSTER_ASSERT(alignment > 0 && alignment % 8 == 0, "alignment {}", alignment);
  std::set<std::string_view> names;
  std::string json = "{";
  const auto render = [&]() -> Result<void> {
    if (!metadata.empty()) json += "\"__metadata__\":" + nlohmann::json(metadata).dump();
    int64_t at = 0;
    for (const SafetensorsTensor& tensor : tensors) {
      MUSTER_TRY(check_tensor(tensor));
      if (!names.insert(tensor.name).second) {
        return make_error(ErrorCode::kInvalidArgument,
                          "write safetensors: names must be unique; got \"{}\" twice", tensor.name);
      }
      const int64_t end = at + static_cast<int64_t>(tensor.data.size());
      json += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                          json.size() > 1 ? "," : "", quoted(tensor.name), tensor.dtype,
                          fmt::join(tensor.shape, ","), at, end);
      at = end;
    }
    return {};
  };
  try {
    MUSTER_TRY(render());
  } catch (const nlohmann::json::exception&) {
    return make_error(ErrorCode::kInvalidArgument,
                      "write safetensors: names and metadata must be UTF-8");
  }
  json += "}";
  const int64_t used = kLengthNbytes + static_cast<int64_t>(json.size());
  json.append(static_cast<size_t>((alignment - used % alignment) % alignment), ' ');
  if (static_cast<int64_t>(json.size()) > kMaxSafetensorsHeaderNbytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "write safetensors: a header has at most {} bytes; got {} for {} tensors",
                      kMaxSafetensorsHeaderNbytes, json.size(), tensors.size());
  }
  std::string text;
  for (int i = 0; i < kLengthNbytes; ++i)
    text += static_cast<char>((static_cast<uint64_t>(json.size()) >> (8 * i)) & 0xFFu);
  return text + json;
}

Result<void> write_safetensors(FileSystem& fs, const std::string& path,
                               const std::map<std::string, std::string>& metadata,
                               std::span<const SafetensorsTensor> tensors) {
  std::vector<SafetensorsTensor> sorted;
  for (const size_t i : safetensors_order(tensors)) sorted.push_back(tensors[i]);
  const std::string header = MUSTER_TRY(render_safetensors_header(metadata, sorted));
  const std::string temporary = path + ".tmp";
  const std::unique_ptr<WritableFile> file = MUSTER_TRY(fs.create(temporary));
  MUSTER_TRY(file->append(std::as_bytes(std::span(header))));
  for (const SafetensorsTensor& tensor : sorted) MUSTER_TRY(file->append(tensor.data));
  MUSTER_TRY(file->sync());
  MUSTER_TRY(file->close());
  MUSTER_TRY(fs.rename(temporary, path));
  return fs.sync_directory(path_parent(path));
}
}  // namespace muster::checkpoint
