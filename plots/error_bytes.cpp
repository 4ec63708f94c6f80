// Error of the attention output against DRAM bytes, one point for each method.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plots/marks.h"
#include "plots/plot.h"

namespace kvsim {
namespace {

// Errors this much smaller than the largest one are shown at the lower edge: rounding of dense
// attention would squeeze all others into a corner.
constexpr double kSpan = 1e-3;
constexpr double kApart = 10;  // pixels between points
constexpr double kRadius = 4;  // of a marker

struct Point {
  MethodLabel label;
  Look look;
  double dram_percent = 0;
  double mean = 0;
  double p95 = 0;
};

std::vector<Point> points_of(const Document& document) {
  std::vector<Point> points;
  for (const JsonNode& method : document.methods()) {
    const JsonNode error = method.at("error").at("relative_l2");
    const JsonNode share = method.at("traffic").at("dram_share_of_dense");
    Point point{method_label(method), method_look(points.size()), 100 * share.number(),
                error.at("mean").number(), error.at("p95").number()};
    if (point.dram_percent <= 0)
      share.fail_with("is not positive, a logarithmic axis cannot show it");
    points.push_back(point);
  }
  return points;
}

Axis bytes_axis(const std::vector<Point>& points) {
  double low = points.front().dram_percent;
  double high = low;
  for (const Point& point : points) {
    low = std::min(low, point.dram_percent);
    high = std::max(high, point.dram_percent);
  }
  return logarithmic_axis(low / 1.12, high * 1.12,
                          "DRAM bytes read and written, % of dense attention");
}

Axis error_axis(const std::vector<Point>& points) {
  double largest = 0;
  double high = 0;
  for (const Point& point : points) {
    largest = std::max(largest, point.mean);
    high = std::max({high, point.mean, point.p95});
  }
  if (largest <= 0) return logarithmic_axis(1e-9, 1, "relative L2 error (mean)");
  double low = largest;
  for (const Point& point : points) {
    if (point.mean >= largest * kSpan) low = std::min(low, point.mean);
  }
  return logarithmic_axis(low / 2, high * 1.4,
                          "relative L2 error (mean; whisker to the 95th percentile)");
}

std::string note(const Point& point, bool visible) {
  return fmt::format("error {}{}, {:.3g} % of the bytes", number_label(point.mean),
                     visible ? "" : " (off scale)", point.dram_percent);
}

/// Pixels, with points that would cover each other side by side.
std::vector<double> x_pixels(const std::vector<Point>& points, const Panel& panel) {
  std::vector<double> pixels;
  for (const Point& point : points) pixels.push_back(panel.x_pixel(point.dram_percent));
  return spread(pixels, kApart, panel.area().left + kApart, panel.area().right - kApart);
}

/// A point with its whisker, in pixels.
void draw_point(Figure& figure, const Point& point, double x, const Panel& panel) {
  const bool visible = point.mean >= panel.y().low;
  const double mean = visible ? panel.y_pixel(point.mean) : panel.area().bottom;
  const double top = point.p95 > panel.y().low ? panel.y_pixel(point.p95) : mean;
  if (top < mean - kRadius) {
    figure.line(x, mean - kRadius, x, top, point.look.colour, 1.3);
    figure.line(x - 3, top, x + 3, top, point.look.colour, 1.3);
  }
  figure.marker(x, mean, point.look, 1.1);
  if (!visible) figure.text(x + 8, mean - 9, "\u2193", {.colour = point.look.colour});
}

Figure draw(const Document& document) {
  const std::vector<Point> points = points_of(document);
  const SideLayout layout = side_layout(points.size());
  Figure figure(layout.height);
  figure.heading("Output error against DRAM traffic",
                 {document.trace_title(), document.gpu_title()});
  const Panel panel(layout.plot, bytes_axis(points), error_axis(points));
  figure.add(panel);
  const std::vector<double> pixels = x_pixels(points, panel);
  std::vector<SideLabel> labels;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const Point& point = points[i];
    const bool visible = point.mean >= panel.y().low;
    const double y = visible ? panel.y_pixel(point.mean) : panel.area().bottom;
    labels.push_back({point.label, note(point, visible), point.look, pixels[i], y});
  }
  draw_side_labels(figure, labels, layout.labels);
  bool moved = false;
  for (std::size_t i = 0; i < points.size(); ++i) {
    draw_point(figure, points[i], pixels[i], panel);
    moved = moved || std::abs(pixels[i] - panel.x_pixel(points[i].dram_percent)) > 0.5;
  }
  if (moved)
    figure.footnote(
        "points that would cover each other are set side by side; the labels have their exact "
        "places");
  return figure;
}

KVSIM_REGISTER_PLOT("error-bytes", {"output error against DRAM bytes, relative to dense", draw});

}  // namespace
}  // namespace kvsim
