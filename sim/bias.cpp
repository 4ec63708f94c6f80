#include "sim/bias.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace kvsim {

void ErrorSum::add(std::span<const double> truth, std::span<const float> output) {
  double norm = 0;
  for (const double o : truth) norm += o * o;
  if (norm == 0) return;
  const double scale = 1 / std::sqrt(norm);
  error.resize(truth.size(), 0);
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const double difference = (output[i] - truth[i]) * scale;
    error[i] += difference;
    squares += difference * difference;
  }
}

void BiasSums::add(const ErrorSum& sum, int seeds) {
  KVSIM_CHECK(seeds > 1);
  double mean_squared = 0;
  for (const double each : sum.error) mean_squared += each / seeds * (each / seeds);
  const double variance = std::max(0.0, sum.squares - seeds * mean_squared) / (seeds - 1);
  const double difference = mean_squared - variance / seeds;
  heads += 1;
  mean_output += mean_squared;
  floor += variance / seeds;
  bias_squared += difference * difference;
}

BiasSums& BiasSums::operator+=(const BiasSums& other) {
  heads += other.heads;
  mean_output += other.mean_output;
  floor += other.floor;
  bias_squared += other.bias_squared;
  return *this;
}

BiasSummary summarize(const BiasSums& sums) {
  KVSIM_CHECK(sums.heads > 0);
  constexpr double kStandardErrors = 1.645;  // to either side: 90 %
  const double mean = (sums.mean_output - sums.floor) / sums.heads;
  const double variance = std::max(0.0, sums.bias_squared / sums.heads - mean * mean);
  const double reach = kStandardErrors * std::sqrt(variance / sums.heads);
  const auto root = [](double square) { return std::sqrt(std::max(0.0, square)); };
  BiasSummary summary;
  // Squares are not negative: a mean that fell below its floor by chance is no evidence of it.
  summary.bias = {root(mean), root(mean - reach), root(std::max(0.0, mean) + reach),
                  Source::kDerived};
  summary.mean_output = root(sums.mean_output / sums.heads);
  summary.floor = root(sums.floor / sums.heads);
  return summary;
}

}  // namespace kvsim
