#pragma once

#include <string>
#include <vector>

namespace kvsim {

/// A table of text for a terminal: the first column is left-aligned, the others are right-aligned
/// unless said otherwise, columns are as wide as their widest cell and two spaces apart.
class Table {
 public:
  explicit Table(std::vector<std::string> header);

  /// `cells` must have as many entries as the header.
  void add_row(std::vector<std::string> cells);
  void align_left(std::size_t column);
  /// All lines, each ended by a newline, without trailing spaces.
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;  // the header first
  std::vector<bool> left_;                      // of each column
};

/// Columns a UTF-8 text takes on a terminal (one for each code point).
std::size_t display_width(const std::string& text);

}  // namespace kvsim
