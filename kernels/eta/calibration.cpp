#include <algorithm>
#include <cmath>

#include "kernels/eta/rule.h"
#include "kernels/eta/thresholds.h"
#include "kernels/lanes.h"
#include "kernels/logit_cap.h"

namespace kvsim::eta {
namespace {

// The paper leaves bins and their range open. A gate changes by at most β/4 · 2^-7 = 1 % from a
// bin's centre to its end, and that cancels over a bin. Scores beyond the range are as open or
// closed as at its ends.
constexpr double kBinsPerUnit = 64;
constexpr double kRange = 1024;  // of scores, to both sides
constexpr auto kBins = static_cast<std::size_t>(2 * kRange * kBinsPerUnit);

double centre(std::size_t bin) { return (static_cast<double>(bin) + 0.5) / kBinsPerUnit - kRange; }

double soft_gate(double x) { return 1 / (1 + std::exp(-x)); }

/// Adds the scores that the probes of one head had, each of the tokens up to its own.
void add_probes(const CacheView& prompt, const RowsView& probes, ScoreHistogram& histogram) {
  constexpr std::int64_t kRows = 64;  // stay in the L1 cache
  const int padded = padded_lanes(prompt.k.dim);
  const std::int64_t tokens = prompt.k.rows;
  const std::int64_t used = std::min({kProbes, probes.rows, tokens});
  std::vector<float> queries(static_cast<std::size_t>(used * padded));
  load_rows(probes, probes.rows - used, probes.rows, padded, queries.data());
  std::vector<float> rows(static_cast<std::size_t>(kRows * padded));
  std::vector<float> scores(kRows);
  for (std::int64_t begin = 0; begin < tokens; begin += kRows) {
    const std::int64_t end = std::min(begin + kRows, tokens);
    load_rows(prompt.k, begin, end, padded, rows.data());
    for (std::int64_t i = 0; i < used; ++i) {
      const std::int64_t sees = tokens - used + i + 1;
      const std::int64_t count = std::min(end, sees) - begin;
      if (count <= 0) continue;
      score_rows(rows.data(), queries.data() + i * padded, count, padded, prompt.scale,
                 scores.data());
      const std::span<float> some(scores.data(), static_cast<std::size_t>(count));
      if (prompt.logit_cap > 0) {
        for (float& score : some) score = capped_logit(score, prompt.logit_cap);
      }
      histogram.add(some, 1 / static_cast<double>(sees));
    }
  }
}

}  // namespace

ScoreHistogram::ScoreHistogram() : bins_(kBins, 0.0), low_(kBins) {}

void ScoreHistogram::add(std::span<const float> scores, double weight) {
  for (const float score : scores) {
    const double place = (static_cast<double>(score) + kRange) * kBinsPerUnit;
    const auto bin = static_cast<std::size_t>(std::clamp(place, 0.0, kBins - 1.0));
    bins_[bin] += weight;
    low_ = std::min(low_, bin);
    high_ = std::max(high_, bin + 1);
  }
  total_ += weight * static_cast<double>(scores.size());
}

double ScoreHistogram::density(double threshold) const {
  double sum = 0;
  for (std::size_t bin = low_; bin < high_; ++bin) {
    if (bins_[bin] > 0) sum += bins_[bin] * soft_gate(kGateSlope * (centre(bin) - threshold));
  }
  return sum / total_;
}

double ScoreHistogram::threshold(double wanted) const {
  constexpr double kBeyond = 16;  // there all gates are open or closed, to e^(-16 β)
  double low = centre(low_) - kBeyond;
  double high = centre(high_ - 1) + kBeyond;
  for (;;) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) return middle;
    (density(middle) > wanted ? low : high) = middle;
  }
}

std::vector<float> calibrated_thresholds(const CacheView& prompt, double density) {
  std::vector<float> thresholds;
  for (const RowsView& probes : prompt.probes) {
    ScoreHistogram histogram;
    add_probes(prompt, probes, histogram);
    thresholds.push_back(static_cast<float>(histogram.threshold(density)));
  }
  return thresholds;
}

}  // namespace kvsim::eta
