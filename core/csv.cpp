#include "core/csv.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace kvsim {
namespace {

/// Cuts a text into lines of fields, one character after the other.
class Splitter {
 public:
  Splitter(const std::string& text, const std::string& path) : text_(text), path_(path) {}

  /// Calls visit(line number, fields) for every line that is not empty.
  template <typename Visitor>
  void run(const Visitor& visit) {
    while (at_ < text_.size()) {
      const std::size_t begin = line_;
      std::vector<std::string> fields;
      do {
        fields.push_back(read_field());
      } while (take(','));
      end_line();
      if (fields.size() > 1 || !fields[0].empty()) visit(begin, std::move(fields));
    }
  }

 private:
  bool take(char wanted) {
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  std::string read_field() {
    if (take('"')) return read_quoted();
    const std::size_t begin = at_;
    at_ = std::min(text_.find_first_of(",\"\r\n", at_), text_.size());
    return text_.substr(begin, at_ - begin);
  }

  /// What follows an opening quote; a quote in the text is written twice.
  std::string read_quoted() {
    const std::size_t begin = line_;
    std::string field;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"' && !take('"')) return field;
      if (c == '\n') ++line_;
      field += c;
    }
    fail<RuntimeError>("{}:{}: found a quote that is not closed", path_, begin);
  }

  void end_line() {
    take('\r');
    if (at_ < text_.size() && !take('\n')) {
      fail<RuntimeError>("{}:{}: found '{}' behind a field, expected a comma or a line's end",
                         path_, line_, text_[at_]);
    }
    ++line_;
  }

  const std::string& text_;
  const std::string& path_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
};

}  // namespace

bool parse_number(const std::string& text, double& number) {
  const char* end = text.data() + text.size();
  const auto [used, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && used == end && std::isfinite(number);
}

CsvFile::CsvFile(std::string path, std::vector<Line> lines)
    : path_(std::move(path)), lines_(std::move(lines)) {
  if (lines_.empty()) fail<RuntimeError>("{}: found no line, expected names of columns", path_);
  columns_ = std::move(lines_.front().fields);
  lines_.erase(lines_.begin());
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (std::find(columns_.begin(), columns_.begin() + static_cast<std::ptrdiff_t>(i),
                  columns_[i]) != columns_.begin() + static_cast<std::ptrdiff_t>(i)) {
      fail<RuntimeError>("{}: found the column '{}' twice", path_, columns_[i]);
    }
  }
  for (const Line& line : lines_) {
    if (line.fields.size() != columns_.size()) {
      fail<RuntimeError>("{}:{}: found {} fields, expected {}", path_, line.number,
                         line.fields.size(), columns_.size());
    }
  }
}

CsvFile CsvFile::parse(const std::string& text, const std::string& path) {
  std::vector<Line> lines;
  Splitter(text, path).run([&lines](std::size_t number, std::vector<std::string> fields) {
    lines.push_back({number, std::move(fields)});
  });
  return {path, std::move(lines)};
}

std::string CsvFile::place(std::size_t row) const {
  return fmt::format("{}:{}", path_, lines_[row].number);
}

const std::string& CsvFile::at(std::size_t row, const std::string& column) const {
  const auto found = std::find(columns_.begin(), columns_.end(), column);
  if (found == columns_.end()) {
    fail<RuntimeError>("{}: found no column '{}', only {}", path_, column,
                       fmt::join(columns_, ", "));
  }
  return lines_[row].fields[static_cast<std::size_t>(found - columns_.begin())];
}

double CsvFile::number(std::size_t row, const std::string& column) const {
  const std::string& field = at(row, column);
  double value = 0;
  if (!parse_number(field, value)) {
    fail<RuntimeError>("{}: {}: found '{}', expected a number", place(row), column, field);
  }
  return value;
}

}  // namespace kvsim
