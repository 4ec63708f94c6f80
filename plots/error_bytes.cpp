// Error of the attention output against DRAM bytes, one point for each method.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plots/error_mark.h"
#include "plots/marks.h"
#include "plots/plot.h"

namespace kvsim {
namespace {

constexpr double kApart = 10;  // pixels between points

struct Point {
  MethodLabel label;
  Look look;
  double dram_percent = 0;
  OutputError error;
};

std::vector<Point> points_of(const Document& document) {
  std::vector<Point> points;
  for (const JsonNode& method : document.methods()) {
    const JsonNode share = method.at("traffic").at("dram_share_of_dense");
    Point point{method_label(method), method_look(points.size()), 100 * share.number(),
                output_error(method)};
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

std::vector<OutputError> errors_of(const std::vector<Point>& points) {
  std::vector<OutputError> errors;
  for (const Point& point : points) errors.push_back(point.error);
  return errors;
}

std::string note(const Point& point, bool visible) {
  return fmt::format("error {}{}, {:.3g} % of the bytes", number_label(point.error.mean),
                     visible ? "" : " (off scale)", point.dram_percent);
}

/// Pixels, with points that would cover each other side by side.
std::vector<double> x_pixels(const std::vector<Point>& points, const Panel& panel) {
  std::vector<double> pixels;
  for (const Point& point : points) pixels.push_back(panel.x_pixel(point.dram_percent));
  return spread(pixels, kApart, panel.area().left + kApart, panel.area().right - kApart);
}

Figure draw(const Document& document) {
  const std::vector<Point> points = points_of(document);
  const SideLayout layout = side_layout(points.size());
  Figure figure(layout.height);
  figure.heading("Output error against DRAM traffic",
                 {document.trace_title(), document.gpu_title()});
  const Panel panel(layout.plot, bytes_axis(points), error_axis(errors_of(points)));
  figure.add(panel);
  const std::vector<double> pixels = x_pixels(points, panel);
  std::vector<SideLabel> labels;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const Point& point = points[i];
    labels.push_back({point.label, note(point, on_scale(point.error, panel.y())), point.look,
                      pixels[i], error_pixel(point.error, panel)});
  }
  draw_side_labels(figure, labels, layout.labels);
  bool moved = false;
  for (std::size_t i = 0; i < points.size(); ++i) {
    draw_error(figure, points[i].error, pixels[i], points[i].look, panel);
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
