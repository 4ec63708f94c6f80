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

/// e^x - 1 for x <= 0, without the cancellation near zero: relative error below 2^-20.
KVSIM_HD inline float expm1_nonpositive(float x) {
  if (x < -0.34f) return exp_nonpositive(x) - 1.0f;
  float p = 1.9875691500e-4f;  // the polynomial above
  p = std::fma(p, x, 1.3981999507e-3f);
  p = std::fma(p, x, 8.3334519073e-3f);
  p = std::fma(p, x, 4.1665795894e-2f);
  p = std::fma(p, x, 1.6666665459e-1f);
  p = std::fma(p, x, 5.0000001201e-1f);
  return std::fma(p, x * x, x);
}

/// ln x for normal x > 0 with the same bits everywhere, as above: relative error below 2^-22.
KVSIM_HD inline float log_positive(float x) {
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr std::uint32_t kRootHalf = 0x3F3504F3;  // bits of the square root of 1/2
  // x = 2^n (1 + f), 1 + f between √½ and √2.
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const auto exponent = static_cast<std::int32_t>(bits - kRootHalf) >> 23;
  const auto n = static_cast<float>(exponent);
  const float f = std::bit_cast<float>(bits - (static_cast<std::uint32_t>(exponent) << 23)) - 1.0f;
  // Minimax polynomial (Cephes logf coefficients).
  float p = 7.0376836292e-2f;
  p = std::fma(p, f, -1.1514610310e-1f);
  p = std::fma(p, f, 1.1676998740e-1f);
  p = std::fma(p, f, -1.2420140846e-1f);
  p = std::fma(p, f, 1.4249322787e-1f);
  p = std::fma(p, f, -1.6668057665e-1f);
  p = std::fma(p, f, 2.0000714765e-1f);
  p = std::fma(p, f, -2.4999993993e-1f);
  p = std::fma(p, f, 3.3333331174e-1f);
  const float square = f * f;
  float rest = p * (f * square);
  rest = std::fma(n, kLn2Low, rest);
  rest = std::fma(-0.5f, square, rest);
  return std::fma(n, kLn2High, f + rest);
}

/// ln(1 + x) for x > -1, without the cancellation near zero.
KVSIM_HD inline float log1p_exact(float x) {
  const float sum = 1.0f + x;
  const float lost = x - (sum - 1.0f);  // exact
  return log_positive(sum) + lost / sum;
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
