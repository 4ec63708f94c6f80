#pragma once

#include <vector>

#include "plots/document.h"
#include "plots/figure.h"

namespace kvsim {

/// Relative L2 errors of a method's outputs.
struct OutputError {
  double mean = 0;
  double p95 = 0;
};

OutputError output_error(const JsonNode& method);

/// Logarithmic, for means and whiskers. Errors far below the largest one, such as the rounding of
/// dense attention, would squeeze all others into a corner: they lie below it.
Axis error_axis(const std::vector<OutputError>& errors);

bool on_scale(const OutputError& error, const Axis& axis);
/// Where the mean stands: at the lower edge if it is not on the scale.
double error_pixel(const OutputError& error, const Panel& panel);

/// The mean as a marker, a whisker to the 95th percentile; an arrow if it is not on the scale.
void draw_error(Figure& figure, const OutputError& error, double x, const Look& look,
                const Panel& panel);

}  // namespace kvsim
