#include "train/hf/folder.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/autograd/autograd.h"
#include "core/base/error.h"
#include "core/dispatch/mode.h"
#include "core/ops/ops.h"
#include "train/hf/weights.h"

namespace muster::hf {
namespace {
using nlohmann::json;

constexpr const char* kConfigFile = "config.json";
constexpr const char* kGenerationFile = "generation_config.json";

// A tensor in its file's name, layout and dtype.
struct FileEntry {
  std::string name;
  Tensor tensor;
};

Result<DType> dtype_to_save(Module& model, const SaveFolderOptions& options) {
  if (options.dtype) return *options.dtype;
  std::optional<DType> dtype;
  for (const NamedTensor& named : model.state()) {
    if (dtype.value_or(named.tensor.dtype()) != named.tensor.dtype()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "save: parameters must have one dtype unless one is asked for; got {} and "
                        "{} for {}",
                        *dtype, named.tensor.dtype(), named.name);
    }
    dtype = named.tensor.dtype();
  }
  return dtype.value_or(DType::kF32);
}

std::vector<FileEntry> file_entries(Module& model, Family family, DType dtype) {
  const NoGradGuard no_grad;
  std::vector<FileEntry> entries;
  for (const NamedTensor& named : model.state()) {
    const FileTensor place = file_tensor(family, named.name);
    const Tensor& tensor = named.tensor;
    entries.push_back(
        {place.name, contiguous(to(place.is_transposed ? t(tensor) : tensor, dtype))});
  }
  return entries;
}

// Entries in files of at most max_file, in order; a larger tensor has a file of its own.
std::vector<std::vector<FileEntry>> cut(const std::vector<FileEntry>& entries, Bytes max_file) {
  std::vector<std::vector<FileEntry>> files(1);
  int64_t nbytes = 0;
  for (const FileEntry& entry : entries) {
    if (nbytes + entry.tensor.nbytes() > max_file.count && !files.back().empty()) {
      files.emplace_back();
      nbytes = 0;
    }
    files.back().push_back(entry);
    nbytes += entry.tensor.nbytes();
  }
  return files;
}

Result<void> write_file(FileSystem& fs, const std::string& path,
                        const std::vector<FileEntry>& entries) {
  std::vector<checkpoint::SafetensorsTensor> tensors;
  for (const FileEntry& entry : entries) {
    const auto* bytes = static_cast<const std::byte*>(entry.tensor.data_ptr());
    tensors.push_back({entry.name,
                       std::string(safetensors_name(entry.tensor.dtype())),
                       checkpoint::Dims(entry.tensor.sizes().begin(), entry.tensor.sizes().end()),
                       {bytes, static_cast<size_t>(entry.tensor.nbytes())}});
  }
  return checkpoint::write_safetensors(fs, path, {{"format", "pt"}}, tensors);
}

Result<void> write_weights(FileSystem& fs, const std::string& folder,
                           const std::vector<std::vector<FileEntry>>& files) {
  if (files.size() == 1) return write_file(fs, path_join(folder, kWeightsFile), files[0]);
  json map = json::object();
  int64_t nbytes = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
    MUSTER_TRY(write_file(fs, path_join(folder, file), files[i]));
    for (const FileEntry& entry : files[i]) {
      map[entry.name] = file;
      nbytes += entry.tensor.nbytes();
    }
  }
  const json index = {{"metadata", {{"total_size", nbytes}}}, {"weight_map", map}};
  return write_file_durably(fs, path_join(folder, kIndexFile), index.dump(2) + "\n");
}

Result<void> write_folder(FileSystem& fs, const std::string& folder, const Config& config,
                          Module& model, Bytes max_file) {
  MUSTER_TRY(fs.make_directories(folder));
  const auto files = cut(file_entries(model, config.family, config.dtype), max_file);
  MUSTER_TRY(write_weights(fs, folder, files));
  if (!config.eos_ids.empty()) {
    json generation = {{"eos_token_id", config.eos_ids.size() == 1 ? json(config.eos_ids[0])
                                                                   : json(config.eos_ids)}};
    if (config.bos_ids.size() == 1) generation["bos_token_id"] = config.bos_ids[0];
    const std::string path = path_join(folder, kGenerationFile);
    MUSTER_TRY(write_file_durably(fs, path, generation.dump(2) + "\n"));
  }
  return write_file_durably(fs, path_join(folder, kConfigFile), render_config(config));
}

Result<void> check_is_new(FileSystem& fs, const std::string& folder) {
  const FileInfo info = MUSTER_TRY(fs.info(folder));
  if (!info.exists) return {};
  const bool is_free = info.is_directory && MUSTER_TRY(fs.list(folder)).empty();
  if (is_free) return {};
  return make_error(ErrorCode::kFailedPrecondition, "save: the folder must be new or empty; got {}",
                    folder);
}

Result<std::vector<int64_t>> ids_of(const std::string& path, const json& value) {
  std::vector<int64_t> ids;
  const json one = json::array({value});
  for (const json& id : value.is_array() ? value : one) {
    if (!id.is_number_integer()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: eos_token_id must be an integer or a list of them; got {}", path,
                        value.dump());
    }
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}
}  // namespace

Result<Config> read_config(FileSystem& fs, const std::string& folder) {
  const std::string path = path_join(folder, kConfigFile);
  if (!MUSTER_TRY(fs.info(path)).exists) {
    return make_error(ErrorCode::kNotFound, "{}: must be the config of a model folder; got no file",
                      path);
  }
  const std::string text = MUSTER_TRY(read_text(fs, path));
  Config config = MUSTER_TRY(parse_config(text), fmt::format("in {}", folder));
  const std::string generation = path_join(folder, kGenerationFile);
  if (!MUSTER_TRY(fs.info(generation)).exists) return config;
  const json object = json::parse(MUSTER_TRY(read_text(fs, generation)), nullptr, false);
  if (!object.is_object()) {
    return make_error(ErrorCode::kCorruption, "{}: must be a JSON object", generation);
  }
  const auto at = object.find("eos_token_id");
  if (at != object.end() && !at->is_null()) config.eos_ids = MUSTER_TRY(ids_of(generation, *at));
  return config;
}

Result<LoadedFolder> load_folder(FileSystem& fs, const std::string& folder, DType dtype) {
  LoadedFolder loaded;
  loaded.config = MUSTER_TRY(read_config(fs, folder));
  const Weights weights = MUSTER_TRY(Weights::open(fs, folder));
  {
    const DeviceGuard guard(kMetaDevice);
    loaded.model = make_model(loaded.config);
    loaded.model->to(dtype);
  }
  loaded.model->to_empty();
  MUSTER_TRY(load_weights(weights, loaded.config, *loaded.model), fmt::format("in {}", folder));
  return loaded;
}

Result<void> save_folder(FileSystem& fs, const std::string& folder, const Config& config,
                         Module& model, const SaveFolderOptions& options) {
  MUSTER_TRY(check_is_new(fs, folder));
  Config saved = config;
  saved.dtype = MUSTER_TRY(dtype_to_save(model, options));
  const std::string part = folder + ".part";
  MUSTER_TRY(remove_tree(fs, part));
  const Result<void> written = write_folder(fs, part, saved, model, options.max_file);
  const Result<void> named = written.ok() ? fs.rename(part, folder) : written;
  if (named.ok()) return fs.sync_directory(path_parent(folder));
  static_cast<void>(remove_tree(fs, part));  // the first failure is the one to report
  return named;
}
}  // namespace muster::hf
