#include "core/kernels/cpu/random.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/kernels/cpu/copy_block.h"
#include "core/kernels/cpu/pointwise.h"
#include "core/kernels/cpu/random_vec.h"
#include "core/kernels/cpu/workspace.h"
#include "core/kernels/parallel.h"

namespace muster::kernels::cpu {
namespace {
constexpr int64_t kGrain = 1 << 14;

// Pairs the elements of a view with their indices in the logical tensor. The nest is row-major, so
// a stretch of a row that is dense in the logical tensor has consecutive indices.
class GlobalIndex {
 public:
  GlobalIndex(const char* operation, const TensorView& out, const RandomStream& stream) {
    const bool whole = stream.global_sizes.empty();
    const Dims sizes = whole ? out.sizes : stream.global_sizes;
    MUSTER_CHECK(sizes.size() == out.ndim() && (whole || stream.box_start.size() == out.ndim()),
                 ErrorCode::kInvalidArgument,
                 "{}: the logical tensor must have the dims of its piece; got {} and start {} for "
                 "{}",
                 operation, to_string(sizes), to_string(stream.box_start), to_string(out.sizes));
    strides_ = contiguous_strides(sizes);
    for (size_t d = 0; d < sizes.size() && !whole; ++d) {
      const int64_t start = stream.box_start[d];
      MUSTER_CHECK(start >= 0 && start + out.sizes[d] <= sizes[d], ErrorCode::kInvalidArgument,
                   "{}: the piece must lie in the logical tensor; got {} at {} in {}", operation,
                   to_string(out.sizes), to_string(stream.box_start), to_string(sizes));
      first_ += start * strides_[d];
    }
  }
  [[nodiscard]] Dims strides() const noexcept { return strides_.span(); }
  [[nodiscard]] int64_t first() const noexcept { return first_; }

 private:
  DimVector strides_;
  int64_t first_ = 0;
};

// Calls `draw(global_index, block, count)` to fill blocks of the compute type, then stores them.
// Every block is a run of consecutive logical indices.
template <typename Draw>
void fill_random(const char* operation, const TensorView& out, const RandomStream& stream,
                 ComputeType type, const Draw& draw) {
  const GlobalIndex global(operation, out, stream);
  const Dims strides[] = {out.strides, global.strides()};
  const LoopNest nest(out.sizes, strides, LoopNest::Order::kRowMajor);
  const StoreBlock store = block_storer(type, out.dtype);
  const int64_t item = item_nbytes(out.dtype);
  const int64_t step = nest.inner_stride(1);
  parallel_tiles(nest.numel, kGrain, [&](int64_t begin, int64_t end) {
    BlockBuffer buffer;
    for_each_row(nest, begin, end, [&](const int64_t* at, int64_t count) {
      // A row that skips logical elements (the last dim is not sharded, but has size 1) is drawn
      // one by one.
      const int64_t longest = step == 1 || count == 1 ? kBlockNumel : 1;
      for (int64_t done = 0; done < count; done += longest) {
        const int64_t run = std::min(longest, count - done);
        const int64_t index = global.first() + at[1] + done * step;
        draw(static_cast<uint64_t>(index), buffer.bytes, run);
        store(out.as<std::byte>() + (at[0] + done * nest.inner_stride(0)) * item,
              nest.inner_stride(0), buffer.bytes, run);
      }
    });
  });
}

void check_probability(const char* operation, double p) {
  MUSTER_CHECK(p >= 0 && p <= 1, ErrorCode::kInvalidArgument,
               "{}: the probability must be in [0, 1]; got {}", operation, p);
}

// 64 random bits for element `index`: two words of counter index / 2.
uint64_t random_pair(const RandomStream& stream, uint64_t index) {
  const auto words = philox4x32(stream.seed, stream.offset, index / 2);
  const size_t first = index % 2 * 2;
  return static_cast<uint64_t>(words[first + 1]) << 32 | words[first];
}
// In [0, 1), a multiple of 2^-53.
double uniform_f64(const RandomStream& stream, uint64_t index) {
  return static_cast<double>(random_pair(stream, index) >> 11) * 0x1p-53;
}

// Box-Muller: the words of a counter give two independent normals.
double normal_f64(const RandomStream& stream, uint64_t index) {
  const uint64_t even = index & ~uint64_t{1};
  const double u = 1.0 - uniform_f64(stream, even);
  const double angle = 2.0 * M_PI * uniform_f64(stream, even + 1);
  const double radius = std::sqrt(-2.0 * std::log(u));
  return radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

ComputeType draw_type(DType dtype) {
  return dtype == DType::kF64 ? ComputeType::kF64 : ComputeType::kF32;
}

void draw_words(const RandomStream& stream, uint64_t index, uint32_t* words, int64_t count) {
  random_words(stream.seed, stream.offset, index, words, count);
}
}  // namespace

void uniform(const TensorView& out, double lo, double hi, const RandomStream& stream) {
  const auto lo32 = static_cast<float>(lo);
  const auto width32 = static_cast<float>(hi - lo);
  const ComputeType type = draw_type(out.dtype);
  fill_random("uniform", out, stream, type, [&](uint64_t index, void* block, int64_t count) {
    if (type == ComputeType::kF64) {
      double* values = static_cast<double*>(block);
      for (int64_t i = 0; i < count; ++i) {
        values[i] = lo + (hi - lo) * uniform_f64(stream, index + static_cast<uint64_t>(i));
      }
      return;
    }
    uint32_t words[kBlockNumel];
    draw_words(stream, index, words, count);
    float* values = static_cast<float*>(block);
    for (int64_t i = 0; i < count; ++i) values[i] = lo32 + width32 * uniform_from_word(words[i]);
  });
}

void normal(const TensorView& out, double mean, double std, const RandomStream& stream) {
  const ComputeType type = draw_type(out.dtype);
  fill_random("normal", out, stream, type, [&](uint64_t index, void* block, int64_t count) {
    if (type == ComputeType::kF64) {
      double* values = static_cast<double*>(block);
      for (int64_t i = 0; i < count; ++i) {
        values[i] = mean + std * normal_f64(stream, index + static_cast<uint64_t>(i));
      }
      return;
    }
    random_normals(stream.seed, stream.offset, index, static_cast<float*>(block), count,
                   static_cast<float>(mean), static_cast<float>(std));
  });
}

void bernoulli(const TensorView& out, double p, const RandomStream& stream) {
  check_probability("bernoulli", p);
  const double threshold = p * 0x1p32;
  fill_random("bernoulli", out, stream, ComputeType::kI32,
              [&](uint64_t index, void* block, int64_t count) {
                uint32_t words[kBlockNumel];
                draw_words(stream, index, words, count);
                int32_t* values = static_cast<int32_t*>(block);
                for (int64_t i = 0; i < count; ++i) {
                  values[i] = static_cast<double>(words[i]) < threshold ? 1 : 0;
                }
              });
}

void bernoulli(const TensorView& out, const TensorView& p, const RandomStream& stream) {
  MUSTER_CHECK(std::ranges::equal(out.sizes, p.sizes), ErrorCode::kInvalidArgument,
               "bernoulli: the probabilities must have the sizes of the output, {}; got {}",
               to_string(out.sizes), to_string(p.sizes));
  const GlobalIndex global("bernoulli", out, stream);
  const Dims strides[] = {out.strides, p.strides, global.strides()};
  const LoopNest nest(out.sizes, strides, LoopNest::Order::kRowMajor);
  const LoadBlock load = block_loader(p.dtype, ComputeType::kF64);
  const StoreBlock store = block_storer(ComputeType::kI32, out.dtype);
  parallel_tiles(nest.numel, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      double chance = 0;
      load(&chance, p.as<const std::byte>() + nest.offset_of(1, i) * item_nbytes(p.dtype), 1, 1);
      check_probability("bernoulli", chance);
      const auto index = static_cast<uint64_t>(global.first() + nest.offset_of(2, i));
      const uint32_t word = random_word(stream.seed, stream.offset, index);
      const int32_t value = bernoulli_from_word(word, chance) ? 1 : 0;
      store(out.as<std::byte>() + nest.offset_of(0, i) * item_nbytes(out.dtype), 1, &value, 1);
    }
  });
}

void dropout(const TensorView& out, const TensorView& in, double p, const RandomStream& stream) {
  check_probability("dropout", p);
  MUSTER_CHECK(std::ranges::equal(out.sizes, in.sizes) && is_floating(in.dtype),
               ErrorCode::kInvalidArgument,
               "dropout: a floating input of the output's sizes, {}; got {} of {}",
               to_string(out.sizes), in.dtype, to_string(in.sizes));
  const GlobalIndex global("dropout", out, stream);
  const Dims strides[] = {out.strides, in.strides, global.strides()};
  const LoopNest nest(out.sizes, strides, LoopNest::Order::kRowMajor);
  const ComputeType type = draw_type(in.dtype);
  const LoadBlock load = block_loader(in.dtype, type);
  const StoreBlock store = block_storer(type, out.dtype);
  const int64_t out_item = item_nbytes(out.dtype);
  const int64_t in_item = item_nbytes(in.dtype);
  const int64_t step = nest.inner_stride(2);
  const double scale = p == 1 ? 0.0 : 1.0 / (1.0 - p);
  parallel_tiles(nest.numel, kGrain, [&](int64_t begin, int64_t end) {
    BlockBuffer buffer;
    uint32_t words[kBlockNumel];
    for_each_row(nest, begin, end, [&](const int64_t* at, int64_t count) {
      const int64_t longest = step == 1 || count == 1 ? kBlockNumel : 1;
      for (int64_t done = 0; done < count; done += longest) {
        const int64_t run = std::min(longest, count - done);
        draw_words(stream, static_cast<uint64_t>(global.first() + at[2] + done * step), words, run);
        const int64_t from = at[1] + done * nest.inner_stride(1);
        load(buffer.bytes, in.as<const std::byte>() + from * in_item, nest.inner_stride(1), run);
        drop(buffer.bytes, type == ComputeType::kF64, words, run, p * 0x1p32, scale);
        const int64_t to = at[0] + done * nest.inner_stride(0);
        store(out.as<std::byte>() + to * out_item, nest.inner_stride(0), buffer.bytes, run);
      }
    });
  });
}

void randint(const TensorView& out, int64_t low, int64_t high, const RandomStream& stream) {
  MUSTER_CHECK(high > low, ErrorCode::kInvalidArgument,
               "randint: high must be larger than low; got low {} and high {}", low, high);
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  fill_random("randint", out, stream, ComputeType::kI64,
              [&](uint64_t index, void* block, int64_t count) {
                int64_t* values = static_cast<int64_t*>(block);
                for (int64_t i = 0; i < count; ++i) {
                  // The high half of the product: a fraction of the range, without division.
                  const unsigned __int128 product = static_cast<unsigned __int128>(random_pair(
                                                        stream, index + static_cast<uint64_t>(i))) *
                                                    range;
                  values[i] = static_cast<int64_t>(static_cast<uint64_t>(low) +
                                                   static_cast<uint64_t>(product >> 64));
                }
              });
}

void exponential(const TensorView& out, double rate, const RandomStream& stream) {
  fill_random("exponential", out, stream, ComputeType::kF64,
              [&](uint64_t index, void* block, int64_t count) {
                double* values = static_cast<double*>(block);
                for (int64_t i = 0; i < count; ++i) {
                  const double u = uniform_f64(stream, index + static_cast<uint64_t>(i));
                  values[i] = -std::log1p(-u) / rate;
                }
              });
}

void randperm(const TensorView& out, uint64_t seed, uint64_t offset) {
  MUSTER_CHECK(out.ndim() == 1, ErrorCode::kInvalidArgument,
               "randperm: the output must have one dim; got sizes {}", to_string(out.sizes));
  struct Entry {
    uint64_t key;
    int64_t place;
  };
  const int64_t count = out.sizes[0];
  const RandomStream stream{.seed = seed, .offset = offset};
  const Workspace<Entry> entries(count);
  for (int64_t i = 0; i < count; ++i) {
    entries[i] = {random_pair(stream, static_cast<uint64_t>(i)), i};
  }
  std::sort(entries.data(), entries.data() + count, [](const Entry& a, const Entry& b) {
    return a.key != b.key ? a.key < b.key : a.place < b.place;
  });
  const StoreBlock store = block_storer(ComputeType::kI64, out.dtype);
  for (int64_t i = 0; i < count; ++i) {
    store(out.as<std::byte>() + i * out.strides[0] * item_nbytes(out.dtype), 1, &entries[i].place,
          1);
  }
}
}  // namespace muster::kernels::cpu
