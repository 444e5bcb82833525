#pragma once
/// SIMD draws of consecutive logical elements; equal to random_word word for word.

#include <cstdint>

namespace muster::kernels::cpu {

/// words[i] = random_word(seed, offset, index + i).
void random_words(uint64_t seed, uint64_t offset, uint64_t index, uint32_t* words, int64_t count);

/// out[i] = mean + std * z(index + i). Elements 2j and 2j + 1 are cosine and sine of one Box-Muller
/// pair: radius by the even word, angle by the odd one.
void random_normals(uint64_t seed, uint64_t offset, uint64_t index, float* out, int64_t count,
                    float mean, float std);

/// In place: 0 where words[i] < threshold, else x * scale. `values` are f32, or f64 when `is_f64`.
void drop(void* values, bool is_f64, const uint32_t* words, int64_t count, double threshold,
          double scale);

}  // namespace muster::kernels::cpu
