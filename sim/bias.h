#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/estimate.h"

namespace kvsim {

/// Relative errors of one query head at one step, summed over seeds.
struct ErrorSum {
  std::vector<double> error;  // Σ (ô − o) / |o|, by component; stays empty where o is 0
  double squares = 0;         // Σ |ô − o|² / |o|²

  void add(std::span<const double> truth, std::span<const float> output);
};

/// One ErrorSum for every method, replayed step and query head of a layer.
class ErrorSums {
 public:
  ErrorSums(std::size_t methods, std::size_t steps, std::size_t heads)
      : steps_(steps), heads_(heads), sums_(methods * steps * heads) {}

  ErrorSum& at(std::size_t method, std::size_t step, std::size_t head) {
    return sums_[(method * steps_ + step) * heads_ + head];
  }
  /// Of all steps and heads.
  std::span<const ErrorSum> of_method(std::size_t method) const {
    return std::span(sums_).subspan(method * steps_ * heads_, steps_ * heads_);
  }

 private:
  std::size_t steps_;
  std::size_t heads_;
  std::vector<ErrorSum> sums_;
};

/// What is left of relative errors in the mean over seeds, pooled over heads and steps. The mean of
/// R draws of an unbiased estimator is not exact either: it keeps the variance over R.
struct BiasSums {
  double heads = 0;         // heads and steps
  double mean_output = 0;   // Σ |mean error|²
  double floor = 0;         // Σ variance / R
  double bias_squared = 0;  // Σ (|mean error|² − variance / R)², how the difference scatters

  void add(const ErrorSum& sum, int seeds);
  BiasSums& operator+=(const BiasSums& other);
};

/// Root mean squares over heads and steps.
struct BiasSummary {
  Estimate bias;           // of the expected output; its interval is that of the pooled heads
  double mean_output = 0;  // of the mean over the seeds
  double floor = 0;        // what that would be without bias
};

/// At least one head.
BiasSummary summarize(const BiasSums& sums);

}  // namespace kvsim
