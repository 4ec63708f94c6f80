#include "plots/marks.h"

#include <algorithm>
#include <cmath>

namespace kvsim {
namespace {

constexpr double kNameSize = 11;
constexpr double kNoteSize = 10;
constexpr double kLine = 13;    // between the lines of a label
constexpr double kLines = 3;    // at most, of a label
constexpr double kBetween = 7;  // between labels
constexpr double kLead = 34;    // from the column's edge to the text

std::vector<std::string> faint_lines(const SideLabel& label) {
  std::vector<std::string> lines;
  if (!label.method.detail.empty()) lines.push_back(label.method.detail);
  if (!label.note.empty()) lines.push_back(label.note);
  return lines;
}

}  // namespace

SideLayout side_layout(std::size_t labels) {
  constexpr double kTop = 84;
  constexpr double kLowest = 474;  // of the labels of a figure with few methods
  const double needed = (kLines * kLine + kBetween) * static_cast<double>(labels);
  const double bottom = std::max(kLowest, kTop + needed);
  return {bottom + 56, {80, kTop + 6, 640, bottom - 18}, {664, kTop, 950, bottom}};
}

void draw_side_labels(Figure& figure, const std::vector<SideLabel>& labels, const Area& column) {
  std::size_t lines = 1;
  std::vector<double> wanted;
  for (const SideLabel& label : labels) {
    lines = std::max(lines, 1 + faint_lines(label).size());
    wanted.push_back(std::round(label.y));
  }
  const double height = kLine * static_cast<double>(lines);
  const std::vector<double> places =
      spread(wanted, height + kBetween, column.top + height / 2, column.bottom - height / 2);
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const SideLabel& label = labels[i];
    const Colour lead = shade(label.look.colour, 2);
    figure.lead(label.x, label.y, column.left, places[i], lead);
    figure.lead(column.left, places[i], column.left + kLead - 16, places[i], lead);
    figure.marker(column.left + kLead - 11, places[i], label.look);
    const std::vector<std::string> faint = faint_lines(label);
    double y = places[i] - kLine * static_cast<double>(faint.size()) / 2;
    const double x = column.left + kLead;
    figure.text(x, y, fit_text(label.method.name, kNameSize, column.right - x, true),
                {.size = kNameSize, .bold = true});
    for (const std::string& line : faint) {
      y += kLine;
      figure.text(x, y, fit_text(line, kNoteSize, column.right - x),
                  {.size = kNoteSize, .colour = kFaintInk});
    }
  }
}

}  // namespace kvsim
