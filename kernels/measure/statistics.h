#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

// Statistics of timings (docs/timing.md). Every function takes its samples in any order.

namespace kvsim {

/// A statistic with its 95 % interval.
struct Interval {
  double value = 0;
  double low = 0;
  double high = 0;
};

/// The middle sample, the mean of the two middle ones of an even number. Needs a sample.
double median(std::span<const double> samples);
/// Sample standard deviation over mean; 0 for fewer than two samples.
double relative_stdev(std::span<const double> samples);
/// The median with its distribution-free interval: the pair of order statistics that encloses the
/// true median with at least 95 %; the extremes where the samples are too few for that (below 6).
/// For independent samples.
Interval median_interval(std::span<const double> samples);
/// exp of the mean log. All samples above 0.
double geometric_mean(std::span<const double> samples);

/// `statistic` of the samples with the percentile bootstrap's interval, 10 000 resamples from
/// Philox: deterministic in the seed. One sample gives an interval of no width.
Interval bootstrap(std::span<const double> samples, std::uint64_t seed,
                   const std::function<double(std::span<const double>)>& statistic);
/// Geometric mean of paired ratios a[i] / b[i], with the bootstrap's interval over the pairs.
Interval ratio_interval(std::span<const double> a, std::span<const double> b, std::uint64_t seed);
/// a[i] / b[i].
std::vector<double> paired_ratios(std::span<const double> a, std::span<const double> b);

}  // namespace kvsim
