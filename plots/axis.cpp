#include "plots/axis.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "core/error.h"

namespace kvsim {
namespace {

constexpr std::size_t kMostTics = 9;
constexpr std::size_t kFewestTics = 4;

/// 1, 2 or 5 times a power of ten, about as large as `rough`.
double round_step(double rough) {
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * 0.8) return factor * power;
  }
  return 10 * power;
}

/// Tics at the factors times powers of ten.
std::vector<Tic> decade_tics(double low, double high, const std::vector<double>& factors,
                             int every_decades = 1) {
  std::vector<Tic> tics;
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  for (int decade = first; decade <= last; ++decade) {
    if (decade % every_decades != 0) continue;
    for (const double factor : factors) {
      const double value = std::stod(fmt::format("{}e{}", factor, decade));  // the exact decimal
      if (value >= low && value <= high) tics.push_back({value, fmt::format("{:g}", value)});
    }
  }
  return tics;
}

}  // namespace

double Axis::fraction(double value) const {
  if (!logarithmic) return (value - low) / (high - low);
  return std::log(value / low) / std::log(high / low);
}

Axis linear_axis(double low, double high, const std::string& label, int tics) {
  KVSIM_CHECK(low < high);
  Axis axis{low, high, false, {}, label};
  const double step = round_step((high - low) / tics);
  for (double tic = std::ceil(low / step); tic * step <= high; ++tic) {
    axis.tics.push_back({tic * step, fmt::format("{:g}", tic * step)});
  }
  return axis;
}

Axis logarithmic_axis(double low, double high, const std::string& label) {
  KVSIM_CHECK(0 < low && low < high);
  Axis axis{low, high, true, {}, label};
  for (const int decades : {5, 2, 1}) {
    axis.tics = decade_tics(low, high, {1}, decades);
    if (axis.tics.size() >= kFewestTics) return axis;
  }
  const std::array<std::vector<double>, 3> finer{{{1, 3}, {1, 2, 5}, {1, 1.5, 2, 3, 4, 5, 6, 8}}};
  for (const std::vector<double>& factors : finer) {
    axis.tics = decade_tics(low, high, factors);
    if (axis.tics.size() >= kFewestTics && axis.tics.size() <= kMostTics) return axis;
  }
  // Less than an octave or so: round numbers as on a linear axis.
  axis.tics = linear_axis(low, high, label).tics;
  return axis;
}

}  // namespace kvsim
