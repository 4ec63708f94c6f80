#include "plots/error_mark.h"

#include <algorithm>

namespace kvsim {
namespace {

constexpr double kSpan = 1e-3;  // of the largest mean: the smallest one that is on the scale
constexpr double kRadius = 4;   // of a marker

}  // namespace

OutputError output_error(const JsonNode& method) {
  const JsonNode error = method.at("error").at("relative_l2");
  return {error.at("mean").number(), error.at("p95").number()};
}

Axis error_axis(const std::vector<OutputError>& errors) {
  double largest = 0;
  double high = 0;
  for (const OutputError& error : errors) {
    largest = std::max(largest, error.mean);
    high = std::max({high, error.mean, error.p95});
  }
  if (largest <= 0) return logarithmic_axis(1e-9, 1, "relative L2 error (mean)");
  double low = largest;
  for (const OutputError& error : errors) {
    if (error.mean >= largest * kSpan) low = std::min(low, error.mean);
  }
  return logarithmic_axis(low / 2, high * 1.4,
                          "relative L2 error (mean; whisker to the 95th percentile)");
}

bool on_scale(const OutputError& error, const Axis& axis) { return error.mean >= axis.low; }

double error_pixel(const OutputError& error, const Panel& panel) {
  return on_scale(error, panel.y()) ? panel.y_pixel(error.mean) : panel.area().bottom;
}

void draw_error(Figure& figure, const OutputError& error, double x, const Look& look,
                const Panel& panel) {
  const double mean = error_pixel(error, panel);
  const double top = error.p95 > panel.y().low ? panel.y_pixel(error.p95) : mean;
  if (top < mean - kRadius) {
    figure.line(x, mean - kRadius, x, top, look.colour, 1.3);
    figure.line(x - 3, top, x + 3, top, look.colour, 1.3);
  }
  figure.marker(x, mean, look, 1.1);
  if (!on_scale(error, panel.y())) figure.text(x + 8, mean - 9, "\u2193", {.colour = look.colour});
}

}  // namespace kvsim
