#pragma once
/// A strict reader and writer of safetensors files.
///
/// Accepts exactly what the format defines and refuses what lets two readers see two files: holes,
/// overlaps, trailing bytes, repeated names, numbers that are no plain integers. Headers are
/// validated whole before a byte of data is touched. Layout: 8 bytes of little-endian header
/// length, a JSON object padded with spaces, then the data of all tensors without gaps.
/// @source safetensors format of 0.8; the README of its repository

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/plan/box.h"
#include "core/base/file_system.h"
#include "core/base/result.h"
#include "core/tensor/dtype.h"

namespace muster::checkpoint {

/// The longest JSON header that readers accept.
inline constexpr int64_t kMaxSafetensorsHeaderNbytes = 100'000'000;

/// One tensor of a file.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;  ///< as in the file: "F32", "F8_E4M3", ...
  Dims shape;
  int64_t begin = 0;  ///< bytes from the start of the data
  int64_t end = 0;
  bool operator==(const SafetensorsEntry&) const = default;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsEntry> tensors;  ///< in the order of their data
  int64_t data_begin = 0;                 ///< offset of the data in the file
  int64_t data_nbytes = 0;
  std::vector<std::string> warnings;  ///< unknown fields, which are ignored

  /// nullptr when the file has no such tensor.
  [[nodiscard]] const SafetensorsEntry* find(std::string_view name) const;
};

/// Bits of one element of a type of the format; nullopt for an unknown name.
std::optional<int> safetensors_bits(std::string_view dtype);
/// The type of this project with that name; nullopt where we have none (F8_E4M3, U16, C64, ...).
std::optional<DType> dtype_of_safetensors(std::string_view name);

/// Parses and validates the JSON text of a header that precedes `data_nbytes` bytes of data.
/// @error kCorruption names the tensor, or the byte of the JSON text, and the rule that is broken
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, int64_t data_nbytes);

/// Reads and validates the header of a file. Allocates no more than the file holds.
/// @error kCorruption, kNotFound, kIo; all name the file
Result<SafetensorsHeader> read_safetensors_header(FileSystem& fs, const std::string& path);

/// Reads the bytes of one tensor; BOOL bytes must be 0 or 1.
/// @error kCorruption, kIo
Result<std::vector<std::byte>> read_safetensors_tensor(FileSystem& fs, const std::string& path,
                                                       const SafetensorsHeader& header,
                                                       const SafetensorsEntry& entry);

/// A tensor to be written. `name` and `dtype` as in SafetensorsEntry.
struct SafetensorsTensor {
  std::string name;
  std::string dtype;
  Dims shape;
  std::span<const std::byte> data;
};

/// The order in which a file stores tensors: wide types first, then by name, so that every tensor
/// is aligned to its element. Returns indices.
std::vector<size_t> safetensors_order(std::span<const SafetensorsTensor> tensors);

/// Length field, JSON and padding for tensors stored in the given order; the data then begins at a
/// multiple of `alignment` (8 or a multiple of it). `tensors[i].data` only gives sizes.
/// @error kInvalidArgument a repeated or reserved name, an unknown type, a size that does not
/// match,
///        or a header above the limit
Result<std::string> render_safetensors_header(const std::map<std::string, std::string>& metadata,
                                              std::span<const SafetensorsTensor> tensors,
                                              int64_t alignment = 8);

/// Writes a whole file by temporary file, sync, rename and sync of the folder, so that tensors
/// which are mapped from the old file stay readable while it is replaced.
/// @error as render_safetensors_header; kIo
Result<void> write_safetensors(FileSystem& fs, const std::string& path,
                               const std::map<std::string, std::string>& metadata,
                               std::span<const SafetensorsTensor> tensors);

}  // namespace muster::checkpoint
