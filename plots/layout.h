#pragma once

#include <string>
#include <vector>

namespace kvsim {

/// Pixels, from the top left corner of a figure.
struct Area {
  double left = 0;
  double top = 0;
  double right = 0;
  double bottom = 0;

  double width() const { return right - left; }
  double height() const { return bottom - top; }
};

/// Width in pixels of one line of text in the figures' font, never less than the real one by much.
double text_width(const std::string& text, double size, bool bold = false);
/// The text, or as much of it as fits into `width` and an ellipsis.
std::string fit_text(const std::string& text, double size, double width, bool bold = false);

/// Places near the wanted ones, at least `gap` apart, within [low, high] as far as they fit; their
/// order is kept (equal ones: first comes first).
std::vector<double> spread(const std::vector<double>& wanted, double gap, double low, double high);

/// A unit with the prefix that makes `largest` readable: 4.2e8 "pJ" is 0.42 "mJ". `base` is a
/// prefix and a unit.
struct Unit {
  double factor = 1;  // from the base to this unit
  std::string name;
};
Unit readable_unit(double largest, const std::string& base);

/// Three significant digits without an exponent where that is short ("0.632", "1.03", "1452"), and
/// "1,048,576".
std::string number_label(double value);
std::string grouped_integer(double value);

}  // namespace kvsim
