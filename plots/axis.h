#pragma once

#include <string>
#include <vector>

namespace kvsim {

struct Tic {
  double value = 0;
  std::string text;  // empty: a grid line only
};

struct Axis {
  double low = 0;
  double high = 1;
  bool logarithmic = false;
  std::vector<Tic> tics;
  std::string label;  // with the unit

  /// Where a value lies: 0 at `low`, 1 at `high`.
  double fraction(double value) const;
};

/// From `low` to `high` with about `tics` tics at round numbers; `low` < `high`.
Axis linear_axis(double low, double high, const std::string& label, int tics = 6);
/// A logarithmic one with tics at 1, 2, 5, or denser or sparser ones; 0 < `low` < `high`.
Axis logarithmic_axis(double low, double high, const std::string& label);

}  // namespace kvsim
