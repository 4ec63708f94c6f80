#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/table.h"
#include "sim/json.h"

namespace kvsim {

/// A table of a document's methods: one line each, one column per figure, in blocks that fit a
/// terminal. A figure's name is "what, unit": the unit stands in a second line of the head.
class MethodTable {
 public:
  using Cell = std::function<std::string(const Json& method)>;

  /// `methods` is the document's list and must outlive the table.
  explicit MethodTable(const Json& methods);

  void figure(const std::string& name, const Cell& cell);
  /// One number, or one estimate with its interval, at a JSON pointer ("/error/cosine_mean"), in
  /// units of `unit` of the document's (1e6 shows pJ as uJ).
  void number(const std::string& name, const std::string& pointer, double unit = 1);
  void interval(const std::string& name, const std::string& pointer, double unit = 1);
  /// Whole and datapath energy of each accelerator.
  void accelerators();
  /// What states of prompts cost to make, if there is a model of any.
  void preparation();
  /// The next figure begins a new block of lines.
  void new_block() { begin_block_ = true; }
  std::string text() const;

 private:
  struct Column {
    std::vector<std::string> cells;  // two lines of head, then the methods
    std::size_t width = 0;
    bool begins_block = false;
  };
  void add_column(std::vector<std::string> cells);

  const Json& methods_;
  std::vector<Column> columns_;  // the methods' names first
  bool begin_block_ = false;
};

/// "12.9", or "-" for null.
std::string number_text(const Json& number, double unit = 1);
/// All digits before the point: "134217728".
std::string whole_text(const Json& number);
/// "12.9 [12.1, 13.9]", or "-" for null.
std::string interval_text(const Json& estimate, double unit = 1);

}  // namespace kvsim
