#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/float16.h"

struct __nv_bfloat16 {
  __nv_bfloat16() = default;
  __nv_bfloat16(float value) : bits(kvsim::float_to_bf16(value)) {}
  operator float() const { return kvsim::bf16_to_float(bits); }

  std::uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 value) { return value; }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return value; }
