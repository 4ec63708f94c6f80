#include "kernels/device/team_split.h"

#include <algorithm>

#include "core/error.h"

namespace kvsim {
namespace {

constexpr double kLeastBusyShare = 0.95;  // of the CTAs, for a team to have CTAs of its own

}  // namespace

CtaCounts deal_out_ctas(const UnitCounts& counts, const SplitUnit& unit, int most_ctas,
                        bool own_ctas) {
  const std::int64_t teams = counts.teams();
  const std::int64_t worth = (counts.most + unit.least - 1) / unit.least;
  const std::int64_t per_team = std::min(most_ctas / teams, worth);
  const bool few_units = most_ctas / teams > per_team;
  const bool busy =
      static_cast<double>(per_team * teams) >= kLeastBusyShare * most_ctas || few_units;
  if (own_ctas && counts.equal && per_team >= 1 && busy) return {per_team * teams, per_team};
  const std::int64_t useful = (counts.total() + unit.least - 1) / unit.least;
  return {std::min<std::int64_t>(most_ctas, useful), 0};
}

TeamSplit plan_teams(std::span<const std::int32_t> contexts, int kv_heads, const SplitUnit& unit,
                     int most_ctas, bool own_ctas) {
  KVSIM_CHECK(!contexts.empty() && contexts.size() <= kMaxBatch);
  TeamSplit split;
  split.batch = static_cast<std::int32_t>(contexts.size());
  split.kv_heads = kv_heads;
  UnitCounts counts{split.batch, kv_heads, 0, 0, true};
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    const std::int32_t units = (contexts[i] + unit.tokens - 1) / unit.tokens;
    split.units_before[i + 1] = split.units_before[i] + units;
    counts.most = std::max<std::int64_t>(counts.most, units);
    counts.equal = counts.equal && contexts[i] == contexts[0];
  }
  counts.units = split.units_before[contexts.size()];
  const CtaCounts ctas = deal_out_ctas(counts, unit, most_ctas, own_ctas);
  split.ctas = static_cast<std::int32_t>(ctas.ctas);
  split.ctas_per_team = static_cast<std::int32_t>(ctas.ctas_per_team);
  if (split.ctas_per_team > 0) {
    split.team_units = static_cast<std::int32_t>(counts.most);
    split.cta_units = split.team_units / split.ctas_per_team;
    split.rest_units = split.team_units % split.ctas_per_team;
  }
  return split;
}

}  // namespace kvsim
