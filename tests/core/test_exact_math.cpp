#include <algorithm>
#include <cmath>
#include <limits>

#include "core/exact_math.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

double relative_error(float x) {
  const double expected = std::exp(static_cast<double>(x));
  return std::abs(exp_nonpositive(x) - expected) / expected;
}

}  // namespace

TEST_CASE("exp_nonpositive is within 2^-22.5 of e^x on a dense grid") {
  double worst = 0;
  for (int i = 0; i < 8'699'990; ++i) {
    worst = std::max(worst, relative_error(-1e-5f * static_cast<float>(i)));
  }
  // Every float between -1/256 and -1/512, where polynomial and rounding meet.
  for (float x = -0x1p-8f; x < -0x1p-9f; x = std::nextafterf(x, 0.0f)) {
    worst = std::max(worst, relative_error(x));
  }
  CHECK(worst < std::exp2(-22.5));
}

TEST_CASE("exp_nonpositive at its edges") {
  CHECK(exp_nonpositive(0.0f) == 1.0f);
  CHECK(exp_nonpositive(-0.0f) == 1.0f);
  CHECK(exp_nonpositive(3.0f) == 1.0f);
  CHECK(exp_nonpositive(INFINITY) == 1.0f);
  CHECK(exp_nonpositive(-INFINITY) == 0.0f);
  CHECK(std::isnan(exp_nonpositive(NAN)));
  CHECK(exp_nonpositive(-1e-30f) == 1.0f);
  CHECK(exp_nonpositive(-std::numeric_limits<float>::max()) == 0.0f);
}

TEST_CASE("exp_nonpositive near the end of normal floats is accurate or zero") {
  CHECK(exp_nonpositive(-87.0f) == 0.0f);
  CHECK(exp_nonpositive(-87.5f) == 0.0f);
  CHECK(exp_nonpositive(-88.0f) == 0.0f);
  CHECK(exp_nonpositive(-104.0f) == 0.0f);
  float x = -87.0f;
  for (int i = 0; i < 1000; ++i) {
    x = std::nextafterf(x, 0.0f);
    CHECK(relative_error(x) < std::exp2(-22.5));
  }
}

TEST_CASE("exp_nonpositive never falls as x rises, but for rounding") {
  float before = 0;
  int drops = 0;
  for (float x = -20.0f; x < 0; x += 1e-4f) {
    const float value = exp_nonpositive(x);
    drops += value < before * (1 - 0x1p-22f) ? 1 : 0;
    before = value;
  }
  CHECK(drops == 0);
}

TEST_CASE("log_positive is within 2^-22 of ln x") {
  double worst = 0;
  for (float x = 0x1p-120f; x < 0x1p120f; x *= 1.0009f) {
    const double expected = std::log(static_cast<double>(x));
    worst = std::max(worst, std::abs(log_positive(x) - expected) / std::abs(expected));
  }
  for (float x = 0.5f; x < 2.0f; x += 0x1p-17f) {  // where ln x is small
    if (x == 1.0f) continue;
    const double expected = std::log(static_cast<double>(x));
    worst = std::max(worst, std::abs(log_positive(x) - expected) / std::abs(expected));
  }
  CHECK(worst < std::exp2(-22));
  CHECK(log_positive(1.0f) == 0.0f);
}

TEST_CASE("log1p_exact and expm1_nonpositive lose nothing near zero") {
  double logarithm = 0;
  double exponential = 0;
  for (float x = 0x1p-60f; x < 0.5f; x *= 1.0003f) {
    for (const float y : {x, -x}) {
      const double expected = std::log1p(static_cast<double>(y));
      logarithm = std::max(logarithm, std::abs(log1p_exact(y) - expected) / std::abs(expected));
    }
  }
  for (float x = 0x1p-60f; x < 86.0f; x *= 1.0003f) {
    const double expected = std::expm1(-static_cast<double>(x));
    exponential = std::max(exponential, std::abs(expm1_nonpositive(-x) - expected) / -expected);
  }
  CHECK(logarithm < std::exp2(-21.5));
  CHECK(exponential < std::exp2(-20));
  CHECK(expm1_nonpositive(0.0f) == 0.0f);
  CHECK(expm1_nonpositive(-INFINITY) == -1.0f);
}

}  // namespace kvsim
