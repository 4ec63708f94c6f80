// Speedup of the whole model's decode step against context, with break-even contexts.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "plots/marks.h"
#include "plots/plot.h"

namespace kvsim {
namespace {

constexpr double kBandTransparency = 0.86;

struct Curve {
  MethodLabel label;
  Look look;
  std::vector<double> contexts;
  std::vector<Interval> speedups;
  double break_even = 0;  // 0: none
  std::string note;
};

/// The document's reason for having no break-even, if it is short enough to be read.
std::string no_break_even(const JsonNode& step) {
  constexpr std::size_t kLongest = 40;
  if (!step.has("break_even_context_reason")) return "no break-even";
  const std::string reason = step.at("break_even_context_reason").text();
  return reason.size() <= kLongest ? reason : "no break-even";
}

std::vector<Curve> curves_of(const Document& document) {
  std::vector<Curve> curves;
  for (const JsonNode& method : document.methods()) {
    const JsonNode step = method.at("decode_step");
    Curve curve{method_label(method), method_look(curves.size()), {}, {}, 0, ""};
    const JsonNode points = step.at("curve");
    for (const JsonNode& point : points.items()) {
      curve.contexts.push_back(point.at("context").number());
      curve.speedups.push_back(point.at("speedup").interval());
      if (curve.contexts.back() < 1) point.fail_with("the context is not positive");
    }
    if (curve.contexts.empty()) points.fail_with("is empty");
    if (step.has("break_even_context")) {
      curve.break_even = step.at("break_even_context").number();
      curve.note = fmt::format("breaks even at {} tokens", grouped_integer(curve.break_even));
    } else {
      curve.note = no_break_even(step);
    }
    curves.push_back(std::move(curve));
  }
  return curves;
}

/// "64k", "1M"; a power of two is a whole number of them.
std::string context_label(double context) {
  constexpr double kKibi = 1024;
  if (context >= kKibi * kKibi) return fmt::format("{:g}M", context / (kKibi * kKibi));
  return context >= kKibi ? fmt::format("{:g}k", context / kKibi) : fmt::format("{:g}", context);
}

Axis context_axis(const std::vector<Curve>& curves) {
  double low = curves.front().contexts.front();
  double high = low;
  for (const Curve& curve : curves) {
    for (const double context : curve.contexts) {
      low = std::min(low, context);
      high = std::max(high, context);
    }
  }
  Axis axis{low, high > low ? high : 2 * low, true, {}, "context, tokens"};
  for (double tic = std::exp2(std::ceil(std::log2(axis.low))); tic <= axis.high; tic *= 2) {
    axis.tics.push_back({tic, context_label(tic)});
  }
  return axis;
}

Axis speedup_axis(const std::vector<Curve>& curves) {
  double low = 1;
  double high = 1;
  for (const Curve& curve : curves) {
    for (const Interval& speedup : curve.speedups) {
      low = std::min({low, speedup.low, speedup.value});
      high = std::max({high, speedup.high, speedup.value});
    }
  }
  const double pad = 0.06 * std::max(high - low, 0.5);
  return linear_axis(std::max(low - pad, 0.0), high + pad, "decode-step speedup over dense", 7);
}

using Group = std::vector<std::size_t>;

/// Whether two curves would cover each other.
bool coincide(const Curve& a, const Curve& b, const Panel& panel) {
  constexpr double kPixels = 3;
  if (a.contexts != b.contexts) return false;
  const auto near = [&](double one, double other) {
    return std::abs(panel.y_pixel(one) - panel.y_pixel(other)) < kPixels;
  };
  for (std::size_t i = 0; i < a.speedups.size(); ++i) {
    const Interval& one = a.speedups[i];
    const Interval& other = b.speedups[i];
    if (!near(one.value, other.value) || !near(one.low, other.low) || !near(one.high, other.high)) {
      return false;
    }
  }
  return true;
}

std::vector<Group> groups_of(const std::vector<Curve>& curves, const Panel& panel) {
  std::vector<Group> groups;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const auto same = [&](const Group& group) {
      return coincide(curves[group.front()], curves[i], panel);
    };
    const auto found = std::find_if(groups.begin(), groups.end(), same);
    if (found == groups.end()) {
      groups.push_back({i});
    } else {
      found->push_back(i);
    }
  }
  return groups;
}

void draw_band(Panel& panel, const Curve& curve) {
  std::vector<std::vector<double>> rows;
  for (std::size_t i = 0; i < curve.contexts.size(); ++i) {
    rows.push_back({curve.contexts[i], curve.speedups[i].low, curve.speedups[i].high});
  }
  panel.draw(rows, fmt::format("using 1:2:3 with filledcurves fc rgb '{}'",
                               hex(curve.look.colour, kBandTransparency)));
}

/// The curves of a group take turns along their common line.
void draw_lines(Panel& panel, const std::vector<Curve>& curves, const Group& group) {
  for (std::size_t turn = 0; turn < group.size(); ++turn) {
    const Curve& curve = curves[group[turn]];
    std::vector<std::vector<double>> steps;
    std::vector<std::vector<double>> points;
    for (std::size_t i = turn; i < curve.contexts.size(); i += group.size()) {
      const double x = curve.contexts[i];
      const double y = curve.speedups[i].value;
      points.push_back({x, y});
      if (i + 1 == curve.contexts.size()) continue;
      steps.push_back({x, y, curve.contexts[i + 1] - x, curve.speedups[i + 1].value - y});
    }
    const std::string colour = hex(curve.look.colour);
    panel.draw(steps, fmt::format("using 1:2:3:4 with vectors nohead lw 1.8 lc rgb '{}'", colour));
    panel.draw(points, fmt::format("using 1:2 with points pt {} ps 0.9 lw 1.5 lc rgb '{}'",
                                   curve.look.marker, colour));
  }
}

/// A tick across the line at 1.
void draw_break_even(Figure& figure, const Panel& panel, const Curve& curve) {
  if (curve.break_even < panel.x().low || curve.break_even > panel.x().high) return;
  const double x = panel.x_pixel(curve.break_even);
  const double y = panel.y_pixel(1);
  figure.line(x, y - 10, x, y + 10, curve.look.colour, 2);
}

Figure draw(const Document& document) {
  const std::vector<Curve> curves = curves_of(document);
  const SideLayout layout = side_layout(curves.size());
  Figure figure(layout.height);
  const JsonNode step = document.methods().front().at("decode_step");
  const std::string llm = step.has("llm") ? step.at("llm").text() + " on " : "";
  figure.heading("Speedup of the whole decode step over dense attention",
                 {llm + document.gpu_title(), "rows measured on " + document.trace_title()});
  Panel panel(layout.plot, context_axis(curves), speedup_axis(curves));
  panel.draw({{panel.x().low, 1}, {panel.x().high, 1}},
             fmt::format("using 1:2 with lines lw 1 dt 2 lc rgb '{}'", hex(kFaintInk)));
  const std::vector<Group> groups = groups_of(curves, panel);
  for (const Group& group : groups) draw_band(panel, curves[group.front()]);
  for (const Group& group : groups) draw_lines(panel, curves, group);
  figure.add(panel);
  std::vector<SideLabel> labels;
  for (const Curve& curve : curves) {
    labels.push_back({curve.label, curve.note, curve.look, panel.x_pixel(curve.contexts.back()),
                      panel.y_pixel(curve.speedups.back().value)});
  }
  draw_side_labels(figure, labels, layout.labels);
  // The first of several at the same place is on top, as with the band.
  for (std::size_t i = curves.size(); i-- > 0;) draw_break_even(figure, panel, curves[i]);
  const std::string shared =
      groups.size() < curves.size() ? "; methods whose curves coincide take turns on one line" : "";
  figure.footnote("bands: 90 % intervals; ticks across 1: break-even context of the attention" +
                  shared);
  return figure;
}

KVSIM_REGISTER_PLOT("speedup", {"decode-step speedup against context, with break-even", draw});

}  // namespace
}  // namespace kvsim
