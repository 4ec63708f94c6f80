#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace kvsim {

/// What a quantity is to a calibration. Aside: in neither mean, since something else is known to be
/// wrong with it.
enum class CalibrationRole { kFitted, kHeldOut, kAside };
/// "fitted", "held out", "aside".
std::string_view to_string(CalibrationRole role);

/// A quantity whose prediction has parts that may each be off by a factor; what is in no part
/// stays as it is.
struct CalibrationRow {
  double expected = 0;  // not 0
  double ours = 0;
  std::vector<double> parts;  // [factors]
  CalibrationRole role = CalibrationRole::kHeldOut;

  double calibrated(std::span<const double> factors) const;
};

/// The factors with the least sum of squared relative errors over the fitted rows. Throws
/// RuntimeError if these rows do not determine them.
std::vector<double> fit_factors(std::span<const CalibrationRow> rows);

/// Means over the rows of a role of |ours − expected| / |expected|.
struct CalibrationErrors {
  int rows = 0;
  double uncalibrated = 0;
  double calibrated = 0;
};
CalibrationErrors mean_errors(std::span<const CalibrationRow> rows, CalibrationRole role,
                              std::span<const double> factors);

}  // namespace kvsim
