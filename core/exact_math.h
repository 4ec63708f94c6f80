#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/host_device.h"

namespace kvsim {

/// e^x for x <= 0 (x > 0 is clamped to 0), the one exponential that decisions depend on: only IEEE
/// multiplications, additions and fused multiply-adds, so CPU (any vector width) and GPU return the
/// same bits. Relative error below 2^-22.5; x <= -87 (results below 2^-125) gives 0; exp(-inf) = 0.
KVSIM_HD inline float exp_nonpositive(float x) {
  constexpr float kLog2e = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;  // 9 bits, so that n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float clamped = x > 0.0f ? 0.0f : (x > -87.0f ? x : -87.0f);
  const float rounded = std::fma(clamped, kLog2e, kRound);
  const float n = rounded - kRound;
  float r = std::fma(n, -kLn2High, clamped);
  r = std::fma(n, -kLn2Low, r);
  // Minimax polynomial of e^r on [-ln2/2, ln2/2] (Cephes expf coefficients).
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  p = std::fma(p, r * r, r) + 1.0f;
  const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(rounded) + 127) << 23;  // n + 127
  const float result = p * std::bit_cast<float>(exponent);
  return x > -87.0f ? result : (x <= -87.0f ? 0.0f : x);  // the last keeps NaN
}

/// 1 / x for estimates: within 2^-22.
KVSIM_HD inline float estimated_inverse(float x) {
#ifdef __CUDA_ARCH__
  return __fdividef(1.0f, x);
#else
  return 1.0f / x;
#endif
}

/// value / divisor, exact, by estimates that cost less than a division of 64 bits; for values below
/// 2^56, divisors below 2^24 and quotients below 2^31.
KVSIM_HD inline std::uint32_t short_quotient(std::uint64_t value, std::uint32_t divisor) {
  const float inverse = estimated_inverse(static_cast<float>(divisor));
  auto quotient = static_cast<std::uint32_t>(static_cast<float>(value) * inverse);  // within 2^10
  auto rest = static_cast<std::int64_t>(value - std::uint64_t{quotient} * divisor);
  const auto more = static_cast<std::int32_t>(std::floor(static_cast<float>(rest) * inverse));
  quotient += static_cast<std::uint32_t>(more);
  rest -= std::int64_t{more} * divisor;
  if (rest < 0) return quotient - 1;
  return rest < static_cast<std::int64_t>(divisor) ? quotient : quotient + 1;
}

}  // namespace kvsim
