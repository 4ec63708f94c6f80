#include "traces/synth_calibration.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvsim::synth {
namespace {

/// Unnormalised softmax over some tokens: Σ e^l and Σ l e^l.
struct Sums {
  double mass = 0;
  double weighted = 0;

  void add(double logit, double count = 1) {
    const double weight = count * std::exp(logit);
    mass += weight;
    weighted += weight * logit;
  }
};

/// Everything at one value of tau.
class Evaluation {
 public:
  Evaluation(const Profile& profile, const Target& target, double tau)
      : profile_(profile), target_(target), tau_(tau) {
    for (int bin = 0; bin < Profile::kBins; ++bin) {
      const double count = profile.counts[static_cast<std::size_t>(bin)];
      if (count > 0) others_.add(tau * Profile::centre(bin), count);
    }
    for (const double score : profile.sinks) sinks_.add(tau * score);
    for (const double score : profile.tail) tail_.push_back(std::exp(tau * score));
  }

  Coefficients solve() const {
    Coefficients result;
    result.tau = tau_;
    if (target_.recency > 0) result.recency = solve_recency();
    Sums total = others_;
    for (std::size_t i = 0; i < tail_.size(); ++i) {
      total.add(tau_ * profile_.tail[i] + result.recency * profile_.tail_features[i]);
    }
    Sums sinks = sinks_;
    if (target_.sink_mass > 0) {
      const double share = target_.sink_mass / (1 - target_.sink_mass);
      result.sink = std::log(share * total.mass / sinks_.mass);
      const double factor = std::exp(result.sink);
      sinks = {sinks_.mass * factor, (sinks_.weighted + result.sink * sinks_.mass) * factor};
    }
    const double mass = total.mass + sinks.mass;
    result.entropy_nats = std::log(mass) - (total.weighted + sinks.weighted) / mass;
    return result;
  }

 private:
  /// Logarithm of (window / rest) and its derivative by the coefficient of recency.
  struct Ratio {
    double value;
    double slope;
  };

  Ratio window_ratio(double recency) const {
    std::array<double, 2> mass{target_.sink_mass > 0 ? 0 : sinks_.mass, 0};
    mass[0] += others_.mass;
    std::array<double, 2> moment{};
    for (std::size_t i = 0; i < tail_.size(); ++i) {
      const double feature = profile_.tail_features[i];
      const double weight = tail_[i] * std::exp(recency * feature);
      const std::size_t side = i >= profile_.window_begin ? 1 : 0;
      mass[side] += weight;
      moment[side] += weight * feature;
    }
    return {std::log(mass[1] / mass[0]), moment[1] / mass[1] - moment[0] / mass[0]};
  }

  /// Newton's method inside a bracket: the ratio rises with the coefficient.
  double solve_recency() const {
    const double rest = 1 - target_.sink_mass - target_.recency;
    const double wanted = std::log(target_.recency / rest);
    double low = -80;
    double high = 80;
    double recency = 0;
    for (int iteration = 0; iteration < 60; ++iteration) {
      const Ratio ratio = window_ratio(recency);
      const double miss = ratio.value - wanted;
      if (std::abs(miss) < 1e-9) break;
      (miss > 0 ? high : low) = recency;
      const double newton = recency - miss / ratio.slope;
      recency = newton > low && newton < high ? newton : (low + high) / 2;
    }
    return recency;
  }

  const Profile& profile_;
  const Target& target_;
  double tau_;
  Sums others_;
  Sums sinks_;
  std::vector<double> tail_;
};

}  // namespace

int Profile::bin_of(double score) {
  return std::clamp(static_cast<int>((score + kRange) * (kBins / (2 * kRange))), 0, kBins - 1);
}

Coefficients calibrate(const Profile& profile, const Target& target) {
  constexpr double kMostTau = 20;  // beyond, one token takes all and stored types lose precision
  const auto at = [&](double tau) { return Evaluation(profile, target, tau).solve(); };
  Coefficients widest = at(0);
  if (widest.entropy_nats <= target.entropy_nats) return widest;
  double low = 0;
  double high = 1;
  Coefficients best = at(high);
  while (best.entropy_nats > target.entropy_nats && high < kMostTau) {
    low = high;
    high = std::min(2 * high, kMostTau);
    best = at(high);
  }
  if (best.entropy_nats > target.entropy_nats) return best;
  for (int iteration = 0; iteration < 30 && high - low > 1e-6; ++iteration) {
    const double middle = (low + high) / 2;
    best = at(middle);
    (best.entropy_nats > target.entropy_nats ? low : high) = middle;
  }
  return best;
}

std::vector<double> normal_counts(double others) {
  const auto below = [](double score) { return 0.5 * std::erfc(-score / std::sqrt(2.0)); };
  constexpr double kWidth = 2 * Profile::kRange / Profile::kBins;
  std::vector<double> counts;
  for (int bin = 0; bin < Profile::kBins; ++bin) {
    const double centre = Profile::centre(bin);
    counts.push_back(others * (below(centre + kWidth / 2) - below(centre - kWidth / 2)));
  }
  return counts;
}

}  // namespace kvsim::synth
