#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plots/document.h"
#include "plots/figure.h"

namespace kvsim {

struct Segment {
  double value = 0;
  Colour colour = kInk;
  std::string text;        // shown inside where it fits
  std::string short_text;  // shown where only this fits
};

/// One horizontal bar of stacked segments.
struct Bar {
  MethodLabel label;
  std::vector<Segment> segments;
  Interval total;                  // the whisker
  std::optional<double> measured;  // a diamond
};

/// How a method's name and its parameters stand left of its bar.
enum class LabelStyle { kNone, kTwoLines, kOneLine };

/// How a group of bars is laid out.
struct BarStyle {
  Area area;  // of the axes; labels stand left of it, totals right of it
  LabelStyle labels = LabelStyle::kNone;
  double thickness = 12;
  std::string unit;             // of the values, with its prefix: "pJ"
  std::string axis_label;       // without the unit
  double largest = 0;           // end of the axis; 0: by the bars themselves
  bool show_intervals = false;  // low and high beside the totals
};

/// The largest value that is drawn of any bar.
double largest_value(const std::vector<Bar>& bars);

/// Draws bars from top to bottom, on an axis from zero in a readable unit, with the whisker of each
/// under its bar and the total at the right.
void draw_bars(Figure& figure, const std::vector<Bar>& bars, const BarStyle& style);

}  // namespace kvsim
