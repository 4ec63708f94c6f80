#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/bernoulli/rule.h"
#include "kernels/method.h"

namespace kvsim {

/// A query head's ternary queries, added up over the draws: q.k is estimated, without bias, by
/// factor * Σ weights[i] * k[i] (SANTA §5).
struct DrawnQuery {
  std::vector<float> weights;         // [head_dim]
  float factor = 0;                   // norm / B
  RowRanges features;                 // of K, that are read: c_i > 0
  std::vector<std::uint32_t> counts;  // c_i of these
  std::int64_t hits = 0;              // Σ c_i
};

/// Draws the queries of a group, [group]. `view` needs queries and random stream only; a query of
/// zeros reads nothing. With `group_mean` all heads share counts and features.
std::vector<DrawnQuery> draw_queries(const StepView& view, const QueryDraws& query);

/// Expected share of its features that a query reads, 0 to 1: the mean over features of
/// min(1, B p_i), iid 1 - (1 - p_i)^B. `magnitudes` are |q_i| or, for a group, Σ |q_i| over heads.
double expected_feature_share(std::span<const float> magnitudes, const QueryDraws& query);

}  // namespace kvsim
