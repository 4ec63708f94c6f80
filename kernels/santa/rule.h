#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/exact_math.h"
#include "core/host_device.h"

namespace kvsim {

// The rule of every SANTA sampler, shared by the CPU reference and the CUDA kernels.
//
// Probabilities are integers. Within a tile a token's weight e^(s - m_t), m_t the tile's largest
// score, becomes a multiple of 2^-23; a tile's mass is rescaled once, to multiples of 2^-40 of the
// head's largest weight. Integer addition is associative, so the distribution, and with it every
// selected row, does not depend on how tiles were split over threads, CTAs or vector lanes; prefix
// sums are monotone; and the last prefix equals the total, so counts always sum to S.

inline constexpr std::int64_t kMaxSamples = 1 << 20;
inline constexpr int kMassTile = 256;  // tokens whose masses share one scale; not a budget tile

__extension__ using Uint128 = unsigned __int128;

/// Weight in [0, 1] to units of 2^-23, nearest: adding 2^23 leaves it in the mantissa's low bits.
KVSIM_HD inline std::uint32_t token_mass(float weight) {
  return std::bit_cast<std::uint32_t>(std::fma(weight, 0x1p23f, 0x1p23f)) -
         std::bit_cast<std::uint32_t>(0x1p23f);
}

/// e^(m_t - m) as mantissa * 2^-(17 + shift), so that token units (2^-23) times mantissa, shifted
/// right by `shift`, are units of 2^-40.
struct TileScale {
  std::uint32_t mantissa = 0;
  std::uint32_t shift = 0;
};

KVSIM_HD inline TileScale tile_scale(float ratio) {
  const auto bits = std::bit_cast<std::uint32_t>(ratio);
  if (bits < 0x00800000u) return {};  // zero, or below 2^-126: no mass
  return {(bits & 0x007fffffu) | 0x00800000u, 6 + 127 - (bits >> 23)};
}

/// Mass, in units of 2^-40 of the head's largest weight, of `units` token units of a tile.
/// Monotone.
KVSIM_HD inline std::uint64_t head_mass(std::uint32_t units, TileScale scale) {
  return scale.shift < 64 ? (std::uint64_t{units} * scale.mantissa) >> scale.shift : 0;
}

/// (a * b) >> shift where that fits 64 bits, for shifts of 1 to 63.
KVSIM_HD inline std::uint64_t shifted_product(std::uint64_t a, std::uint64_t b, int shift) {
  const Uint128 product = Uint128{a} * b;
  return static_cast<std::uint64_t>(product >> 64) << (64 - shift) |
         static_cast<std::uint64_t>(product) >> shift;
}

/// The least units of a tile whose mass exceeds `mass`, which is below the whole tile's: what rows
/// are found by, among 32-bit prefix sums.
KVSIM_HD inline std::uint32_t units_above(std::uint64_t mass, TileScale scale) {
  return short_quotient(((mass + 1) << scale.shift) - 1, scale.mantissa) + 1;
}

/// Threshold `sample` of `samples` in a tile of `units`: floor((sample + random24 * 2^-24) /
/// samples * units), as Strata has it.
KVSIM_HD inline std::uint32_t tile_threshold(std::uint32_t units, std::uint32_t samples,
                                             std::uint32_t sample, std::uint32_t random24) {
  const std::uint64_t scaled =
      std::uint64_t{sample} * units + ((std::uint64_t{random24} * units) >> 24);
  return short_quotient(scaled, samples);
}

/// S thresholds in a mass of `total`: threshold m is floor((m + random24 * 2^-24) / S * total),
/// always below `total`. A row is drawn when it is the first whose cumulative mass exceeds a
/// threshold (SANTA §2.1, F(j) > (m + u) / S). S is at most kMaxSamples.
struct Strata {
  std::uint64_t total = 0;
  std::uint64_t quotient = 0;  // total = quotient * samples + remainder
  float per_mass = 0;          // samples / total, for estimates
  std::uint32_t remainder = 0;
  std::uint32_t samples = 1;
  int shift = 0;  // log2 of samples if that is whole, so that nothing need be divided; else 64

  KVSIM_HD static Strata of(std::uint64_t total, std::uint32_t samples) {
    Strata strata;
    strata.total = total;
    strata.samples = samples;
    strata.per_mass = static_cast<float>(samples) * estimated_inverse(static_cast<float>(total));
    // A power of two below 2^24 is exact as a float: its exponent is the shift.
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(samples));
    strata.shift = (samples & (samples - 1)) == 0 ? static_cast<int>(bits >> 23) - 127 : 64;
    strata.quotient = strata.shift < 64 ? total >> strata.shift : total / samples;
    strata.remainder = static_cast<std::uint32_t>(total - strata.quotient * samples);
    return strata;
  }
  /// position * total / (samples * 2^24); with nested floors where samples is no power of two, so
  /// that nothing of 128 bits is divided.
  KVSIM_HD std::uint64_t threshold(std::uint32_t index, std::uint32_t random24) const {
    const std::uint64_t position = (std::uint64_t{index} << 24) + random24;
    if (shift < 64) return shifted_product(position, total, 24 + shift);
    const Uint128 product = Uint128{position} * quotient + position * remainder / samples;
    return static_cast<std::uint64_t>(product >> 24);
  }
  /// How many thresholds lie below `mass`, `random24(m)` being the offset of threshold m.
  template <typename Random>
  KVSIM_HD std::uint32_t below(std::uint64_t mass, const Random& random24) const {
    const float stratum = static_cast<float>(mass) * per_mass;  // off by one at most
    auto m = stratum < static_cast<float>(samples) ? static_cast<std::uint32_t>(stratum) : samples;
    while (m > 0 && threshold(m - 1, random24(m - 1)) >= mass) --m;
    while (m < samples && threshold(m, random24(m)) < mass) ++m;
    return m;
  }
};

/// Width of a budget tile: by the prompt's length, as the released kernels choose it, so that it
/// does not switch in the middle of a trace.
KVSIM_HD inline int budget_tile(std::int64_t prompt_tokens) {
  return prompt_tokens <= 1536 ? 32 : (prompt_tokens <= 3072 ? 64 : 256);
}

/// Samples of each tile where no tile knows the others' mass (SANTA §3.3): S dealt out evenly, but
/// at least one, so that no tile's mass is lost. `tiles` is below 2^24.
KVSIM_HD inline std::uint32_t even_budget(std::uint32_t tile, std::uint32_t tiles,
                                          std::uint32_t samples) {
  const std::uint32_t before = short_quotient(std::uint64_t{tile} * samples, tiles);
  const std::uint32_t through = short_quotient((std::uint64_t{tile} + 1) * samples, tiles);
  return through > before ? through - before : 1;
}

/// A tile's share of S samples before the remainders are dealt out: floor and remainder of
/// S * mass / total, exact.
struct Share {
  std::uint32_t whole = 0;
  std::uint64_t remainder = 0;  // of `total`
};

KVSIM_HD inline Share budget_share(std::uint64_t mass, std::uint32_t samples, std::uint64_t total) {
  // The quotient is off by one at most; the remainder modulo 2^64 tells, as total < 2^62. No
  // branches: lanes and shares do not wait for each other. `below` and `inside` are masks, all ones
  // or none.
  const float per_mass = static_cast<float>(samples) * estimated_inverse(static_cast<float>(total));
  auto whole = static_cast<std::uint32_t>(static_cast<float>(mass) * per_mass);
  std::uint64_t remainder = mass * samples - whole * total;
  const auto below = static_cast<std::uint64_t>(static_cast<std::int64_t>(remainder) >> 63);
  remainder += total & below;
  const auto inside =
      static_cast<std::uint64_t>(static_cast<std::int64_t>(remainder - total) >> 63);
  remainder -= total & ~inside;
  whole += static_cast<std::uint32_t>(below) - static_cast<std::uint32_t>(~inside);
  return {whole, remainder};
}

}  // namespace kvsim
