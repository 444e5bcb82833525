#pragma once
/// Real text as training samples: byte tokens, cut into windows, in an order that is a pure
/// function.
///
/// Sample number g (counted over the whole job, all epochs and ranks) is window
/// permutation(seed, epoch)(g mod windows) of epoch g / windows. So the cursor of a run is one
/// number, and it survives a change of world size.

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"
#include "launcher/recipe/recipe.h"

namespace muster {

class TextData {
 public:
  /// Reads all files of the recipe, in sorted order. Windows hold `sequence` tokens and the one
  /// after.
  /// @error kNotFound a glob matches nothing; kIo; kInvalidArgument less text than one window
  static Result<TextData> open(const Recipe::Data& data, int64_t sequence);

  /// Tokens and targets (the tokens shifted by one) of some samples.
  /// @shape both i64 [samples.size(), sequence]
  struct Batch {
    Tensor tokens;
    Tensor targets;
  };
  [[nodiscard]] Batch batch(const std::vector<int64_t>& samples) const;

  [[nodiscard]] int64_t num_windows() const noexcept { return num_windows_; }
  [[nodiscard]] int64_t nbytes() const noexcept { return static_cast<int64_t>(text_.size()); }
  /// Changes when the text, its order or the window length does; saved with the cursor.
  [[nodiscard]] const std::string& fingerprint() const noexcept { return fingerprint_; }

 private:
  TextData() = default;
  [[nodiscard]] int64_t window_of(int64_t sample) const;

  std::string text_;
  int64_t sequence_ = 0;
  int64_t num_windows_ = 0;
  uint64_t seed_ = 0;
  std::string fingerprint_;
};

/// The samples of one step for one rank: of the global batch [first, first + global_batch) those at
/// positions rank, rank + world, ... Pure.
std::vector<int64_t> samples_of_rank(int64_t first, int64_t global_batch, int rank, int world);

}  // namespace muster
