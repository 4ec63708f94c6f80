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

std::vector<float> TeamTable::weights(const StepView& view, int head,
                                      std::span<const float> scores) const {
  std::vector<float> weights(static_cast<std::size_t>(teams()));
  if (!means_.empty()) {
    const int padded = padded_lanes(view.k.dim);
    std::vector<float> query(static_cast<std::size_t>(padded), 0.0f);
    std::ranges::copy(view.query(head), query.begin());
    score_rows(means_.data(), query.data(), teams(), padded, view.scale, weights.data());
    if (view.logit_cap > 0) {
      for (float& weight : weights) weight = capped_logit(weight, view.logit_cap);
    }
  }
  for (std::int32_t t = 0; t < teams(); ++t) {
    const auto at = static_cast<std::size_t>(t);
    const float logit =
        means_.empty() ? scores[static_cast<std::size_t>(teams_.leaders[at])] : weights[at];
    weights[at] = team_weight(teams_.partition.size(t), logit);
  }
  return weights;
}

std::vector<double> TeamTable::log_proposal(const StepView& view, int head,
                                            std::span<const float> scores) const {
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
