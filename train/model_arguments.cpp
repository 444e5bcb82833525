#include "train/model_arguments.h"

#include <charconv>

#include "core/base/text.h"

namespace muster {

Result<std::vector<int64_t>> parse_ids(const std::string& text) {
  std::vector<int64_t> ids;
  for (const std::string& part : split(text, ',')) {
    const std::string_view digits = trim(part);
    int64_t id = 0;
    const auto [end, failure] = std::from_chars(digits.begin(), digits.end(), id);
    if (failure != std::errc() || end != digits.end() || digits.empty()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "ids: must be integers separated by commas; got \"{}\" in \"{}\"", part,
                        text);
    }
    ids.push_back(id);
  }
  return ids;
}

Result<void> check_ids(const std::vector<int64_t>& ids, const hf::Config& config) {
  for (const int64_t id : ids) {
    if (id >= 0 && id < config.vocab_size()) continue;
    return make_error(ErrorCode::kOutOfRange,
                      "ids: must be from 0 to {}, by the vocabulary; got {}",
                      config.vocab_size() - 1, id);
  }
  return {};
}

Result<DType> parse_compute_dtype(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    if (name == to_string(dtype)) return dtype;
  }
  return make_error(ErrorCode::kInvalidArgument, "dtype: must be f32, f64, bf16 or f16; got \"{}\"",
                    name);
}
}  // namespace muster
