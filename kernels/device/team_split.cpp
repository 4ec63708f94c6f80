#include "kernels/device/team_split.h"

#include <algorithm>

#include "core/error.h"

namespace kvsim {
namespace {

constexpr double kLeastBusyShare = 0.95;  // of the CTAs, for a team to have CTAs of its own

}  // namespace

TeamSplit plan_teams(std::span<const std::int32_t> contexts, int kv_heads, int unit_tokens,
                     int most_ctas, int least_units, bool teams) {
  KVSIM_CHECK(!contexts.empty() && contexts.size() <= kMaxBatch);
  TeamSplit split;
  split.batch = static_cast<std::int32_t>(contexts.size());
  split.kv_heads = kv_heads;
  std::int32_t most_units = 0;
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    const std::int32_t units = (contexts[i] + unit_tokens - 1) / unit_tokens;
    split.units_before[i + 1] = split.units_before[i] + units;
    most_units = std::max(most_units, units);
  }
  const bool equal =
      std::adjacent_find(contexts.begin(), contexts.end(), std::not_equal_to<>()) == contexts.end();
  const int count = split.teams();
  const int per_team = std::min(most_ctas / count, (most_units + least_units - 1) / least_units);
  const bool few_units = most_ctas / count > per_team;
  const bool busy = per_team * count >= kLeastBusyShare * most_ctas || few_units;
  if (teams && equal && per_team >= 1 && busy) {
    split.ctas_per_team = per_team;
    split.ctas = per_team * count;
    split.team_units = most_units;
    split.cta_units = most_units / per_team;
    split.rest_units = most_units % per_team;
    return split;
  }
  const std::int64_t useful = (split.total() + least_units - 1) / least_units;
  split.ctas = static_cast<std::int32_t>(std::min<std::int64_t>(most_ctas, useful));
  return split;
}

}  // namespace kvsim
