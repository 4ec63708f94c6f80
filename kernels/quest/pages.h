#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/method.h"

namespace kvsim::quest {

/// The records of one KV head's pages: per coordinate the largest and the smallest element of the
/// page's keys. They are elements of keys, so 16 bits hold them exactly; here as floats.
class PageRecords {
 public:
  explicit PageRecords(std::int64_t page) : page_(page) {}

  /// Adds the rows that `keys` has and the records have not; the last page may be partial.
  void extend(const RowsView& keys);

  std::int64_t pages() const { return (tokens_ + page_ - 1) / page_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t bytes() const;

  /// [pages, padded head size]
  std::span<const float> largest() const { return largest_; }
  std::span<const float> smallest() const { return smallest_; }

  /// Σ max(q_i largest_i, q_i smallest_i) of the first `count` pages for all heads, not scaled:
  /// [group, count]. Summed as dot products with keys are (kernels/lanes.h): every step is
  /// monotonic, so a score is never below the dot product of a key of the page, to the last bit.
  std::vector<float> scores(const StepView& view, std::int64_t count) const;

 private:
  void add_row(const float* key);  // [padded]
  void corners(const float* query, std::int64_t begin, std::int64_t end, float* out) const;

  std::int64_t page_;
  int dim_ = 0;
  int padded_ = 0;
  std::int64_t tokens_ = 0;
  std::vector<float> largest_;
  std::vector<float> smallest_;
};

/// The `kept` pages with the largest scores, ties to the lower page, ascending.
std::vector<std::int32_t> best_pages(std::span<const float> scores, std::int64_t kept);

}  // namespace kvsim::quest
