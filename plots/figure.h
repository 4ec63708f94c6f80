#pragma once

#include <string>
#include <vector>

#include "core/output_file.h"
#include "plots/layout.h"
#include "plots/palette.h"
#include "plots/panel.h"

namespace kvsim {

enum class ImageFormat { kSvg, kPng };

/// By the file's extension, .svg or .png. Throws UsageError for any other.
ImageFormat image_format(const std::string& path);

enum class Align { kLeft, kCentre, kRight };

struct TextStyle {
  double size = 11;
  Colour colour = kInk;
  Align align = Align::kLeft;
  bool bold = false;
  bool upright = false;  // turned by 90 degrees
};

/// One line of text; (x, y) is the middle of its height at the side that `align` says.
struct PlacedText {
  double x = 0;
  double y = 0;
  std::string text;
  TextStyle style;
};

/// What all pictures share: a white sheet of fixed width, one font, panels with axes, and text,
/// lines and markers anywhere, in pixels from the top left corner. It collects what gnuplot is to
/// draw; the same calls give the same bytes.
class Figure {
 public:
  static constexpr double kWidth = 960;
  static constexpr double kMargin = 16;

  explicit Figure(double height) : height_(height) {}
  double height() const { return height_; }

  /// The bold first line and faint lines below it; they end above heading_bottom(lines).
  void heading(const std::string& title, const std::vector<std::string>& lines);
  static double heading_bottom(std::size_t lines) { return 40 + 17 * static_cast<double>(lines); }

  /// One faint line at the lower edge.
  void footnote(const std::string& line);

  /// Axes with tics, grid and labels, and the panel's series.
  void add(const Panel& panel);

  void text(double x, double y, const std::string& text, const TextStyle& style = {});
  void marker(double x, double y, const Look& look, double size = 1);
  void line(double x0, double y0, double x1, double y1, Colour colour, double width = 1);
  /// Below all panels.
  void lead(double x0, double y0, double x1, double y1, Colour colour);
  void box(const Area& area, Colour colour);

  /// All texts so far.
  const std::vector<PlacedText>& texts() const { return texts_; }

  /// What gnuplot is told to draw the figure into a file.
  std::string script(ImageFormat format, const std::string& file) const;
  /// Draws and commits `output`. Throws RuntimeError if gnuplot is not installed or fails.
  void write(OutputFile output, ImageFormat format) const;

 private:
  void draw_axis_text(const Panel& panel);

  double height_;
  std::string below_;  // commands of leads and boxes
  std::string above_;  // commands of markers and lines
  std::vector<PlacedText> texts_;
  std::string panels_;
  std::string data_;
  int data_blocks_ = 0;
};

/// A legend: swatches with their texts in rows from the area's top left, wrapped at its right edge.
struct LegendItem {
  std::string text;
  Colour colour = kInk;
};
/// Returns the bottom of the last row. Without a figure it only measures.
double draw_legend(Figure* figure, const std::vector<LegendItem>& items, const Area& area);

}  // namespace kvsim
