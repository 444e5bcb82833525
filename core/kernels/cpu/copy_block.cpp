#include "core/kernels/cpu/copy_block.h"

#include <cstring>

#include "core/kernels/cpu/copy_convert.h"
#include "core/kernels/cpu/copy_vec.h"

namespace muster::kernels::cpu {
namespace {
template <typename S, typename D>
void load_block(void* to, const void* from, int64_t stride, int64_t count) {
  const S* src = static_cast<const S*>(from);
  D* dst = static_cast<D*>(to);
  if (stride == 1) {
    if constexpr (std::is_same_v<S, BFloat16> && std::is_same_v<D, float>) {
      widen_bf16(dst, src, count);
      return;
    } else if constexpr (std::is_same_v<S, Half> && std::is_same_v<D, float>) {
      widen_f16(dst, src, count);
      return;
    }
    for (int64_t i = 0; i < count; ++i) dst[i] = convert<D>(src[i]);
  } else if (stride == 0) {
    const D value = convert<D>(src[0]);
    for (int64_t i = 0; i < count; ++i) dst[i] = value;
  } else {
    for (int64_t i = 0; i < count; ++i) dst[i] = convert<D>(src[i * stride]);
  }
}

template <typename S, typename D>
void store_block(void* to, int64_t stride, const void* from, int64_t count) {
  const S* src = static_cast<const S*>(from);
  D* dst = static_cast<D*>(to);
  if (stride == 1) {
    if constexpr (std::is_same_v<S, float> && std::is_same_v<D, BFloat16>) {
      narrow_bf16(dst, src, count);
      return;
    } else if constexpr (std::is_same_v<S, float> && std::is_same_v<D, Half>) {
      narrow_f16(dst, src, count);
      return;
    }
    for (int64_t i = 0; i < count; ++i) dst[i] = convert<D>(src[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) dst[i * stride] = convert<D>(src[i]);
  }
}

template <typename Body>
auto visit_compute(ComputeType type, Body&& body) {
  switch (type) {
    case ComputeType::kF32:
      return body(float{});
    case ComputeType::kF64:
      return body(double{});
    case ComputeType::kI64:
      return body(int64_t{});
    case ComputeType::kI32:
      break;
  }
  return body(int32_t{});
}
}  // namespace

ComputeType compute_type(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
      return ComputeType::kF32;
    case DType::kF64:
      return ComputeType::kF64;
    case DType::kI64:
      return ComputeType::kI64;
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
    case DType::kI16:
    case DType::kI32:
      break;
  }
  return ComputeType::kI32;
}

DType dtype_of_compute(ComputeType type) noexcept {
  constexpr DType kTypes[] = {DType::kF32, DType::kF64, DType::kI64, DType::kI32};
  return kTypes[static_cast<int>(type)];
}

LoadBlock block_loader(DType from, ComputeType to) noexcept {
  return visit_dtype(from, [&](auto source) {
    return visit_compute(to, [&](auto target) -> LoadBlock {
      return &load_block<decltype(source), decltype(target)>;
    });
  });
}

StoreBlock block_storer(ComputeType from, DType to) noexcept {
  return visit_dtype(to, [&](auto target) {
    return visit_compute(from, [&](auto source) -> StoreBlock {
      return &store_block<decltype(source), decltype(target)>;
    });
  });
}

BlockReader::BlockReader(const void* data, DType dtype, const LoopNest& nest, int operand,
                         ComputeType type)
    : data_(static_cast<const std::byte*>(data)),
      nest_(&nest),
      operand_(operand),
      item_(item_nbytes(dtype)),
      compute_item_(item_nbytes(dtype_of_compute(type))),
      same_type_(dtype == dtype_of_compute(type)),
      contiguous_(nest.is_contiguous(operand)),
      load_(block_loader(dtype, type)) {}

const void* BlockReader::read(int64_t begin, int64_t count, void* buffer, int64_t base) const {
  const std::byte* start = data_ + base * item_;
  if (contiguous_) {
    const std::byte* from = start + begin * item_;
    if (same_type_) return from;
    load_(buffer, from, 1, count);
    return buffer;
  }
  const int64_t stride = nest_->inner_stride(operand_);
  if (same_type_ && stride == 1 && begin % nest_->inner_size() + count <= nest_->inner_size()) {
    return start + nest_->offset_of(operand_, begin) * item_;
  }
  auto* to = static_cast<std::byte*>(buffer);
  for_each_row(*nest_, operand_, begin, begin + count, [&](int64_t offset, int64_t run) {
    load_(to, start + offset * item_, stride, run);
    to += run * compute_item_;
  });
  return buffer;
}

BlockWriter::BlockWriter(const TensorView& view, const LoopNest& nest, int operand,
                         ComputeType type)
    : data_(static_cast<std::byte*>(view.data)),
      nest_(&nest),
      operand_(operand),
      item_(item_nbytes(view.dtype)),
      compute_item_(item_nbytes(dtype_of_compute(type))),
      same_type_(view.dtype == dtype_of_compute(type)),
      contiguous_(nest.is_contiguous(operand)),
      store_(block_storer(type, view.dtype)) {}

std::byte* BlockWriter::direct(int64_t begin, int64_t count) const {
  if (!same_type_) return nullptr;
  if (contiguous_) return data_ + begin * item_;
  if (nest_->inner_stride(operand_) == 1 &&
      begin % nest_->inner_size() + count <= nest_->inner_size()) {
    return data_ + nest_->offset_of(operand_, begin) * item_;
  }
  return nullptr;
}

void* BlockWriter::target(int64_t begin, int64_t count, void* buffer) const {
  std::byte* place = direct(begin, count);
  return place != nullptr ? place : buffer;
}

void BlockWriter::write(int64_t begin, int64_t count, const void* from) const {
  if (contiguous_) {
    std::byte* to = data_ + begin * item_;
    if (to != from) store_(to, 1, from, count);
    return;
  }
  if (direct(begin, count) == from) return;
  const int64_t stride = nest_->inner_stride(operand_);
  const auto* source = static_cast<const std::byte*>(from);
  for_each_row(*nest_, operand_, begin, begin + count, [&](int64_t offset, int64_t run) {
    store_(data_ + offset * item_, stride, source, run);
    source += run * compute_item_;
  });
}
}  // namespace muster::kernels::cpu
