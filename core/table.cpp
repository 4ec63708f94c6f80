#include "core/table.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace kvsim {

std::size_t display_width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u;  // continuation bytes take no column
  }));
}

Table::Table(std::vector<std::string> header) : left_(header.size()) {
  rows_.push_back(std::move(header));
  align_left(0);
}

void Table::align_left(std::size_t column) { left_.at(column) = true; }

void Table::add_row(std::vector<std::string> cells) {
  KVSIM_CHECK(cells.size() == rows_.front().size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::size_t> widths(rows_.front().size());
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], display_width(row[i]));
    }
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - display_width(row[i]), ' ');
      line += i == 0 ? "" : "  ";
      line += left_[i] ? row[i] + padding : padding + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

}  // namespace kvsim
