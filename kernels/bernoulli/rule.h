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
// 2^-24. Both sides are integers: p_i is a quotient of two floats' mantissas, shifted by the
// difference of their exponents, so no rounding mode or fused operation can change a count.

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

/// p * strata = |x| / |norm| * strata, |x| <= |norm|, as a quotient of whole numbers: scaled /
/// (mantissa * 2^24). It need not be divided to be compared.
struct DrawRatio {
  std::uint64_t scaled = 0;  // below 2^55, rounded down
  std::uint32_t mantissa = 1;
  float estimate = 0;  // p * strata, up to rounding

  KVSIM_HD static DrawRatio of(float x, float norm, std::uint32_t strata) {
    const Magnitude value = Magnitude::of(x);
    const Magnitude largest = Magnitude::of(norm);
    const int shift = largest.exponent - value.exponent;
    if (largest.mantissa == 0 || shift >= 64) return {};  // zero, or as good as
    const std::uint32_t product = value.mantissa * strata;
    const auto power = std::bit_cast<float>(static_cast<std::uint32_t>(127 - shift) << 23);
    return {(std::uint64_t{product} << kDrawBits) >> shift, largest.mantissa,
            static_cast<float>(product) * power *
                estimated_inverse(static_cast<float>(largest.mantissa))};
  }
  /// Whether p * strata is at least units * 2^-24, where `units` is below 2^31.
  KVSIM_HD bool reaches(std::uint32_t units) const {
    return scaled >= std::uint64_t{mantissa} * units;
  }
  /// p * strata, rounded down.
  KVSIM_HD std::uint32_t whole() const {
    const auto near = static_cast<std::uint32_t>(estimate);  // off by one at most
    if (near > 0 && !reaches(near << kDrawBits)) return near - 1;
    return reaches((near + 1) << kDrawBits) ? near + 1 : near;
  }
};

// c_i, how many of the B draws of feature `feature` hit, `norm` being the largest magnitude. Draw n
// takes word feature * B + n of the stream.

/// Stratified: only the stratum that p_i ends in is open. All below it hit, all above miss, so c_i
/// is B p_i rounded down or up. Where p_i is 1 none is open, and the word cannot hit.
KVSIM_HD inline std::uint32_t stratified_count(float x, float norm, std::uint32_t draws,
                                               const RandomStream& random, std::uint32_t feature) {
  const DrawRatio ratio = DrawRatio::of(x, norm, draws);
  const std::uint32_t whole = ratio.whole();
  const std::uint32_t threshold = random.threshold24(feature * draws + whole);
  return whole + (ratio.reaches((whole << kDrawBits) + threshold + 1) ? 1 : 0);
}

KVSIM_HD inline std::uint32_t iid_count(float x, float norm, std::uint32_t draws,
                                        const RandomStream& random, std::uint32_t feature) {
  const DrawRatio ratio = DrawRatio::of(x, norm, 1);
  std::uint32_t count = 0;
  for (std::uint32_t n = 0; n < draws; ++n) {
    count += ratio.reaches(random.threshold24(feature * draws + n) + 1) ? 1 : 0;
  }
  return count;
}

KVSIM_HD inline std::uint32_t feature_count(float x, float norm, const QueryDraws& query,
                                            const RandomStream& random, std::uint32_t feature) {
  return query.stratified ? stratified_count(x, norm, query.draws, random, feature)
                          : iid_count(x, norm, query.draws, random, feature);
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
