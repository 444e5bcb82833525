#pragma once
/// `Ref<T>`: an intrusive, thread-safe reference count.
///
/// One pointer wide, so that a tensor handle is one pointer and a move is one store. T derives from
/// RefCounted. Cycles are the owner's business: there is no weak form.

#include <atomic>
#include <cstdint>
#include <utility>

namespace muster {

/// Base of objects that Ref counts.
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;
  virtual ~RefCounted() = default;

  void retain() const noexcept { count_.fetch_add(1, std::memory_order_relaxed); }
  /// True when the last reference went away; the caller then deletes the object.
  [[nodiscard]] bool release() const noexcept {
    // A sole owner needs no atomic write: nobody else can reach the count.
    if (count_.load(std::memory_order_acquire) == 1) return true;
    return count_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }
  [[nodiscard]] uint32_t use_count() const noexcept {
    return count_.load(std::memory_order_acquire);
  }

 private:
  mutable std::atomic<uint32_t> count_{0};
};

template <typename T>
class Ref {
 public:
  Ref() noexcept = default;
  Ref(std::nullptr_t) noexcept {}  // NOLINT(google-explicit-constructor)
  explicit Ref(T* object) noexcept : object_(object) {
    if (object_ != nullptr) object_->retain();
  }
  Ref(const Ref& other) noexcept : Ref(other.object_) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  template <typename U>
  Ref(const Ref<U>& other) noexcept : Ref(static_cast<T*>(other.get())) {}  // NOLINT
  template <typename U>
  Ref(Ref<U>&& other) noexcept : object_(static_cast<T*>(other.detach())) {}  // NOLINT
  Ref& operator=(const Ref& other) noexcept {
    Ref(other).swap(*this);
    return *this;
  }
  Ref& operator=(Ref&& other) noexcept {
    Ref(std::move(other)).swap(*this);
    return *this;
  }
  ~Ref() { reset(); }

  void reset() noexcept {
    T* object = std::exchange(object_, nullptr);
    if (object != nullptr && object->release()) delete object;
  }
  /// Gives the reference up without releasing it.
  [[nodiscard]] T* detach() noexcept { return std::exchange(object_, nullptr); }
  void swap(Ref& other) noexcept { std::swap(object_, other.object_); }

  [[nodiscard]] T* get() const noexcept { return object_; }
  T* operator->() const noexcept { return object_; }
  T& operator*() const noexcept { return *object_; }
  explicit operator bool() const noexcept { return object_ != nullptr; }
  friend bool operator==(const Ref& a, const Ref& b) noexcept { return a.object_ == b.object_; }

 private:
  T* object_ = nullptr;
};

template <typename T, typename... Args>
Ref<T> make_ref(Args&&... args) {
  return Ref<T>(new T(std::forward<Args>(args)...));
}

}  // namespace muster
