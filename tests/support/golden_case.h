#pragma once
/// Golden files: NAME.jsonl, one case a line, beside NAME.safetensors with the tensors.
///
/// They hold what PyTorch computes, so that muster is compared with it without PyTorch at hand. A
/// tensor in a case is {"t": KEY}, or {"t", "sizes", "strides", "offset"}: a strided view of the
/// flat storage KEY. Non-finite floats are the strings "nan", "inf", "-inf". See
/// tests/golden/README.md.

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace muster::testing {

class GoldenFile {
 public:
  /// Reads tests/golden/NAME.jsonl and, where there is one, NAME.safetensors. Kept for the process.
  /// @thread any @error kNotFound, kCorruption (throws)
  static const GoldenFile& load(const std::string& name);
  ~GoldenFile();

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const std::vector<nlohmann::json>& cases() const noexcept { return *cases_; }
  /// The case with this id. @error kNotFound (throws)
  [[nodiscard]] const nlohmann::json& find(const std::string& id) const;
  /// A fresh tensor with the values and the layout of a reference; nothing else holds its storage.
  [[nodiscard]] Tensor tensor(const nlohmann::json& reference) const;

 private:
  explicit GoldenFile(std::string name);

  std::string name_;
  std::unique_ptr<std::vector<nlohmann::json>> cases_;
  std::map<std::string, Tensor> tensors_;
};

/// True for {"t": KEY, ..}.
bool is_tensor_reference(const nlohmann::json& value);
/// A number, or one of "nan", "inf", "-inf".
bool is_golden_number(const nlohmann::json& value);
double golden_number(const nlohmann::json& value);
std::vector<int64_t> golden_ints(const nlohmann::json& value);

/// A file of the safetensors format as contiguous tensors by name; for tests, without hostile input
/// in mind. @error kNotFound, kCorruption (throws)
std::map<std::string, Tensor> read_safetensors(const std::string& path);

/// The absolute path of tests/golden/RELATIVE.
std::string golden_path(const std::string& relative);

}  // namespace muster::testing
