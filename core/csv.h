#pragma once

#include <string>
#include <vector>

namespace kvsim {

/// A table of comma-separated values read strictly: the first line names the columns, fields with
/// commas, quotes or line breaks stand in double quotes (RFC 4180). Empty lines are skipped.
class CsvFile {
 public:
  /// `path` is only used in messages. Throws RuntimeError that names file and line: another number
  /// of fields than columns, a quote that is not closed or stands inside a field, a column twice.
  static CsvFile parse(const std::string& text, const std::string& path);

  const std::vector<std::string>& columns() const { return columns_; }
  std::size_t rows() const { return lines_.size(); }
  /// A field. Throws RuntimeError if there is no such column.
  const std::string& at(std::size_t row, const std::string& column) const;
  /// The same as a finite number. Throws RuntimeError that says what was found.
  double number(std::size_t row, const std::string& column) const;

  /// "expected.csv:7", for messages about a row.
  std::string place(std::size_t row) const;

 private:
  struct Line {
    std::size_t number = 0;  // in the file, from 1
    std::vector<std::string> fields;
  };
  CsvFile(std::string path, std::vector<Line> lines);

  std::string path_;
  std::vector<std::string> columns_;
  std::vector<Line> lines_;
};

/// The whole text as a finite number, such as "1.5e3"; false if it is none.
bool parse_number(const std::string& text, double& number);

}  // namespace kvsim
