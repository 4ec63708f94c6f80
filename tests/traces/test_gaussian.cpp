#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/catch.h"
#include "tests/traces/trace_testing.h"
#include "traces/gaussian.h"

namespace kvsim::testing {
namespace {

/// Box-Muller with the standard library.
float expected(const RandomStream& stream, std::uint32_t index) {
  constexpr double kTwoPi = 6.283185307179586476925;
  const std::uint32_t pair = index / 2 * 2;
  const double u = (stream.word(pair) + 0.5) * 0x1p-32;
  const double v = stream.word(pair + 1) * 0x1p-32;
  const double radius = std::sqrt(-2 * std::log(u));
  const double angle = kTwoPi * v;
  return static_cast<float>(radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle)));
}

}  // namespace

TEST_CASE("normal numbers are those of Box and Muller") {
  RandomStream stream;
  stream.seed = 12;
  stream.purpose = Purpose::kSynthetic;
  std::vector<float> numbers(100000);
  fill_gaussian(stream, 0, numbers);
  double worst = 0;
  for (std::uint32_t i = 0; i < numbers.size(); ++i) {
    const double error = std::abs(static_cast<double>(numbers[i]) - expected(stream, i));
    worst = std::max(worst, error / std::max(1e-3, std::abs(static_cast<double>(numbers[i]))));
  }
  CHECK(worst < 3e-7);
}

TEST_CASE("a number does not depend on where filling starts") {
  const RandomStream stream;
  std::vector<float> all(5000);
  fill_gaussian(stream, 0, all);
  for (const std::size_t first : {4u, 256u, 1000u, 4096u}) {
    std::vector<float> part(all.size() - first);
    fill_gaussian(stream, static_cast<std::int64_t>(first), part);
    CHECK(std::equal(part.begin(), part.end(), all.begin() + static_cast<std::ptrdiff_t>(first)));
  }
}

TEST_CASE("normal numbers have the moments and tails of a normal distribution") {
  RandomStream stream;
  stream.seed = 3;
  std::vector<float> numbers(1 << 20);
  fill_gaussian(stream, 0, numbers);
  double mean = 0;
  double square = 0;
  double fourth = 0;
  int beyond_two = 0;
  for (const float number : numbers) {
    const double x = number;
    mean += x;
    square += x * x;
    fourth += x * x * x * x;
    beyond_two += std::abs(x) > 2 ? 1 : 0;
  }
  const auto n = static_cast<double>(numbers.size());
  CHECK(std::abs(mean / n) < 5 / std::sqrt(n));
  CHECK(std::abs(square / n - 1) < 5 * std::sqrt(2 / n));
  CHECK(std::abs(fourth / n - 3) < 5 * std::sqrt(96 / n));
  CHECK(std::abs(beyond_two / n - 0.0455) < 5 * std::sqrt(0.0455 / n));
}

TEST_CASE("neighbouring numbers and different heads are uncorrelated") {
  RandomStream a;
  RandomStream b;
  b.head = 1;
  std::vector<float> x(1 << 18);
  std::vector<float> y(1 << 18);
  fill_gaussian(a, 0, x);
  fill_gaussian(b, 0, y);
  double heads = 0;
  double neighbours = 0;
  for (std::size_t i = 1; i < x.size(); ++i) {
    heads += static_cast<double>(x[i]) * y[i];
    neighbours += static_cast<double>(x[i]) * x[i - 1];
  }
  const auto n = static_cast<double>(x.size());
  CHECK(std::abs(heads / n) < 5 / std::sqrt(n));
  CHECK(std::abs(neighbours / n) < 5 / std::sqrt(n));
}

}  // namespace kvsim::testing
