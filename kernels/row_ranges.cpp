#include "kernels/row_ranges.h"

#include <algorithm>

#include "core/error.h"

namespace kvsim {

RowRanges RowRanges::all(std::int64_t rows) {
  RowRanges result;
  result.append(0, rows);
  return result;
}

RowRanges RowRanges::of(std::span<const std::int64_t> rows) {
  RowRanges result;
  for (const std::int64_t row : rows) result.append(row, row + 1);
  return result;
}

RowRanges RowRanges::unite(std::span<const RowRanges* const> sets) {
  std::vector<Range> pieces;
  for (const RowRanges* set : sets) {
    pieces.insert(pieces.end(), set->ranges_.begin(), set->ranges_.end());
  }
  std::sort(pieces.begin(), pieces.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  RowRanges result;
  for (const Range& piece : pieces) result.append(piece.begin, piece.end);
  return result;
}

void RowRanges::append(std::int64_t begin, std::int64_t end) {
  if (begin >= end) return;
  if (!ranges_.empty()) {
    KVSIM_CHECK(begin >= ranges_.back().begin);
    if (begin <= ranges_.back().end) {
      ranges_.back().end = std::max(ranges_.back().end, end);
      return;
    }
  }
  ranges_.push_back({begin, end});
}

std::int64_t RowRanges::size() const {
  std::int64_t rows = 0;
  for (const Range& range : ranges_) rows += range.end - range.begin;
  return rows;
}

}  // namespace kvsim
