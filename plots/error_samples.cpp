// Error of the attention output, and the DRAM bytes it takes, against the number of samples S: a
// curve for every method and its other parameters.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "plots/error_mark.h"
#include "plots/marks.h"
#include "plots/plot.h"

namespace kvsim {
namespace {

constexpr double kBytesHeight = 240;  // of the lower panel
constexpr double kBelowPanel = 72;
constexpr double kApart = 5;  // pixels between curves, so that whiskers do not cover each other

struct Point {
  double samples = 0;  // 0: the method has no such parameter
  OutputError error;
  double dram_percent = 0;
};

struct Curve {
  MethodLabel label;
  Json method;  // name and parameters, those apart from S
  Look look;
  std::vector<Point> points;  // by S

  bool level() const { return points.front().samples == 0; }
};

Json without_samples(const JsonNode& method) {
  Json parameters = method.at("params").json();
  parameters.erase("samples");
  return {method.at("method").text(), parameters};
}

/// "samples=64, mode=released" without its first part.
MethodLabel label_without_samples(const JsonNode& method) {
  MethodLabel label = method_label(method);
  const std::size_t begin = label.detail.find("samples=");
  if (begin == std::string::npos) return label;
  const std::size_t end = label.detail.find(", ", begin);
  if (end != std::string::npos) {
    label.detail.erase(begin, end + 2 - begin);
  } else {
    label.detail.erase(begin < 2 ? 0 : begin - 2);
  }
  return label;
}

Point point_of(const JsonNode& method) {
  Point point{0, output_error(method),
              100 * method.at("traffic").at("dram_share_of_dense").number()};
  const JsonNode parameters = method.at("params");
  if (!parameters.has("samples")) return point;
  point.samples = parameters.at("samples").number();
  if (point.samples < 1) parameters.at("samples").fail_with("is not positive");
  return point;
}

std::vector<Curve> curves_of(const Document& document) {
  std::vector<Curve> curves;
  for (const JsonNode& method : document.methods()) {
    const Json key = without_samples(method);
    const auto found = std::find_if(curves.begin(), curves.end(),
                                    [&](const Curve& curve) { return curve.method == key; });
    if (found != curves.end()) {
      found->points.push_back(point_of(method));
    } else {
      curves.push_back(
          {label_without_samples(method), key, method_look(curves.size()), {point_of(method)}});
    }
  }
  for (Curve& curve : curves) {
    std::stable_sort(curve.points.begin(), curve.points.end(),
                     [](const Point& a, const Point& b) { return a.samples < b.samples; });
  }
  if (std::all_of(curves.begin(), curves.end(), [](const Curve& c) { return c.level(); })) {
    document.root().at("methods").fail_with("has no method with a parameter samples");
  }
  return curves;
}

Axis samples_axis(const std::vector<Curve>& curves) {
  constexpr double kPad = 1.3;
  std::vector<double> samples;
  for (const Curve& curve : curves) {
    if (curve.level()) continue;
    samples.push_back(curve.points.front().samples);
    samples.push_back(curve.points.back().samples);
  }
  const auto [low, high] = std::minmax_element(samples.begin(), samples.end());
  Axis axis{*low / kPad, *high * kPad, true, {}, "samples S per query head and step"};
  for (double tic = std::exp2(std::ceil(std::log2(axis.low))); tic <= axis.high; tic *= 2) {
    axis.tics.push_back({tic, fmt::format("{:g}", tic)});
  }
  return axis;
}

Axis bytes_axis(const std::vector<Curve>& curves) {
  double high = 0;
  for (const Curve& curve : curves) {
    for (const Point& point : curve.points) high = std::max(high, point.dram_percent);
  }
  return linear_axis(0, 1.08 * (high > 0 ? high : 1), "DRAM bytes, % of dense attention", 5);
}

std::vector<OutputError> errors_of(const std::vector<Curve>& curves) {
  std::vector<OutputError> errors;
  for (const Curve& curve : curves) {
    for (const Point& point : curve.points) errors.push_back(point.error);
  }
  return errors;
}

std::string note(const Curve& curve, const Axis& errors) {
  const Point& first = curve.points.front();
  const Point& last = curve.points.back();
  if (curve.level()) {
    return fmt::format("error {}{}", number_label(first.error.mean),
                       on_scale(first.error, errors) ? "" : " (off scale)");
  }
  std::string text = fmt::format("{} at S = {:g}", number_label(first.error.mean), first.samples);
  if (curve.points.size() > 1) {
    text += fmt::format(", {} at {:g}", number_label(last.error.mean), last.samples);
  }
  return text;
}

/// What does not depend on S, as a broken line across the panel.
void draw_level(Panel& panel, double value, const Look& look) {
  panel.draw({{panel.x().low, value}, {panel.x().high, value}},
             fmt::format("using 1:2 with lines lw 1.3 dt 2 lc rgb '{}'", hex(look.colour)));
}

/// Pixels of a curve's points; every curve is moved by the same distance from the one before.
std::vector<double> x_pixels(const std::vector<Curve>& curves, std::size_t index,
                             const Panel& panel) {
  const double shift =
      kApart * (static_cast<double>(index) - 0.5 * static_cast<double>(curves.size() - 1));
  std::vector<double> pixels;
  for (const Point& point : curves[index].points) {
    pixels.push_back(panel.x_pixel(point.samples) + shift);
  }
  return pixels;
}

void draw_polyline(Figure& figure, const std::vector<double>& x, const std::vector<double>& y,
                   Colour colour) {
  for (std::size_t i = 1; i < x.size(); ++i) {
    figure.line(x[i - 1], y[i - 1], x[i], y[i], colour, 1.6);
  }
}

void draw_errors(Figure& figure, const std::vector<Curve>& curves, const SideLayout& layout) {
  Panel panel(layout.plot, samples_axis(curves), error_axis(errors_of(curves)));
  for (const Curve& curve : curves) {
    const OutputError& error = curve.points.front().error;
    if (curve.level() && on_scale(error, panel.y())) draw_level(panel, error.mean, curve.look);
  }
  figure.add(panel);
  std::vector<SideLabel> labels;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const Curve& curve = curves[i];
    const std::vector<double> x =
        curve.level() ? std::vector{panel.area().right} : x_pixels(curves, i, panel);
    std::vector<double> y;
    for (const Point& point : curve.points) y.push_back(error_pixel(point.error, panel));
    draw_polyline(figure, x, y, curve.look.colour);
    for (std::size_t p = 0; p < x.size() && !curve.level(); ++p) {
      draw_error(figure, curve.points[p].error, x[p], curve.look, panel);
    }
    labels.push_back({curve.label, note(curve, panel.y()), curve.look, x.back(), y.back()});
  }
  draw_side_labels(figure, labels, layout.labels);
}

void draw_bytes(Figure& figure, const std::vector<Curve>& curves, const Area& area) {
  Panel panel(area, samples_axis(curves), bytes_axis(curves));
  for (const Curve& curve : curves) {
    if (curve.level()) draw_level(panel, curve.points.front().dram_percent, curve.look);
  }
  figure.add(panel);
  for (std::size_t i = 0; i < curves.size(); ++i) {
    if (curves[i].level()) continue;
    const std::vector<double> x = x_pixels(curves, i, panel);
    std::vector<double> y;
    for (const Point& point : curves[i].points) y.push_back(panel.y_pixel(point.dram_percent));
    draw_polyline(figure, x, y, curves[i].look.colour);
    for (std::size_t p = 0; p < x.size(); ++p) figure.marker(x[p], y[p], curves[i].look, 0.9);
  }
}

Figure draw(const Document& document) {
  const std::vector<Curve> curves = curves_of(document);
  const SideLayout layout = side_layout(curves.size());
  const double bottom = layout.height + kBytesHeight;
  Figure figure(bottom + kBelowPanel);
  figure.heading("Output error and DRAM traffic against samples",
                 {document.trace_title(), document.gpu_title()});
  draw_errors(figure, curves, layout);
  draw_bytes(figure, curves, {layout.plot.left, layout.height, layout.plot.right, bottom});
  figure.footnote(
      "curves are set side by side by a few pixels; broken lines: methods without samples");
  return figure;
}

KVSIM_REGISTER_PLOT("error-samples", {"output error and DRAM bytes against samples S", draw});

}  // namespace
}  // namespace kvsim
