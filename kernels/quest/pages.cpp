#include "kernels/quest/pages.h"

#include <algorithm>
#include <numeric>

#include "kernels/lanes.h"
#include "kernels/quest/rule.h"

namespace kvsim::quest {
namespace {

constexpr std::int64_t kAtOnce = 64;  // rows, so that they stay in the L1 cache

}  // namespace

void PageRecords::extend(const RowsView& keys) {
  dim_ = keys.dim;
  padded_ = padded_lanes(dim_);
  std::vector<float> rows(static_cast<std::size_t>(kAtOnce * padded_));
  while (tokens_ < keys.rows) {
    const std::int64_t count = std::min(kAtOnce, keys.rows - tokens_);
    load_rows(keys, tokens_, tokens_ + count, padded_, rows.data());
    for (std::int64_t row = 0; row < count; ++row) add_row(rows.data() + row * padded_);
  }
}

void PageRecords::add_row(const float* key) {
  if (tokens_ % page_ == 0) {  // the first of a page
    largest_.insert(largest_.end(), key, key + padded_);
    smallest_.insert(smallest_.end(), key, key + padded_);
  } else {
    const auto at = largest_.size() - static_cast<std::size_t>(padded_);
    float* largest = largest_.data() + at;
    float* smallest = smallest_.data() + at;
#pragma omp simd
    for (int i = 0; i < padded_; ++i) {
      largest[i] = std::max(largest[i], key[i]);
      smallest[i] = std::min(smallest[i], key[i]);
    }
  }
  ++tokens_;
}

std::int64_t PageRecords::bytes() const { return pages() * record_bytes(dim_); }

/// Of each page's box the corner that lies furthest along the query: q_i times its coordinate is
/// max(q_i largest_i, q_i smallest_i).
void PageRecords::corners(const float* query, std::int64_t begin, std::int64_t end,
                          float* out) const {
  for (std::int64_t page = begin; page < end; ++page, out += padded_) {
    const float* largest = largest_.data() + page * padded_;
    const float* smallest = smallest_.data() + page * padded_;
#pragma omp simd
    for (int i = 0; i < padded_; ++i) out[i] = query[i] > 0 ? largest[i] : smallest[i];
  }
}

std::vector<float> PageRecords::scores(const StepView& view, std::int64_t count) const {
  std::vector<float> result(static_cast<std::size_t>(view.group * count));
  std::vector<float> query(static_cast<std::size_t>(padded_), 0.0f);
  std::vector<float> block(static_cast<std::size_t>(kAtOnce * padded_));
  for (int g = 0; g < view.group; ++g) {
    std::ranges::copy(view.query(g), query.begin());
    float* scores = result.data() + g * count;
    for (std::int64_t begin = 0; begin < count; begin += kAtOnce) {
      const std::int64_t end = std::min(begin + kAtOnce, count);
      corners(query.data(), begin, end, block.data());
      score_rows(block.data(), query.data(), end - begin, padded_, 1, scores + begin);
    }
  }
  return result;
}

std::vector<std::int32_t> best_pages(std::span<const float> scores, std::int64_t kept) {
  std::vector<std::int32_t> pages(scores.size());
  std::iota(pages.begin(), pages.end(), 0);
  const auto end = pages.begin() + std::min(kept, static_cast<std::int64_t>(pages.size()));
  std::nth_element(pages.begin(), end, pages.end(), [&](std::int32_t a, std::int32_t b) {
    const float x = scores[static_cast<std::size_t>(a)];
    const float y = scores[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  });
  pages.erase(end, pages.end());
  std::sort(pages.begin(), pages.end());
  return pages;
}

}  // namespace kvsim::quest
