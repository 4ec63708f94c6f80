#include "kernels/santapp/team_plan.h"

#include <algorithm>
#include <cmath>

namespace kvsim::santapp {
namespace {

std::int64_t units_of(std::int64_t teams) {
  return (teams + device::kUnitTokens - 1) / device::kUnitTokens;
}

}  // namespace

std::int64_t prompt_of(const Shape& shape, std::int64_t context) {
  return shape.prompt_tokens > 0 ? std::min(shape.prompt_tokens, context) : context;
}

/// One CTA per SM. A CTA's tiles hold whole units, of which the longest prompt has the most.
TeamPlan::TeamPlan(const Shape& shape, const Settings& settings, const DeviceLimits& limits) {
  const bool large = limits.shared_bytes_per_sm >= kLargeSharedBytes;
  cta = cta_sizes(head_class(shape.head_dim), shape.group() > 8 ? 2 : 1, large);
  double units = 0;
  std::int64_t most = 1;
  for (const std::int64_t context : shape.contexts) {
    const std::int64_t prompt = prompt_of(shape, context);
    const std::int64_t own =
        units_of(most_teams(prompt, settings.teams.parent, settings.teams.representatives));
    units += static_cast<double>(own) * shape.kv_heads;
    most = std::max(most, own);
    prompt_rows += static_cast<double>(prompt) * shape.kv_heads;
    suffix_rows += static_cast<double>(context - prompt) * shape.kv_heads;
  }
  const auto groups = static_cast<std::int64_t>(shape.contexts.size()) * shape.kv_heads;
  tiles = split_tiles(groups, most * device::kUnitTokens, limits.sms);
  list = list_length(settings.draws(), tiles.tiles());
  heads_of_warp = std::ceil(static_cast<double>(shape.group()) / cta.warps);

  const auto members = static_cast<double>(tiles.ctas_per_team);
  split.launch = {members * static_cast<double>(groups), static_cast<double>(limits.sms)};
  split.ctas_per_team = members;
  split.units = split.team_units = units;
  const std::int64_t longest = tiles.tiles_per_cta * ((most + tiles.tiles() - 1) / tiles.tiles());
  split.imbalance = std::max(1.0, static_cast<double>(longest) * split.launch.ctas / units);
  split.partials = members > 1 ? split.launch.ctas : 0;
  // A device of one unit, an accelerator, drains its pipeline all the same.
  split.waits = members > 1 || limits.sms == 1 ? 1 : 0;
  const std::int64_t stash = 4 * tiles.tiles_per_cta * tile_words(shape.group());
  stash_on_chip = cta.fixed_bytes + stash + 2 * kSystemSharedBytes <= limits.shared_bytes_per_sm;
}

}  // namespace kvsim::santapp
