#include "train/text_data.h"

#include "core/base/file_system.h"
#include "core/base/hash.h"
#include "core/base/text.h"
#include "train/permutation.h"

namespace muster {

Result<TextData> TextData::open(const Recipe::Data& data, int64_t sequence) {
  TextData result;
  for (const std::string& file : MUSTER_TRY(expand_data_files(data))) {
    result.text_ += MUSTER_TRY(read_text(real_file_system(), file));
  }
  result.sequence_ = sequence;
  result.seed_ = static_cast<uint64_t>(data.seed);
  result.num_windows_ = (result.nbytes() - 1) / sequence;
  if (result.num_windows_ < 1) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "data: at least {} bytes of text for one window of {} tokens and the next; got {}",
        sequence + 1, sequence, result.nbytes());
  }
  result.fingerprint_ =
      hex64(hash_combine(hash_text(result.text_), static_cast<uint64_t>(sequence)));
  return result;
}

int64_t TextData::window_of(int64_t sample) const {
  const int64_t epoch = sample / num_windows_;
  const Permutation order(num_windows_, hash_combine(seed_, static_cast<uint64_t>(epoch)));
  return order(sample % num_windows_);
}

TextData::Batch TextData::batch(const std::vector<int64_t>& samples) const {
  const TensorSpec spec =
      TensorSpec::contiguous({static_cast<int64_t>(samples.size()), sequence_}, DType::kI64);
  Batch result{empty_from_spec(spec), empty_from_spec(spec)};
  auto* tokens = result.tokens.data<int64_t>();
  auto* targets = result.targets.data<int64_t>();
  for (const int64_t sample : samples) {
    const auto* at =
        reinterpret_cast<const unsigned char*>(text_.data()) + window_of(sample) * sequence_;
    for (int64_t i = 0; i < sequence_; ++i) {
      *tokens++ = at[i];
      *targets++ = at[i + 1];
    }
  }
  return result;
}

std::vector<int64_t> samples_of_rank(int64_t first, int64_t global_batch, int rank, int world) {
  std::vector<int64_t> samples;
  for (int64_t at = rank; at < global_batch; at += world) samples.push_back(first + at);
  return samples;
}
}  // namespace muster
