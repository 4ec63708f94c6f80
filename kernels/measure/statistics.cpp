#include "kernels/measure/statistics.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/philox.h"

namespace kvsim {
namespace {

constexpr int kResamples = 10000;
constexpr double kOutside = 0.025;  // on each side of a 95 % interval

std::vector<double> sorted(std::span<const double> samples) {
  std::vector<double> copy(samples.begin(), samples.end());
  std::sort(copy.begin(), copy.end());
  return copy;
}

double middle_of_sorted(std::span<const double> samples) {
  const std::size_t half = samples.size() / 2;
  return samples.size() % 2 == 1 ? samples[half] : (samples[half - 1] + samples[half]) / 2;
}

/// The largest r for which at most 2.5 % of draws leave fewer than r of n samples below the median:
/// samples r and n - 1 - r, counted from 0, enclose it with 95 %.
std::size_t median_rank(std::size_t n) {
  const auto count = static_cast<double>(n);
  double cumulative = 0;
  std::size_t rank = 0;
  for (std::size_t i = 0; i < n / 2; ++i) {
    const auto k = static_cast<double>(i);
    cumulative += std::exp(std::lgamma(count + 1) - std::lgamma(k + 1) -
                           std::lgamma(count - k + 1) - count * std::log(2.0));
    if (cumulative > kOutside) break;
    rank = i;
  }
  return rank;
}

}  // namespace

double median(std::span<const double> samples) {
  KVSIM_CHECK(!samples.empty());
  return middle_of_sorted(sorted(samples));
}

double relative_stdev(std::span<const double> samples) {
  if (samples.size() < 2) return 0;
  const auto n = static_cast<double>(samples.size());
  double mean = 0;
  for (const double sample : samples) mean += sample / n;
  double squares = 0;
  for (const double sample : samples) squares += (sample - mean) * (sample - mean);
  return std::sqrt(squares / (n - 1)) / mean;
}

Interval median_interval(std::span<const double> samples) {
  KVSIM_CHECK(!samples.empty());
  const std::vector<double> order = sorted(samples);
  const std::size_t rank = median_rank(order.size());
  return {middle_of_sorted(order), order[rank], order[order.size() - 1 - rank]};
}

double geometric_mean(std::span<const double> samples) {
  KVSIM_CHECK(!samples.empty());
  double sum = 0;
  for (const double sample : samples) sum += std::log(sample);
  return std::exp(sum / static_cast<double>(samples.size()));
}

Interval bootstrap(std::span<const double> samples, std::uint64_t seed,
                   const std::function<double(std::span<const double>)>& statistic) {
  KVSIM_CHECK(!samples.empty());
  const auto n = static_cast<std::uint64_t>(samples.size());
  std::vector<double> resample(samples.size());
  std::vector<double> values;
  values.reserve(kResamples);
  for (std::uint32_t r = 0; r < kResamples; ++r) {
    const RandomStream random{.seed = seed, .purpose = Purpose::kSynthetic, .step = r};
    for (std::uint32_t i = 0; i < n; ++i) {
      resample[i] = samples[static_cast<std::size_t>((random.word(i) * n) >> 32)];
    }
    values.push_back(statistic(resample));
  }
  std::sort(values.begin(), values.end());
  const auto outside = static_cast<std::size_t>(kOutside * kResamples);
  return {statistic(samples), values[outside], values[kResamples - 1 - outside]};
}

std::vector<double> paired_ratios(std::span<const double> a, std::span<const double> b) {
  KVSIM_CHECK(a.size() == b.size());
  std::vector<double> ratios;
  ratios.reserve(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return ratios;
}

Interval ratio_interval(std::span<const double> a, std::span<const double> b, std::uint64_t seed) {
  return bootstrap(paired_ratios(a, b), seed, geometric_mean);
}

}  // namespace kvsim
