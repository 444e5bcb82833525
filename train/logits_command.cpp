#include "train/logits_command.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>

#include "checkpoint/io/safetensors.h"
#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "train/model_arguments.h"

namespace muster {
namespace {
constexpr int kUsage = 64;

struct Request {
  std::string folder;
  std::vector<std::string> sequences;
  std::string out;
  std::string dtype = "f32";
};

// @shape i64 [sequences, length]
Result<Tensor> token_batch(const Request& request, const hf::Config& config) {
  std::vector<int64_t> all;
  size_t length = 0;
  for (const std::string& text : request.sequences) {
    const std::vector<int64_t> ids = MUSTER_TRY(parse_ids(text));
    MUSTER_TRY(check_ids(ids, config));
    if (length == 0) length = ids.size();
    if (ids.size() != length) {
      return make_error(ErrorCode::kInvalidArgument,
                        "logits: sequences must have one length; got {} and {}", length,
                        ids.size());
    }
    all.insert(all.end(), ids.begin(), ids.end());
  }
  return from_vector(
      all, {static_cast<int64_t>(request.sequences.size()), static_cast<int64_t>(length)});
}

checkpoint::SafetensorsTensor file_tensor(std::string name, std::string dtype, const Tensor& t) {
  return {std::move(name),
          std::move(dtype),
          {t.sizes().begin(), t.sizes().end()},
          {static_cast<const std::byte*>(t.data_ptr()), static_cast<size_t>(t.nbytes())}};
}

// Logits of the narrower types are written as f32, which holds them exactly.
Result<std::string> write_logits(const Request& request) {
  struct stat info {};
  if (::stat(request.out.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--out: must be a new file or a regular one; got {}", request.out);
  }
  const DType dtype = MUSTER_TRY(parse_compute_dtype(request.dtype));
  const hf::LoadedFolder loaded =
      MUSTER_TRY(hf::load_folder(real_file_system(), request.folder, dtype));
  const Tensor tokens = MUSTER_TRY(token_batch(request, loaded.config));
  const NoGradGuard no_grad;
  loaded.model->eval();
  const bool wide = dtype == DType::kF64;
  const Tensor logits = contiguous(to((*loaded.model)(tokens), wide ? DType::kF64 : DType::kF32));
  const checkpoint::SafetensorsTensor tensors[] = {
      file_tensor("logits", wide ? "F64" : "F32", logits), file_tensor("input_ids", "I64", tokens)};
  MUSTER_TRY(checkpoint::write_safetensors(real_file_system(), request.out, {}, tensors));
  return fmt::format("{}: logits {}\n", request.out, logits.describe());
}
}  // namespace

CommandOutput run_logits_command(std::span<const std::string> arguments) {
  CLI::App app{
      "write the logits of every position, computed by the model of a Hugging Face folder, as "
      "`logits` [sequences, length, vocabulary] into a safetensors file",
      "muster-tools logits"};
  Request request;
  app.add_option("folder", request.folder, "config.json and safetensors")->required();
  app.add_option("--prompt-ids", request.sequences,
                 "token ids, such as 1,2,3; once for each sequence, all of one length")
      ->required()
      ->allow_extra_args(false);
  app.add_option("--out", request.out, "the file to write")->required();
  app.add_option("--dtype", request.dtype, "f32, f64, bf16 or f16: what the model computes in")
      ->capture_default_str();
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    return {0, app.help(), ""};
  } catch (const CLI::ParseError& error) {
    return {kUsage, "", fmt::format("muster-tools logits: {}\n{}", error.what(), app.help())};
  }
  const Result<std::string> text = catch_error([&] { return write_logits(request).value(); });
  if (text.ok()) return {0, *text, ""};
  return {exit_status(text.error().code()), "",
          fmt::format("muster-tools logits: {}\n", text.error().what())};
}
}  // namespace muster
