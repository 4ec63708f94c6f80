#include "traces/gaussian.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "core/error.h"

namespace kvsim {
namespace {

constexpr int kBlocks = 64;  // of four words, at a time

/// ln x for positive normal x; error below 1e-14.
inline double logarithm(double x) {
  constexpr double kLn2 = 0.693147180559945309417;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  // Mantissa in [sqrt(1/2), sqrt(2)): add the distance from sqrt(1/2) to 1 and read the exponent.
  constexpr std::uint64_t kShift = 0x3ff0000000000000ull - 0x3fe6a09e667f3bcdull;
  const std::uint64_t shifted = bits + kShift;
  // The exponent field as the low bits of 2^52, since AVX2 cannot convert 64-bit integers.
  const double exponent =
      std::bit_cast<double>((shifted >> 52) | 0x4330000000000000ull) - (0x1p52 + 1023);
  const double m = std::bit_cast<double>((shifted & 0x000fffffffffffffull) + 0x3fe6a09e667f3bcdull);
  const double s = (m - 1) / (m + 1);
  const double z = s * s;
  double p = 1.0 / 17;
  p = std::fma(p, z, 1.0 / 15);
  p = std::fma(p, z, 1.0 / 13);
  p = std::fma(p, z, 1.0 / 11);
  p = std::fma(p, z, 1.0 / 9);
  p = std::fma(p, z, 1.0 / 7);
  p = std::fma(p, z, 1.0 / 5);
  p = std::fma(p, z, 1.0 / 3);
  p = std::fma(p, z, 1.0);
  return std::fma(exponent, kLn2, 2 * s * p);
}

struct SineCosine {
  double sine;
  double cosine;
};

/// Of the angle 2 pi v, v in [0, 1); error below 1e-13.
inline SineCosine circle(double v) {
  constexpr double kHalfPi = 1.57079632679489661923;
  constexpr double kRound = 0x1.8p52;
  const double quarters = v * 4;
  const double nearest = quarters + kRound - kRound;
  const auto quadrant = std::bit_cast<std::uint64_t>(quarters + kRound) & 3;
  const double x = (quarters - nearest) * kHalfPi;
  const double z = x * x;
  double s = -1.0 / 39916800;
  s = std::fma(s, z, 1.0 / 362880);
  s = std::fma(s, z, -1.0 / 5040);
  s = std::fma(s, z, 1.0 / 120);
  s = std::fma(s, z, -1.0 / 6);
  s = std::fma(s * z, x, x);
  double c = 1.0 / 479001600;
  c = std::fma(c, z, -1.0 / 3628800);
  c = std::fma(c, z, 1.0 / 40320);
  c = std::fma(c, z, -1.0 / 720);
  c = std::fma(c, z, 1.0 / 24);
  c = std::fma(c, z, -0.5);
  c = std::fma(c, z, 1.0);
  const bool swap = (quadrant & 1) != 0;
  const double sine = swap ? c : s;
  const double cosine = swap ? s : c;
  return {(quadrant & 2) != 0 ? -sine : sine, ((quadrant + 1) & 2) != 0 ? -cosine : cosine};
}

/// Pairs of words to pairs of numbers. The square root stands alone, since its error handling keeps
/// GCC from vectorising a loop.
void box_muller(const std::array<std::uint32_t, 2 * kBlocks>& radius_words,
                const std::array<std::uint32_t, 2 * kBlocks>& angle_words, float* out) {
  std::array<double, 2 * kBlocks> radius{};
  std::array<double, 2 * kBlocks> cosines{};
  std::array<double, 2 * kBlocks> sines{};
#pragma omp simd
  for (std::size_t i = 0; i < radius.size(); ++i) {
    radius[i] = -2 * logarithm((static_cast<double>(radius_words[i]) + 0.5) * 0x1p-32);
    const SineCosine angle = circle(static_cast<double>(angle_words[i]) * 0x1p-32);
    cosines[i] = angle.cosine;
    sines[i] = angle.sine;
  }
  for (double& value : radius) value = std::sqrt(value);
  for (std::size_t i = 0; i < radius.size(); ++i) {
    out[2 * i] = static_cast<float>(radius[i] * cosines[i]);
    out[2 * i + 1] = static_cast<float>(radius[i] * sines[i]);
  }
}

}  // namespace

void fill_gaussian(const RandomStream& stream, std::int64_t first, std::span<float> out) {
  KVSIM_CHECK(first >= 0 && first % 4 == 0);
  KVSIM_CHECK((first + static_cast<std::int64_t>(out.size())) / 4 < (std::int64_t{1} << 32));
  constexpr std::size_t kNumbers = 4 * kBlocks;
  std::array<std::uint32_t, 2 * kBlocks> radius_words{};
  std::array<std::uint32_t, 2 * kBlocks> angle_words{};
  std::array<float, kNumbers> numbers{};
  for (std::size_t done = 0; done < out.size(); done += kNumbers) {
    const auto block = static_cast<std::uint32_t>((first + static_cast<std::int64_t>(done)) / 4);
    for (std::uint32_t i = 0; i < kBlocks; ++i) {
      const RandomWords words = stream.block(block + i);
      radius_words[2 * i] = words.word[0];
      angle_words[2 * i] = words.word[1];
      radius_words[2 * i + 1] = words.word[2];
      angle_words[2 * i + 1] = words.word[3];
    }
    box_muller(radius_words, angle_words, numbers.data());
    const std::size_t count = std::min(kNumbers, out.size() - done);
    std::copy_n(numbers.begin(), count, out.begin() + static_cast<std::ptrdiff_t>(done));
  }
}

}  // namespace kvsim
