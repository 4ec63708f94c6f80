#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  friend bool operator==(const Range&, const Range&) = default;
};

/// A set of rows as sorted, disjoint, non-touching ranges.
class RowRanges {
 public:
  static RowRanges all(std::int64_t rows);
  /// `rows` ascending; repeats allowed.
  static RowRanges of(std::span<const std::int64_t> rows);
  /// The union of sets: what a group of heads reads together.
  static RowRanges unite(std::span<const RowRanges* const> sets);

  /// Adds [begin, end), which must not begin before the last range does.
  void append(std::int64_t begin, std::int64_t end);

  std::int64_t size() const;  // rows in the set
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }
  friend bool operator==(const RowRanges&, const RowRanges&) = default;

 private:
  std::vector<Range> ranges_;
};

}  // namespace kvsim
