#pragma once
/// The weights of a Hugging Face model folder: one safetensors file, or several and an index.
///
/// Opening reads headers only and checks them and the index; tensors are read one at a time. How a
/// family names and lays out its tensors in files is stated here too.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/io/safetensors.h"
#include "core/base/file_system.h"
#include "core/nn/module.h"
#include "train/hf/config.h"

namespace muster::hf {

inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";
inline constexpr const char* kHeadName = "lm_head.weight";

class Weights {
 public:
  /// @error kNotFound neither file is there; kCorruption a file is damaged, or the index disagrees
  ///        with the files (every place named)
  static Result<Weights> open(FileSystem& fs, const std::string& folder);

  /// Names in the files, sorted.
  [[nodiscard]] std::vector<std::string> names() const;
  /// nullptr when there is no such tensor.
  [[nodiscard]] const checkpoint::SafetensorsEntry* find(const std::string& name) const;
  /// A tensor as it lies in its file. @error kNotFound, kCorruption, kIo; kUnimplemented a dtype
  /// that muster does not have
  Result<Tensor> read(const std::string& name) const;

 private:
  Weights(FileSystem& fs, std::string folder) : fs_(&fs), folder_(std::move(folder)) {}
  Result<void> add_file(const std::string& file);
  Result<void> check_index(const std::string& text);

  FileSystem* fs_;
  std::string folder_;
  std::map<std::string, checkpoint::SafetensorsHeader> files_;
  std::map<std::string, std::string> file_of_;  // by tensor name
};

/// Where a parameter of the model lies in files.
struct FileTensor {
  std::string name;
  bool is_transposed = false;  ///< GPT-2's projections are [in, out] in files
};
FileTensor file_tensor(Family family, const std::string& parameter);

/// Copies the weights into the parameters of `model` (as make_model() builds it), converting
/// dtypes. Strict, and all or nothing: everything is compared before a byte of the model changes.
/// @error kInvalidArgument lists every missing, unexpected and misshapen tensor; as Weights::read
Result<void> load_weights(const Weights& weights, const Config& config, Module& model);

}  // namespace muster::hf
