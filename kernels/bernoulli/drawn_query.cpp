#include "kernels/bernoulli/drawn_query.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace kvsim {
namespace {

float largest_magnitude(std::span<const float> values) {
  float largest = 0;
  for (const float x : values) largest = std::max(largest, std::fabs(x));
  return largest;
}

/// c_i of every feature.
std::vector<std::uint32_t> feature_counts(std::span<const float> values, const QueryDraws& query,
                                          const RandomStream& random) {
  const float norm = largest_magnitude(values);
  std::vector<std::uint32_t> counts;
  counts.reserve(values.size());
  for (const float x : values) {
    const auto feature = static_cast<std::uint32_t>(counts.size());
    counts.push_back(feature_count(x, norm, query, random, feature));
  }
  return counts;
}

DrawnQuery without_weights(const std::vector<std::uint32_t>& counts, float norm,
                           const QueryDraws& query) {
  DrawnQuery drawn;
  drawn.factor = norm / static_cast<float>(query.draws);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto feature = static_cast<std::int64_t>(i);
    if (counts[i] == 0) continue;
    drawn.features.append(feature, feature + 1);
    drawn.counts.push_back(counts[i]);
    drawn.hits += counts[i];
  }
  return drawn;
}

DrawnQuery draw_head(const StepView& view, int g, const QueryDraws& query) {
  const std::span<const float> q = view.query(g);
  const std::vector<std::uint32_t> counts =
      feature_counts(q, query, view.random_of(g, Purpose::kQueryDraw));
  DrawnQuery drawn = without_weights(counts, largest_magnitude(q), query);
  for (std::size_t i = 0; i < q.size(); ++i) {
    drawn.weights.push_back(ternary_weight(counts[i], q[i]));
  }
  return drawn;
}

/// m_i up to the factor 1/G, which cancels: magnitudes summed over the heads, in their order.
std::vector<float> group_magnitudes(const StepView& view) {
  std::vector<float> sums(static_cast<std::size_t>(view.k.dim), 0.0f);
  for (int g = 0; g < view.group; ++g) {
    const std::span<const float> q = view.query(g);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += std::fabs(q[i]);
  }
  return sums;
}

std::vector<DrawnQuery> draw_group(const StepView& view, const QueryDraws& query) {
  const std::vector<float> m = group_magnitudes(view);
  const std::vector<std::uint32_t> counts =
      feature_counts(m, query, view.random_of(0, Purpose::kQueryDraw));
  std::vector<DrawnQuery> heads(static_cast<std::size_t>(view.group),
                                without_weights(counts, largest_magnitude(m), query));
  for (int g = 0; g < view.group; ++g) {
    const std::span<const float> q = view.query(g);
    std::vector<float>& weights = heads[static_cast<std::size_t>(g)].weights;
    for (std::size_t i = 0; i < q.size(); ++i) {
      weights.push_back(mean_query_weight(counts[i], q[i], m[i]));
    }
  }
  return heads;
}

}  // namespace

std::vector<DrawnQuery> draw_queries(const StepView& view, const QueryDraws& query) {
  KVSIM_CHECK(view.queries.size() == static_cast<std::size_t>(view.group * view.k.dim));
  if (query.group_mean) return draw_group(view, query);
  std::vector<DrawnQuery> heads;
  for (int g = 0; g < view.group; ++g) heads.push_back(draw_head(view, g, query));
  return heads;
}

double expected_feature_share(std::span<const float> magnitudes, const QueryDraws& query) {
  const double norm = largest_magnitude(magnitudes);
  if (norm == 0) return 0;
  double sum = 0;
  for (const float x : magnitudes) {
    const double p = std::fabs(x) / norm;
    sum += query.stratified ? std::min(1.0, query.draws * p) : 1 - std::pow(1 - p, query.draws);
  }
  return sum / static_cast<double>(magnitudes.size());
}

}  // namespace kvsim
