#include "kernels/attention.h"

#include <algorithm>

#include "kernels/lanes.h"
#include "kernels/logit_cap.h"

namespace kvsim {
namespace {

constexpr std::int64_t kBlockRows = 64;  // 64 rows of 128 floats stay in the L1 cache

void apply_logit_cap(std::span<float> logits, float cap) {
  for (float& logit : logits) logit = capped_logit(logit, cap);
}

/// Adds the rows of one range for the heads of `heads`, whose weights start at `first_weight`.
void accumulate_range(const StepView& view, const Range& range, std::size_t first_weight,
                      int padded, std::span<const HeadSelection> heads, std::vector<float>& block,
                      float* accumulators) {
  for (std::int64_t begin = range.begin; begin < range.end; begin += kBlockRows) {
    const std::int64_t end = std::min(begin + kBlockRows, range.end);
    load_rows(view.v, begin, end, padded, block.data());
    for (std::size_t h = 0; h < heads.size(); ++h) {
      accumulate_rows(block.data(), heads[h].weights.data() + first_weight, end - begin, padded,
                      accumulators + h * static_cast<std::size_t>(padded));
    }
    first_weight += static_cast<std::size_t>(end - begin);
  }
}

/// Weighted sums for heads that select the same rows, each V row converted once: [heads, padded].
std::vector<float> accumulate(const StepView& view, std::span<const HeadSelection> heads,
                              std::vector<float>& block) {
  const int padded = padded_lanes(view.v.dim);
  std::vector<float> sums(heads.size() * static_cast<std::size_t>(padded), 0.0f);
  std::size_t weight = 0;
  for (const Range& range : heads.front().v_rows.ranges()) {
    accumulate_range(view, range, weight, padded, heads, block, sums.data());
    weight += static_cast<std::size_t>(range.end - range.begin);
  }
  return sums;
}

}  // namespace

Scores exact_scores(const StepView& view) {
  const std::vector<float> scales(static_cast<std::size_t>(view.group), view.scale);
  return scores_of(view, view.queries, scales);
}

Scores scores_of(const StepView& view, std::span<const float> queries,
                 std::span<const float> scales) {
  const int padded = padded_lanes(view.k.dim);
  const std::int64_t rows = view.rows();
  Scores scores{rows, std::vector<float>(static_cast<std::size_t>(rows * view.group))};
  std::vector<float> padded_queries(static_cast<std::size_t>(view.group * padded), 0.0f);
  for (int g = 0; g < view.group; ++g) {
    std::copy_n(queries.data() + g * view.k.dim, view.k.dim, padded_queries.data() + g * padded);
  }
  std::vector<float> block(static_cast<std::size_t>(kBlockRows * padded));
  for (std::int64_t begin = 0; begin < rows; begin += kBlockRows) {
    const std::int64_t end = std::min(begin + kBlockRows, rows);
    load_rows(view.k, begin, end, padded, block.data());
    for (int g = 0; g < view.group; ++g) {
      score_rows(block.data(), padded_queries.data() + g * padded, end - begin, padded,
                 scales[static_cast<std::size_t>(g)], scores.head(g).data() + begin);
    }
  }
  if (view.logit_cap > 0) apply_logit_cap(scores.values, view.logit_cap);
  return scores;
}

std::vector<float> weighted_values(const StepView& view, const Selection& selection) {
  const std::span<const HeadSelection> heads = selection.heads;
  const auto same_rows = [&](const HeadSelection& head) {
    return head.v_rows == heads.front().v_rows;
  };
  const std::size_t together =
      std::all_of(heads.begin(), heads.end(), same_rows) ? heads.size() : 1;
  const auto padded = static_cast<std::size_t>(padded_lanes(view.v.dim));
  const auto dim = static_cast<std::size_t>(view.v.dim);
  std::vector<float> block(static_cast<std::size_t>(kBlockRows) * padded);
  std::vector<float> output(heads.size() * dim);
  for (std::size_t first = 0; first < heads.size(); first += together) {
    const std::vector<float> sums = accumulate(view, heads.subspan(first, together), block);
    for (std::size_t h = 0; h < together; ++h) {
      const float scale = heads[first + h].scale;
      std::transform(sums.begin() + static_cast<std::ptrdiff_t>(h * padded),
                     sums.begin() + static_cast<std::ptrdiff_t>(h * padded + dim),
                     output.begin() + static_cast<std::ptrdiff_t>((first + h) * dim),
                     [scale](float sum) { return scale * sum; });
    }
  }
  return output;
}

}  // namespace kvsim
