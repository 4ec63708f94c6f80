#pragma once

#include <cstdint>

namespace kvsim::device {

/// Floats as integers of the same order; both zeros are one key.
__device__ inline std::uint32_t key_of(float value) {
  const std::uint32_t bits = __float_as_uint(value + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ inline float value_of(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}

}  // namespace kvsim::device
