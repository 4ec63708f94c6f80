#include <cmath>
#include <cstdint>
#include <limits>

#include "core/float16.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

/// Value of a 16-bit float by the definition, not by tricks with bits.
double by_definition(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double sign = (bits >> 15) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * INFINITY : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

bool agree(float found, double expected) {
  if (std::isnan(expected)) return std::isnan(found);
  return found == expected && std::signbit(found) == std::signbit(expected);
}

struct Format {
  float (*up)(std::uint16_t);
  std::uint16_t (*down)(float);
  int exponent_bits;
  int mantissa_bits;
  std::uint16_t largest;
};

constexpr Format kBf16{bf16_to_float, float_to_bf16, 8, 7, 0x7f7f};
constexpr Format kFp16{fp16_to_float, float_to_fp16, 5, 10, 0x7bff};

}  // namespace

TEST_CASE("all 65536 values of bf16 and fp16 convert exactly and come back") {
  const Format format = GENERATE(kBf16, kFp16);
  int wrong = 0;
  int lost = 0;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const double expected = by_definition(bits, format.exponent_bits, format.mantissa_bits);
    const float value = format.up(bits);
    wrong += agree(value, expected) ? 0 : 1;
    const std::uint16_t back = format.down(value);
    const bool kept = std::isnan(expected) ? std::isnan(format.up(back)) : back == bits;
    lost += kept ? 0 : 1;
  }
  CHECK(wrong == 0);
  CHECK(lost == 0);
}

TEST_CASE("rounding to 16 bits is to nearest, with ties to even, around every boundary") {
  const Format format = GENERATE(kBf16, kFp16);
  int wrong = 0;
  for (std::uint16_t bits = 0; bits < format.largest; ++bits) {
    const double low = by_definition(bits, format.exponent_bits, format.mantissa_bits);
    const double high = by_definition(static_cast<std::uint16_t>(bits + 1), format.exponent_bits,
                                      format.mantissa_bits);
    const auto middle = static_cast<float>((low + high) / 2);  // exact in float32
    const auto even = static_cast<std::uint16_t>(bits + (bits & 1));
    for (const float sign : {1.0f, -1.0f}) {
      const auto mask = static_cast<std::uint16_t>(sign < 0 ? 0x8000 : 0);
      const auto down = [&](float value) {
        return static_cast<std::uint16_t>(format.down(sign * value) ^ mask);
      };
      wrong += down(middle) == even ? 0 : 1;
      wrong += down(std::nextafterf(middle, 0.0f)) == bits ? 0 : 1;
      wrong += down(std::nextafterf(middle, INFINITY)) == bits + 1 ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("too large values become infinity, NaN stays NaN") {
  for (const Format& format : {kBf16, kFp16}) {
    const auto infinity = static_cast<std::uint16_t>(format.largest + 1);
    CHECK(format.down(INFINITY) == infinity);
    CHECK(format.down(-INFINITY) == (infinity | 0x8000));
    CHECK(std::isnan(format.up(format.down(NAN))));
    CHECK(std::isnan(format.up(format.down(-NAN))));
  }
  CHECK(float_to_fp16(65504.0f) == 0x7bff);
  CHECK(float_to_fp16(65519.996f) == 0x7bff);
  CHECK(float_to_fp16(65520.0f) == 0x7c00);
  CHECK(float_to_bf16(std::numeric_limits<float>::max()) == 0x7f80);
}

}  // namespace kvsim
