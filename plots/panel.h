#pragma once

#include <string>
#include <vector>

#include "plots/axis.h"
#include "plots/layout.h"

namespace kvsim {

/// One pair of axes of a figure, with what is drawn between them.
class Panel {
 public:
  /// What is drawn: rows of numbers, and gnuplot's words after the data's name.
  struct Series {
    std::vector<std::vector<double>> rows;
    std::string style;  // "using 1:2 with points pt 7"
  };

  Panel(Area area, Axis x, Axis y) : area_(area), x_(std::move(x)), y_(std::move(y)) {}

  void draw(std::vector<std::vector<double>> rows, std::string style);

  const Area& area() const { return area_; }
  const Axis& x() const { return x_; }
  const Axis& y() const { return y_; }
  const std::vector<Series>& series() const { return series_; }

  /// Pixels of a value.
  double x_pixel(double value) const { return area_.left + x_.fraction(value) * area_.width(); }
  double y_pixel(double value) const { return area_.bottom - y_.fraction(value) * area_.height(); }

 private:
  Area area_;
  Axis x_;
  Axis y_;
  std::vector<Series> series_;
};

}  // namespace kvsim
