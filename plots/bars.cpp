#include "plots/bars.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvsim {
namespace {

constexpr double kNameWidth = 100;  // of names in one-line labels
constexpr double kTotalsGap = 10;   // from the axes to the totals
constexpr double kSegmentSize = 9.5;
constexpr double kPixelsOfTic = 52;
constexpr double kRoomBelow = 0.2;  // of a bar's slot
constexpr double kWhiskerGap = 5;   // from a bar to its whisker

/// The whole picture of one bar, in pixels.
class BarPainter {
 public:
  BarPainter(Figure& figure, const Panel& panel, const BarStyle& style, double factor)
      : figure_(figure), panel_(panel), style_(style), factor_(factor) {}

  void paint(const Bar& bar, double middle) {
    const double top = middle - (style_.thickness + kWhiskerGap) / 2;
    const double centre = top + style_.thickness / 2;
    segments(bar, centre);
    whisker(bar, top + style_.thickness + kWhiskerGap);
    label(bar.label, centre);
    total(bar, centre);
  }

 private:
  double pixel(double value) const { return panel_.x_pixel(value * factor_); }

  void segments(const Bar& bar, double centre) {
    const double half = style_.thickness / 2;
    double sum = 0;
    for (std::size_t i = 0; i < bar.segments.size(); ++i) {
      const Segment& segment = bar.segments[i];
      const double left = pixel(sum);
      sum += segment.value;
      const double right = pixel(sum);
      segment_text(segment, left, right, centre);
      // A thin gap between neighbours; it must not swallow a sliver.
      if (i + 1 < bar.segments.size() && right - left > 3) {
        figure_.line(right, centre - half, right, centre + half, kWhite, 0.7);
      }
    }
  }

  void segment_text(const Segment& segment, double left, double right, double y) {
    for (const std::string& text : {segment.text, segment.short_text}) {
      if (text.empty() || text_width(text, kSegmentSize) + 2 > right - left) continue;
      figure_.text(
          (left + right) / 2, y, text,
          {.size = kSegmentSize, .colour = text_on(segment.colour), .align = Align::kCentre});
      return;
    }
  }

  void whisker(const Bar& bar, double y) {
    const double low = pixel(bar.total.low);
    const double high = pixel(bar.total.high);
    figure_.line(low, y, high, y, kInk, 1.2);
    for (const double end : {low, high}) figure_.line(end, y - 2.5, end, y + 2.5, kInk, 1.2);
    figure_.marker(pixel(bar.total.value), y, {kInk, 7}, 0.45);
    if (bar.measured) figure_.marker(pixel(*bar.measured), y, {0xD55E00, 13}, 0.9);
  }

  void label(const MethodLabel& label, double y) {
    if (style_.labels == LabelStyle::kNone) return;
    if (style_.labels == LabelStyle::kOneLine) {
      const double detail = Figure::kMargin + kNameWidth;
      text_in(label.name, Figure::kMargin, detail - 4, y, {.size = 10, .bold = true});
      text_in(label.detail, detail, style_.area.left - 6, y, {.size = 9, .colour = kFaintInk});
      return;
    }
    const double right = style_.area.left - 10;
    const double half = label.detail.empty() ? 0 : 6.5;
    text_in(label.name, Figure::kMargin, right, y - half, {.align = Align::kRight, .bold = true});
    text_in(label.detail, Figure::kMargin, right, y + half,
            {.size = 9.5, .colour = kFaintInk, .align = Align::kRight});
  }

  void text_in(const std::string& text, double left, double right, double y,
               const TextStyle& text_style) {
    figure_.text(text_style.align == Align::kRight ? right : left, y,
                 fit_text(text, text_style.size, right - left, text_style.bold), text_style);
  }

  void total(const Bar& bar, double y) {
    const auto text = [&](double value) { return number_label(value * factor_); };
    std::string line = text(bar.total.value);
    if (style_.show_intervals) {
      line += fmt::format(" [{}, {}]", text(bar.total.low), text(bar.total.high));
    }
    figure_.text(style_.area.right + kTotalsGap, y, line, {.size = 10});
  }

  Figure& figure_;
  const Panel& panel_;
  const BarStyle& style_;
  double factor_;
};

}  // namespace

double largest_value(const std::vector<Bar>& bars) {
  double largest = 0;
  for (const Bar& bar : bars) {
    largest = std::max({largest, bar.total.value, bar.total.high, bar.measured.value_or(0)});
  }
  return largest;
}

void draw_bars(Figure& figure, const std::vector<Bar>& bars, const BarStyle& style) {
  const double largest = style.largest > 0 ? style.largest : largest_value(bars);
  const Unit unit = readable_unit(largest, style.unit);
  const double high = largest > 0 ? largest * unit.factor * 1.02 : 1;
  const int tics = static_cast<int>(style.area.width() / kPixelsOfTic);
  const auto rows = static_cast<double>(bars.size());
  Panel panel(style.area,
              linear_axis(0, high, fmt::format("{}, {}", style.axis_label, unit.name), tics),
              {-kRoomBelow, rows, false, {}, ""});
  const double slot = style.area.height() / (rows + kRoomBelow);
  const double thickness = style.thickness / slot;
  std::vector<std::vector<double>> boxes;
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const double centre = rows - static_cast<double>(i) - 0.5 + kWhiskerGap / 2 / slot;
    double sum = 0;
    for (const Segment& segment : bars[i].segments) {
      const double end = sum + segment.value * unit.factor;
      if (end > sum) {
        boxes.push_back({(sum + end) / 2, centre, sum, end, centre - thickness / 2,
                         centre + thickness / 2, static_cast<double>(segment.colour)});
      }
      sum = end;
    }
  }
  panel.draw(std::move(boxes),
             "using 1:2:3:4:5:6:7 with boxxyerror lc rgb variable fs solid 1.0 noborder");
  figure.add(panel);
  BarPainter painter(figure, panel, style, unit.factor);
  for (std::size_t i = 0; i < bars.size(); ++i) {
    painter.paint(bars[i], panel.y_pixel(rows - static_cast<double>(i) - 0.5));
  }
}

}  // namespace kvsim
