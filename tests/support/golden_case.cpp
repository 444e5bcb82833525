#include "tests/support/golden_case.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>

#include "core/base/file_system.h"

namespace muster::testing {
namespace {
using Json = nlohmann::json;

Tensor tensor_from_bytes(std::span<const std::byte> bytes, Dims sizes, DType dtype) {
  Tensor tensor = empty_from_spec(TensorSpec::contiguous(sizes, dtype));
  MUSTER_CHECK(static_cast<int64_t>(bytes.size()) == tensor.numel() * item_nbytes(dtype),
               ErrorCode::kCorruption, "golden: {} bytes for {}", bytes.size(), tensor);
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

Tensor copy_of(const Tensor& tensor) {
  const auto* const start = static_cast<const std::byte*>(tensor.data_ptr());
  const auto nbytes = static_cast<size_t>(tensor.numel() * item_nbytes(tensor.dtype()));
  return tensor_from_bytes({start, nbytes}, tensor.sizes(), tensor.dtype());
}
}  // namespace

std::string golden_path(const std::string& relative) {
  return path_join(MUSTER_SOURCE_DIR "/tests/golden", relative);
}

bool is_tensor_reference(const Json& value) { return value.is_object() && value.contains("t"); }

bool is_golden_number(const Json& value) {
  return value.is_number() || value == "nan" || value == "inf" || value == "-inf";
}

double golden_number(const Json& value) {
  if (value.is_number()) return value.get<double>();
  const auto text = value.get<std::string>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  MUSTER_CHECK(text == "inf" || text == "-inf", ErrorCode::kCorruption,
               "golden: a number; got \"{}\"", text);
  return text == "inf" ? HUGE_VAL : -HUGE_VAL;
}

std::vector<int64_t> golden_ints(const Json& value) { return value.get<std::vector<int64_t>>(); }

std::map<std::string, Tensor> read_safetensors(const std::string& path) {
  const std::vector<std::byte> file = real_file_system().read(path).value();
  uint64_t header_nbytes = 0;
  MUSTER_CHECK(file.size() >= 8, ErrorCode::kCorruption, "golden: {} has no header", path);
  std::memcpy(&header_nbytes, file.data(), 8);
  MUSTER_CHECK(header_nbytes <= file.size() - 8, ErrorCode::kCorruption,
               "golden: the header of {} ends behind the file", path);
  const auto* const text = reinterpret_cast<const char*>(file.data()) + 8;
  const Json header = Json::parse(text, text + header_nbytes);
  const std::span<const std::byte> data = std::span(file).subspan(8 + header_nbytes);
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto begin = entry["data_offsets"][0].get<size_t>();
    const auto end = entry["data_offsets"][1].get<size_t>();
    MUSTER_CHECK(begin <= end && end <= data.size(), ErrorCode::kCorruption,
                 "golden: tensor {} of {} ends behind the file", name, path);
    const DType dtype = parse_dtype(entry["dtype"].get<std::string>()).value();
    const std::vector<int64_t> sizes = golden_ints(entry["shape"]);
    tensors.emplace(name, tensor_from_bytes(data.subspan(begin, end - begin), sizes, dtype));
  }
  return tensors;
}

GoldenFile::GoldenFile(std::string name)
    : name_(std::move(name)), cases_(std::make_unique<std::vector<Json>>()) {
  FileSystem& files = real_file_system();
  const std::string text = read_text(files, golden_path(name_ + ".jsonl")).value();
  size_t start = 0;
  while (start < text.size()) {
    const size_t end = std::min(text.find('\n', start), text.size());
    if (end > start)
      cases_->push_back(Json::parse(text.begin() + static_cast<int64_t>(start),
                                    text.begin() + static_cast<int64_t>(end)));
    start = end + 1;
  }
  const std::string tensors = golden_path(name_ + ".safetensors");
  if (files.info(tensors).value().exists) tensors_ = read_safetensors(tensors);
}

GoldenFile::~GoldenFile() = default;

const GoldenFile& GoldenFile::load(const std::string& name) {
  static std::mutex lock;  // threads as ranks load the same file
  static std::map<std::string, std::unique_ptr<GoldenFile>> loaded;
  const std::lock_guard guard(lock);
  auto& file = loaded[name];
  if (!file) file.reset(new GoldenFile(name));
  return *file;
}

const Json& GoldenFile::find(const std::string& id) const {
  for (const Json& entry : *cases_) {
    if (entry["id"] == id) return entry;
  }
  throw_error(ErrorCode::kNotFound, "golden: {} has no case \"{}\"", name_, id);
}

Tensor GoldenFile::tensor(const Json& reference) const {
  const auto key = reference["t"].get<std::string>();
  const auto stored = tensors_.find(key);
  MUSTER_CHECK(stored != tensors_.end(), ErrorCode::kNotFound, "golden: {} has no tensor \"{}\"",
               name_, key);
  const Tensor copy = copy_of(stored->second);
  if (!reference.contains("sizes")) return copy;
  const Tensor view = alias_with_layout(copy, Layout{DimVector(golden_ints(reference["sizes"])),
                                                     DimVector(golden_ints(reference["strides"])),
                                                     reference["offset"].get<int64_t>()});
  return shallow_detach(view);
}
}  // namespace muster::testing
