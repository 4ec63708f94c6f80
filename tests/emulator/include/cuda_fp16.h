#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/float16.h"

struct __half {
  __half() = default;
  __half(float value) : bits(kvsim::float_to_fp16(value)) {}
  operator float() const { return kvsim::fp16_to_float(bits); }

  std::uint16_t bits;
};
struct alignas(4) __half2 {
  __half x, y;
};

inline float __half2float(__half value) { return value; }
inline __half __float2half_rn(float value) { return value; }
inline float2 __half22float2(__half2 pair) { return {__half2float(pair.x), __half2float(pair.y)}; }
/// The product of two 11-bit significands is exact in float32, so it is rounded once.
inline __half2 __hmul2(__half2 a, __half2 b) {
  return {__float2half_rn(__half2float(a.x) * __half2float(b.x)),
          __float2half_rn(__half2float(a.y) * __half2float(b.y))};
}
