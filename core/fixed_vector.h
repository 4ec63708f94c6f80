#pragma once

#include <array>
#include <cstddef>

#include "core/error.h"

namespace kvsim {

/// At most `kCapacity` elements without heap: the work of a step is built millions of times in
/// sweeps.
template <typename T, std::size_t kCapacity>
class FixedVector {
 public:
  void push_back(const T& value) {
    KVSIM_CHECK(size_ < kCapacity);
    values_[size_++] = value;
  }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const T* begin() const { return values_.data(); }
  const T* end() const { return values_.data() + size_; }
  T* begin() { return values_.data(); }
  T* end() { return values_.data() + size_; }
  const T& operator[](std::size_t i) const { return values_[i]; }
  T& operator[](std::size_t i) { return values_[i]; }
  T& back() { return values_[size_ - 1]; }

 private:
  std::array<T, kCapacity> values_{};
  std::size_t size_ = 0;
};

}  // namespace kvsim
