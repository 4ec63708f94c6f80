// Statistics of timings: known values, and coverage over fixed seeds.

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/measure/statistics.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

using testing::Approx;

TEST_CASE("timing statistics: median of odd and even numbers of samples, in any order") {
  CHECK(median(std::vector<double>{3}) == 3);
  CHECK(median(std::vector<double>{5, 1, 3}) == 3);
  CHECK(median(std::vector<double>{4, 1, 3, 2}) == 2.5);
}

TEST_CASE("timing statistics: relative standard deviation") {
  CHECK(relative_stdev(std::vector<double>{7}) == 0);
  CHECK(relative_stdev(std::vector<double>{2, 2, 2}) == 0);
  CHECK(relative_stdev(std::vector<double>{1, 3}) == Approx(std::sqrt(2.0) / 2));
}

TEST_CASE("timing statistics: ranks of the median's interval are those of the binomial table") {
  const auto interval_of = [](int n) {
    std::vector<double> samples;
    for (int i = n; i >= 1; --i) samples.push_back(i);
    return median_interval(samples);
  };
  // Two-sided 95 %, samples counted from 1: n = 5 cannot reach it, 6: 1-6, 10: 2-9, 30: 10-21.
  CHECK(interval_of(5).low == 1);
  CHECK(interval_of(5).high == 5);
  CHECK(interval_of(6).low == 1);
  CHECK(interval_of(6).high == 6);
  CHECK(interval_of(10).low == 2);
  CHECK(interval_of(10).high == 9);
  CHECK(interval_of(30).value == 15.5);
  CHECK(interval_of(30).low == 10);
  CHECK(interval_of(30).high == 21);
  CHECK(interval_of(1000).low == 469);
  CHECK(interval_of(1000).high == 532);
}

TEST_CASE("timing statistics: the geometric mean of ratios does not depend on who is divided") {
  const std::vector<double> a{1, 2, 4};
  const std::vector<double> b{2, 2, 2};
  CHECK(geometric_mean(std::vector<double>{1, 4}) == Approx(2));
  const Interval ratio = ratio_interval(a, b, 1);
  const Interval inverse = ratio_interval(b, a, 1);
  CHECK(ratio.value == Approx(1));
  CHECK(ratio.value * inverse.value == Approx(1));
  CHECK(ratio.low >= 0.5);
  CHECK(ratio.high <= 2);
  CHECK(ratio.low * inverse.high == Approx(1));
}

TEST_CASE("timing statistics: a bootstrap is deterministic and has no width for one sample") {
  const std::vector<double> samples{1, 2, 3, 4, 50};
  const Interval first = bootstrap(samples, 7, median);
  const Interval again = bootstrap(samples, 7, median);
  CHECK(first.low == again.low);
  CHECK(first.high == again.high);
  CHECK(first.value == 3);
  CHECK(first.low >= 1);
  CHECK(first.high <= 50);
  const Interval single = bootstrap(std::vector<double>{4}, 7, median);
  CHECK(single.low == 4);
  CHECK(single.high == 4);
}

/// How often an interval encloses the true median 0 of a normal distribution, of 400 trials.
template <typename MakeInterval>
double coverage(int samples, const MakeInterval& make) {
  std::mt19937_64 engine(3);
  std::normal_distribution<double> normal;
  constexpr int kTrials = 400;
  int covered = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> values(static_cast<std::size_t>(samples));
    for (double& value : values) value = normal(engine);
    const Interval interval = make(values, static_cast<std::uint64_t>(trial));
    covered += interval.low <= 0 && 0 <= interval.high;
  }
  return static_cast<double>(covered) / kTrials;
}

TEST_CASE("timing statistics: intervals cover the truth about as often as they say") {
  const double order = coverage(
      30, [](const std::vector<double>& values, std::uint64_t) { return median_interval(values); });
  CHECK(order > 0.93);
  CHECK(order < 0.99);
  const double resampled = coverage(20, [](const std::vector<double>& values, std::uint64_t seed) {
    return bootstrap(values, seed,
                     [](std::span<const double> v) { return v.empty() ? 0 : median(v); });
  });
  CHECK(resampled > 0.88);
  CHECK(resampled < 0.995);
}

}  // namespace
}  // namespace kvsim
