#pragma once
/// Models from and to Hugging Face folders: config.json and safetensors.
///
/// What is saved here loads in transformers and in load_folder() again, bit for bit.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/base/file_system.h"
#include "core/base/units.h"
#include "train/hf/config.h"

namespace muster::hf {

struct LoadedFolder {
  Config config;
  std::unique_ptr<CausalLm> model;
};

/// The config of a folder. Tokens that end a text come from generation_config.json where there is
/// one. @error kNotFound no such folder or no config.json; as parse_config()
Result<Config> read_config(FileSystem& fs, const std::string& folder);

/// Builds the model of a folder and loads its weights, converted to `dtype`.
/// @error as read_config(), Weights::open() and load_weights()
Result<LoadedFolder> load_folder(FileSystem& fs, const std::string& folder,
                                 DType dtype = DType::kF32);

struct SaveFolderOptions {
  std::optional<DType> dtype = {};            ///< of the files; that of the parameters unless given
  Bytes max_file = {int64_t{5'000'000'000}};  ///< larger models get several files and an index
};

/// Writes a new folder, under a temporary name until it is whole.
/// @error kFailedPrecondition the folder exists and is not empty; kInvalidArgument parameters of
///        several dtypes without options.dtype; kIo
Result<void> save_folder(FileSystem& fs, const std::string& folder, const Config& config,
                         Module& model, const SaveFolderOptions& options = {});

}  // namespace muster::hf
