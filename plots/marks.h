#pragma once

#include <string>
#include <vector>

#include "plots/document.h"
#include "plots/figure.h"

namespace kvsim {

/// A label of a method in a column beside a panel, joined to its point by a thin line.
struct SideLabel {
  MethodLabel method;
  std::string note;  // "0.123 at 53.7 %"; below the name, may be empty
  Look look;
  double x = 0;  // pixel of the point it belongs to
  double y = 0;
};

/// A plot with its labels beside it, as high as they need.
struct SideLayout {
  double height = 0;  // of the figure
  Area plot;
  Area labels;
};
SideLayout side_layout(std::size_t labels);

/// Draws the labels into `column`, near the height of their points and never over each other.
void draw_side_labels(Figure& figure, const std::vector<SideLabel>& labels, const Area& column);

}  // namespace kvsim
