#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/exact_math.h"
#include "core/host_device.h"
#include "core/philox.h"

namespace kvsim {

// Bernoulli qKᵀ (SANTA paper, arXiv 2605.01910, §5), shared by the CPU reference and the CUDA
// kernels: how often each feature of a query is drawn.
//
// A feature of magnitude |q_i| is drawn with p_i = |q_i| / norm, norm the largest magnitude, B
// times. Draw n asks whether (n + u) / B < p_i (stratified) or u < p_i (iid), u uniform in units of
// 2^-24. Both sides are integers: p_i comes from the mantissas and exponents of two floats, rounded
// down to units of 2^-24 (of 1/B if stratified), so no rounding mode or fused operation can change
// a count.

inline constexpr int kMaxQueryDraws = 64;
inline constexpr int kDrawBits = 24;  // of a random threshold

/// How a query becomes the sum of B ternary ones.
struct QueryDraws {
  std::uint32_t draws = 4;  // B, 1 to kMaxQueryDraws
  bool stratified = true;   // draw n in [n/B, (n+1)/B); else all in [0, 1)
  bool group_mean = false;  // one draw for the group, from its mean magnitudes (SANTA eq. 6)
};

/// A finite float's magnitude as mantissa * 2^exponent.
struct Magnitude {
  std::uint32_t mantissa = 0;  // below 2^24
  int exponent = 0;

  KVSIM_HD static Magnitude of(float x) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) & 0x7fffffffu;
    const std::uint32_t exponent = bits >> 23;
    if (exponent == 0) return {bits, 1};  // zero and subnormal numbers have no leading one
    return {(bits & 0x007fffffu) | 0x00800000u, static_cast<int>(exponent)};
  }
};

/// |x| / |norm| * strata in units of 2^-24, rounded down; 0 if norm is 0. |x| must not exceed
/// |norm|, so the result is at most strata * 2^24.
KVSIM_HD inline std::uint32_t draw_units(float x, float norm, std::uint32_t strata) {
  const Magnitude value = Magnitude::of(x);
  const Magnitude largest = Magnitude::of(norm);
  const int shift = largest.exponent - value.exponent;
  if (largest.mantissa == 0 || shift >= 64) return 0;
  const std::uint64_t scaled = (std::uint64_t{value.mantissa} * strata) << kDrawBits;  // < 2^55
  return short_quotient(scaled >> shift, largest.mantissa);
}

/// c_i, how many of the B draws of feature `feature` hit, `norm` being the largest magnitude. Draw
/// n takes word feature * B + n of the stream. Stratified, only the stratum that p_i ends in is
/// open: all below it hit, all above miss, so c_i is B p_i rounded down or up.
KVSIM_HD inline std::uint32_t feature_count(float x, float norm, const QueryDraws& query,
                                            const RandomStream& random, std::uint32_t feature) {
  const std::uint32_t units = draw_units(x, norm, query.stratified ? query.draws : 1);
  const std::uint32_t sure = query.stratified ? units >> kDrawBits : 0;  // draws that hit
  const std::uint32_t rest = units - (sure << kDrawBits);                // of those that may
  const std::uint32_t end = query.stratified ? sure + (rest > 0 ? 1 : 0) : query.draws;
  std::uint32_t count = sure;
  for (std::uint32_t n = sure; n < end; ++n) {
    count += random.threshold24(feature * query.draws + n) < rest ? 1 : 0;
  }
  return count;
}

/// What a feature's key element is multiplied by: c_i sign(q_i) (SANTA §5), a whole number.
KVSIM_HD inline float ternary_weight(std::uint32_t count, float q) {
  return std::copysign(static_cast<float>(count), q);
}

/// The same from the group's magnitudes m_i >= |q_i|: c_i (q_i / m_i) (SANTA eq. 6), 0 where m_i
/// is.
KVSIM_HD inline float mean_query_weight(std::uint32_t count, float q, float m) {
  return count == 0 ? 0.0f : static_cast<float>(count) * (q / m);
}

}  // namespace kvsim
