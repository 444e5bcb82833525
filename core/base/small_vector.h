#pragma once
/// A vector of trivially copyable values with room for N of them inline.
///
/// Tensor shapes live in it, so that making a tensor of up to N dims allocates nothing. Not a full
/// std::vector: no insert or erase in the middle beyond what shapes need.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <type_traits>

#include "core/base/error.h"

namespace muster {

template <typename T, size_t N>
class SmallVector {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  using value_type = T;

  SmallVector() noexcept = default;
  explicit SmallVector(size_t count, T value = T()) { resize(count, value); }
  SmallVector(std::initializer_list<T> values) { assign(values.begin(), values.size()); }
  SmallVector(std::span<const T> values) { assign(values.data(), values.size()); }  // NOLINT
  template <typename Iterator>
  requires(!std::is_integral_v<Iterator>) SmallVector(Iterator first, Iterator last) {
    for (; first != last; ++first) push_back(*first);
  }
  SmallVector(const SmallVector& other) {
    if (other.data_ == other.inline_) {
      copy_inline(other);
    } else {
      assign(other.data(), other.size_);
    }
  }
  SmallVector(SmallVector&& other) noexcept { steal(other); }
  SmallVector& operator=(const SmallVector& other) {
    if (this != &other) assign(other.data(), other.size_);
    return *this;
  }
  SmallVector& operator=(SmallVector&& other) noexcept {
    if (this != &other) {
      release();
      steal(other);
    }
    return *this;
  }
  ~SmallVector() { release(); }

  [[nodiscard]] size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  T* data() noexcept { return data_; }
  const T* data() const noexcept { return data_; }
  T* begin() noexcept { return data_; }
  T* end() noexcept { return data_ + size_; }
  const T* begin() const noexcept { return data_; }
  const T* end() const noexcept { return data_ + size_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T& back() { return data_[size_ - 1]; }
  const T& back() const { return data_[size_ - 1]; }
  T& front() { return data_[0]; }
  const T& front() const { return data_[0]; }

  [[nodiscard]] std::span<const T> span() const noexcept { return {data_, size_}; }

  void push_back(T value) {
    if (size_ == capacity_) grow(capacity_ * 2);
    data_[size_++] = value;
  }
  void pop_back() { --size_; }
  void clear() noexcept { size_ = 0; }
  void resize(size_t count, T value = T()) {
    if (count > capacity_) grow(count);
    if (count > size_) std::fill(data_ + size_, data_ + count, value);
    size_ = static_cast<uint32_t>(count);
  }
  void insert(size_t at, T value) {
    push_back(value);
    std::rotate(data_ + at, data_ + size_ - 1, data_ + size_);
  }
  void erase(size_t at) {
    std::copy(data_ + at + 1, data_ + size_, data_ + at);
    --size_;
  }

  friend bool operator==(const SmallVector& a, const SmallVector& b) {
    return a.size_ == b.size_ && std::equal(a.begin(), a.end(), b.begin());
  }

 private:
  void assign(const T* values, size_t count) {
    if (count > capacity_) grow(count);
    if (count > 0) std::memmove(data_, values, count * sizeof(T));
    size_ = static_cast<uint32_t>(count);
  }
  // A copy of fixed size is a few moves; one of variable size is a call. Unused values are copied
  // too.
  void copy_inline(const SmallVector& other) noexcept {
    size_ = other.size_;
    std::memcpy(static_cast<void*>(inline_), other.inline_, sizeof(inline_));
  }
  void grow(size_t capacity) {
    T* grown = new T[capacity];
    if (size_ > 0) std::memcpy(grown, data_, size_ * sizeof(T));
    release();
    data_ = grown;
    capacity_ = static_cast<uint32_t>(capacity);
  }
  void release() noexcept {
    if (data_ != inline_) delete[] data_;
    data_ = inline_;
    capacity_ = N;
  }
  void steal(SmallVector& other) noexcept {
    if (other.data_ == other.inline_) {
      copy_inline(other);
    } else {
      data_ = other.data_;
      size_ = other.size_;
      capacity_ = other.capacity_;
      other.data_ = other.inline_;
      other.capacity_ = N;
    }
    other.size_ = 0;
  }

  T* data_ = inline_;
  uint32_t size_ = 0;
  uint32_t capacity_ = N;
  T inline_[N];
};

}  // namespace muster
