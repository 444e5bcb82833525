#include "train/hf/weights.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "core/autograd/autograd.h"
#include "core/base/text.h"
#include "core/ops/ops.h"

namespace muster::hf {
namespace {
using checkpoint::SafetensorsEntry;
using nlohmann::json;

constexpr const char* kGptPrefix = "transformer.";

bool is_plain_name(const std::string& file) {
  return !file.empty() && file.find('/') == std::string::npos && file != "." && file != "..";
}

// Older files hold constants that every model makes again: masks and rotary frequencies.
bool is_constant(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

// GPT-2's own release lacks the prefix that transformers writes.
std::string prefix_in(const Weights& weights, Family family) {
  if (family != Family::kGpt2) return "";
  for (const std::string& name : weights.names()) {
    if (name.starts_with(kGptPrefix)) return kGptPrefix;
  }
  return "";
}

std::string name_in(const std::string& prefix, Family family, const std::string& parameter) {
  const std::string name = file_tensor(family, parameter).name;
  const bool bare = family == Family::kGpt2 && prefix.empty() && name.starts_with(kGptPrefix);
  return bare ? name.substr(std::strlen(kGptPrefix)) : name;
}

struct Placed {
  Tensor parameter;
  std::string file_name;
  bool is_transposed = false;
};

DimVector wanted_shape(const Placed& placed) {
  DimVector shape(placed.parameter.sizes());
  if (placed.is_transposed) std::swap(shape[0], shape[1]);
  return shape;
}

void compare(const Placed& placed, const Weights& weights, std::vector<std::string>& faults) {
  const SafetensorsEntry* entry = weights.find(placed.file_name);
  if (entry == nullptr) {
    faults.push_back(fmt::format("missing: {}", placed.file_name));
    return;
  }
  const DimVector wanted = wanted_shape(placed);
  if (!std::ranges::equal(entry->shape, wanted)) {
    faults.push_back(fmt::format("shape: {} must be {}; got {}", placed.file_name,
                                 to_string(Dims(wanted)), to_string(Dims(entry->shape))));
  }
  const auto dtype = checkpoint::dtype_of_safetensors(entry->dtype);
  if (!dtype || !is_floating(*dtype)) {
    faults.push_back(
        fmt::format("dtype: {} must be floating; got {}", placed.file_name, entry->dtype));
  }
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.nbytes() == b.nbytes() &&
         std::memcmp(a.data_ptr(), b.data_ptr(), static_cast<size_t>(a.nbytes())) == 0;
}

// A tied head may be in the files all the same; then it must be the embedding.
Result<void> check_tied_head(const Weights& weights, const std::string& embedding) {
  const Tensor head = MUSTER_TRY(weights.read(kHeadName));
  const Tensor table = MUSTER_TRY(weights.read(embedding));
  if (same_bytes(head, table)) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "load: {} must equal {}, as config.json says that they are tied; got other "
                    "values\n  fix: set tie_word_embeddings to false",
                    kHeadName, embedding);
}
}  // namespace

FileTensor file_tensor(Family family, const std::string& parameter) {
  if (family != Family::kGpt2) return {parameter, false};
  if (parameter == kHeadName) return {parameter, false};
  const bool is_projection =
      parameter.ends_with(".weight") && parameter.find(".c_") != std::string::npos;
  return {kGptPrefix + parameter, is_projection};
}

Result<void> Weights::add_file(const std::string& file) {
  const std::string path = path_join(folder_, file);
  files_[file] = MUSTER_TRY(checkpoint::read_safetensors_header(*fs_, path));
  for (const SafetensorsEntry& entry : files_[file].tensors) {
    const auto [at, is_new] = file_of_.emplace(entry.name, file);
    if (!is_new) {
      return make_error(ErrorCode::kCorruption, "{}: {} must be in one file only; got {} and {}",
                        folder_, entry.name, at->second, file);
    }
  }
  return {};
}

Result<void> Weights::check_index(const std::string& text) {
  const std::string path = path_join(folder_, kIndexFile);
  const json index = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool has_map =
      index.is_object() && index.contains("weight_map") && index["weight_map"].is_object();
  if (!has_map) {
    return make_error(ErrorCode::kCorruption, "{}: must be a JSON object with a weight_map", path);
  }
  std::set<std::string> files;
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string() || !is_plain_name(file.get<std::string>())) {
      return make_error(ErrorCode::kCorruption,
                        "{}: weight_map must name files of this folder; got {} for {}", path,
                        file.dump(), name);
    }
    files.insert(file.get<std::string>());
  }
  for (const std::string& file : files) MUSTER_TRY(add_file(file), "named in " + path);
  std::vector<std::string> faults;
  for (const auto& [name, file] : index["weight_map"].items()) {
    const auto at = file_of_.find(name);
    if (at == file_of_.end() || at->second != file.get<std::string>()) {
      faults.push_back(fmt::format("{} is not in {}", name, file.get<std::string>()));
    }
  }
  for (const auto& [name, file] : file_of_) {
    if (!index["weight_map"].contains(name)) {
      faults.push_back(fmt::format("{} of {} is not in the weight_map", name, file));
    }
  }
  if (faults.empty()) return {};
  return make_error(ErrorCode::kCorruption, "{}: must agree with the files; got:\n  {}", path,
                    join(faults, "\n  "));
}

Result<Weights> Weights::open(FileSystem& fs, const std::string& folder) {
  Weights weights(fs, folder);
  if (MUSTER_TRY(fs.info(path_join(folder, kWeightsFile))).exists) {
    MUSTER_TRY(weights.add_file(kWeightsFile));
    return weights;
  }
  const std::string index = path_join(folder, kIndexFile);
  if (!MUSTER_TRY(fs.info(index)).exists) {
    return make_error(ErrorCode::kNotFound, "{}: must hold {} or {}; got neither", folder,
                      kWeightsFile, kIndexFile);
  }
  const std::string text = MUSTER_TRY(read_text(fs, index));
  MUSTER_TRY(weights.check_index(text));
  return weights;
}

std::vector<std::string> Weights::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : file_of_) names.push_back(name);
  return names;
}

const SafetensorsEntry* Weights::find(const std::string& name) const {
  const auto at = file_of_.find(name);
  return at == file_of_.end() ? nullptr : files_.at(at->second).find(name);
}

Result<Tensor> Weights::read(const std::string& name) const {
  const SafetensorsEntry* entry = find(name);
  if (entry == nullptr) {
    return make_error(ErrorCode::kNotFound, "{}: no tensor {} in its files", folder_, name);
  }
  const auto dtype = checkpoint::dtype_of_safetensors(entry->dtype);
  if (!dtype) {
    return make_error(ErrorCode::kUnimplemented, "{}: the dtype of {} must be supported; got {}",
                      folder_, name, entry->dtype);
  }
  const std::string& file = file_of_.at(name);
  const std::vector<std::byte> bytes = MUSTER_TRY(
      checkpoint::read_safetensors_tensor(*fs_, path_join(folder_, file), files_.at(file), *entry));
  Tensor tensor = empty_from_spec(TensorSpec::contiguous(entry->shape, *dtype));
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

Result<void> load_weights(const Weights& weights, const Config& config, Module& model) {
  const std::string prefix = prefix_in(weights, config.family);
  std::vector<Placed> places;
  std::set<std::string> expected;
  std::vector<std::string> faults;
  for (const NamedTensor& named : model.state()) {
    MUSTER_CHECK(!named.tensor.is_meta(), ErrorCode::kFailedPrecondition,
                 "load: the model must have memory; got {} on the meta device; call to_empty()",
                 named.name);
    places.push_back({named.tensor, name_in(prefix, config.family, named.name),
                      file_tensor(config.family, named.name).is_transposed});
    expected.insert(places.back().file_name);
    compare(places.back(), weights, faults);
  }
  const bool has_spare_head = config.tied_head() && weights.find(kHeadName) != nullptr;
  for (const std::string& name : weights.names()) {
    const bool fine =
        expected.count(name) > 0 || is_constant(name) || (has_spare_head && name == kHeadName);
    if (!fine) faults.push_back(fmt::format("unexpected: {}", name));
  }
  if (!faults.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "load: the files must hold what config.json describes; got {} {}:\n  {}",
                      faults.size(), faults.size() == 1 ? "fault" : "faults", join(faults, "\n  "));
  }
  if (has_spare_head) {
    const char* embedding =
        config.family == Family::kGpt2 ? "wte.weight" : "model.embed_tokens.weight";
    MUSTER_TRY(check_tied_head(weights, name_in(prefix, config.family, embedding)));
  }
  const NoGradGuard no_grad;
  for (const Placed& place : places) {
    const Tensor read = MUSTER_TRY(weights.read(place.file_name));
    copy_(place.parameter, place.is_transposed ? t(read) : read);
  }
  return {};
}
}  // namespace muster::hf
