#include "sim/calibration.h"

#include <Eigen/QR>
#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace kvsim {

std::string_view to_string(CalibrationRole role) {
  switch (role) {
    case CalibrationRole::kFitted:
      return "fitted";
    case CalibrationRole::kHeldOut:
      return "held out";
    case CalibrationRole::kAside:
      break;
  }
  return "aside";
}

double CalibrationRow::calibrated(std::span<const double> factors) const {
  double result = ours;
  for (std::size_t i = 0; i < parts.size(); ++i) result += (factors[i] - 1) * parts[i];
  return result;
}

std::vector<double> fit_factors(std::span<const CalibrationRow> rows) {
  const auto is_fitted = [](const CalibrationRow& row) {
    return row.role == CalibrationRole::kFitted;
  };
  const auto count = std::count_if(rows.begin(), rows.end(), is_fitted);
  const auto factors = static_cast<Eigen::Index>(rows.empty() ? 0 : rows[0].parts.size());
  Eigen::MatrixXd parts(count, factors);
  Eigen::VectorXd missing(count);
  Eigen::Index line = 0;
  for (const CalibrationRow& row : rows) {
    if (!is_fitted(row)) continue;
    for (Eigen::Index i = 0; i < factors; ++i) {
      parts(line, i) = row.parts[static_cast<std::size_t>(i)] / row.expected;
    }
    missing(line++) = 1 - row.ours / row.expected;
  }
  const Eigen::ColPivHouseholderQR<Eigen::MatrixXd> solver(parts);
  if (solver.rank() < factors) {
    fail<RuntimeError>("the {} quantities to fit do not determine {} factors", count, factors);
  }
  const Eigen::VectorXd change = solver.solve(missing);
  std::vector<double> result(rows[0].parts.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = 1 + change(static_cast<Eigen::Index>(i));
  }
  return result;
}

CalibrationErrors mean_errors(std::span<const CalibrationRow> rows, CalibrationRole role,
                              std::span<const double> factors) {
  CalibrationErrors errors;
  for (const CalibrationRow& row : rows) {
    if (row.role != role) continue;
    ++errors.rows;
    errors.uncalibrated += std::abs(row.ours / row.expected - 1);
    errors.calibrated += std::abs(row.calibrated(factors) / row.expected - 1);
  }
  errors.uncalibrated /= std::max(errors.rows, 1);
  errors.calibrated /= std::max(errors.rows, 1);
  return errors;
}

}  // namespace kvsim
