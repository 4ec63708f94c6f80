#pragma once

#include <functional>
#include <string>

#include "core/table.h"
#include "sim/json.h"

namespace kvsim {

/// A table of a document's methods: one column each, one row per figure.
class MethodTable {
 public:
  using Cell = std::function<std::string(const Json& method)>;

  /// `methods` is the document's list and must outlive the table.
  explicit MethodTable(const Json& methods);

  void row(const std::string& name, const Cell& cell);
  /// One number, or one estimate with its interval, at a JSON pointer ("/error/cosine_mean").
  void number(const std::string& name, const std::string& pointer, int digits = 4);
  void interval(const std::string& name, const std::string& pointer);
  /// Energy, datapath energy and time of each accelerator.
  void accelerators();
  std::string text() const { return table_.text(); }

 private:
  const Json& methods_;
  Table table_;
};

/// "12.9", or "-" for null.
std::string number_text(const Json& number, int digits = 4);
/// "12.9 [12.1, 13.9]", or "-" for null.
std::string interval_text(const Json& estimate, int digits = 4);

}  // namespace kvsim
