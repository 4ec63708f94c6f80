#include "kernels/santapp/table.h"

#include <algorithm>
#include <cmath>

#include "kernels/lanes.h"
#include "kernels/logit_cap.h"
#include "kernels/santapp/rule.h"

namespace kvsim::santapp {
namespace {

/// The mean key of every part, in the type of the keys: [parts, padded].
std::vector<float> mean_keys(const RowsView& keys, const Partition& partition) {
  const int padded = padded_lanes(keys.dim);
  const auto width = static_cast<std::size_t>(padded);
  std::vector<float> means(static_cast<std::size_t>(partition.parts()) * width);
  std::vector<float> row(width);
  std::vector<std::byte> stored(width * static_cast<std::size_t>(bytes_of(keys.type)));
  for (std::int32_t p = 0; p < partition.parts(); ++p) {
    float* mean = means.data() + static_cast<std::size_t>(p) * width;
    const float share = 1.0f / static_cast<float>(partition.size(p));
    for (const std::int32_t key : partition.part(p)) {
      load_rows(keys, key, key + 1, padded, row.data());
      accumulate_rows(row.data(), &share, 1, padded, mean);
    }
    store_values(mean, padded, keys.type, stored.data());
    load_rows({stored.data(), keys.type, 1, padded, padded}, 0, 1, padded, mean);
  }
  return means;
}

}  // namespace

TeamTable::TeamTable(const CacheView& prompt, const Settings& settings)
    : rows(prompt.k.rows), teams_(teams_of(prompt, settings.teams)), dim_(prompt.k.dim) {
  if (settings.routes_by_mean) means_ = mean_keys(prompt.k, teams_.partition);
}

std::span<const float> TeamTable::mean(std::int32_t team) const {
  const auto width = static_cast<std::size_t>(padded_lanes(dim_));
  return std::span(means_).subspan(static_cast<std::size_t>(team) * width,
                                   static_cast<std::size_t>(dim_));
}

std::vector<float> TeamTable::routing_logits(const StepView& view, int head,
                                             const Scores& scores) const {
  const auto count = static_cast<std::size_t>(teams());
  const std::vector<float>& bounds = scores.screening.bounds;
  if (!bounds.empty()) {
    const std::size_t stride = bounds.size() / static_cast<std::size_t>(view.group);
    const auto first = bounds.begin() + static_cast<std::ptrdiff_t>(stride) * head;
    return {first, first + static_cast<std::ptrdiff_t>(count)};
  }
  std::vector<float> logits(count);
  if (means_.empty()) {
    const std::span<const float> keys = scores.head(head);
    for (std::size_t t = 0; t < count; ++t) {
      logits[t] = keys[static_cast<std::size_t>(teams_.leaders[t])];
    }
    return logits;
  }
  const int padded = padded_lanes(view.k.dim);
  std::vector<float> query(static_cast<std::size_t>(padded), 0.0f);
  std::ranges::copy(view.query(head), query.begin());
  score_rows(means_.data(), query.data(), teams(), padded, view.scale, logits.data());
  if (view.logit_cap > 0) {
    for (float& logit : logits) logit = capped_logit(logit, view.logit_cap);
  }
  return logits;
}

std::vector<float> TeamTable::weights(const StepView& view, int head, const Scores& scores) const {
  std::vector<float> weights = routing_logits(view, head, scores);
  for (std::int32_t t = 0; t < teams(); ++t) {
    float& weight = weights[static_cast<std::size_t>(t)];
    weight = team_weight(teams_.partition.size(t), weight);
  }
  return weights;
}

std::vector<double> TeamTable::log_proposal(const StepView& view, int head,
                                            const Scores& scores) const {
  const std::vector<float> phi = weights(view, head, scores);
  const double highest = *std::ranges::max_element(phi);
  double sum = 0;
  for (const float weight : phi) sum += std::exp(weight - highest);
  const double all = highest + std::log(sum);
  std::vector<double> chances(static_cast<std::size_t>(prompt()));
  for (std::int32_t t = 0; t < teams(); ++t) {
    const double own = phi[static_cast<std::size_t>(t)] - all - std::log(teams_.partition.size(t));
    for (const std::int32_t key : members(t)) chances[static_cast<std::size_t>(key)] = own;
  }
  return chances;
}

std::string TeamTable::note() const {
  return windowed ? "santapp: layers with a window are attended to densely" : "";
}

}  // namespace kvsim::santapp
