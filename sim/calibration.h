#pragma once

#include <span>
#include <vector>

namespace kvsim {

/// A quantity whose prediction has parts that may each be off by a factor; what is in no part
/// stays as it is.
struct CalibrationRow {
  double expected = 0;  // not 0
  double ours = 0;
  std::vector<double> parts;  // [factors]
  bool fitted = false;        // else held out

  double calibrated(std::span<const double> factors) const;
};

/// The factors with the least sum of squared relative errors over the fitted rows. Throws
/// RuntimeError if these rows do not determine them.
std::vector<double> fit_factors(std::span<const CalibrationRow> rows);

/// Means over the fitted or the held-out rows of |ours − expected| / |expected|.
struct CalibrationErrors {
  int rows = 0;
  double uncalibrated = 0;
  double calibrated = 0;
};
CalibrationErrors mean_errors(std::span<const CalibrationRow> rows, bool fitted,
                              std::span<const double> factors);

}  // namespace kvsim
