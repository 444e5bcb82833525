#pragma once
/// A growing array of any movable type with room for N values inline.
///
/// Graph nodes keep their edges in it: most have one or two, and recording must not allocate for
/// them. Not copyable. For trivially copyable values that are copied a lot see SmallVector.

#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace muster {

template <typename T, size_t N>
class InlinedVector {
 public:
  InlinedVector() noexcept = default;
  InlinedVector(const InlinedVector&) = delete;
  InlinedVector& operator=(const InlinedVector&) = delete;
  ~InlinedVector() {
    clear();
    if (data_ != inline_data()) std::allocator<T>().deallocate(data_, capacity_);
  }

  template <typename... Args>
  T& emplace_back(Args&&... args) {
    if (size_ == capacity_) grow(capacity_ * 2);
    return *std::construct_at(data_ + size_++, std::forward<Args>(args)...);
  }
  void clear() noexcept {
    std::destroy_n(data_, size_);
    size_ = 0;
  }
  void reserve(size_t capacity) {
    if (capacity > capacity_) grow(capacity);
  }

  [[nodiscard]] size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  T& operator[](size_t i) noexcept { return data_[i]; }
  const T& operator[](size_t i) const noexcept { return data_[i]; }
  T* begin() noexcept { return data_; }
  T* end() noexcept { return data_ + size_; }
  const T* begin() const noexcept { return data_; }
  const T* end() const noexcept { return data_ + size_; }

 private:
  T* inline_data() noexcept { return std::launder(reinterpret_cast<T*>(inline_)); }
  void grow(size_t capacity) {
    T* grown = std::allocator<T>().allocate(capacity);
    std::uninitialized_move_n(data_, size_, grown);
    std::destroy_n(data_, size_);
    if (data_ != inline_data()) std::allocator<T>().deallocate(data_, capacity_);
    data_ = grown;
    capacity_ = capacity;
  }

  T* data_ = inline_data();
  size_t size_ = 0;
  size_t capacity_ = N;
  alignas(T) std::byte inline_[N * sizeof(T)];
};

}  // namespace muster
