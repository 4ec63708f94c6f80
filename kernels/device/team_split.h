#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/host_device.h"
#include "kernels/device/geometry.h"
#include "kernels/device/step.h"

namespace kvsim {

/// How a persistent kernel deals units of tokens out over its CTAs. A team is a (sequence, KV
/// head); the units of all teams lie in one flat order. Either each team has CTAs of its own, or
/// every CTA has a contiguous share of the flat order, which may span teams. The plan is
/// arithmetic, so kernels need no table of it.
struct TeamSplit {
  std::int32_t batch = 1;
  std::int32_t kv_heads = 1;
  std::int32_t ctas = 1;
  std::int32_t ctas_per_team = 0;  // 0: contiguous shares
  std::int32_t team_units = 0;     // of each team, where teams have CTAs of their own
  std::int32_t cta_units = 0;      // of each of its CTAs; the first `rest_units` have one more
  std::int32_t rest_units = 0;
  std::array<std::int32_t, kMaxBatch + 1> units_before{};  // of one KV head, over sequences

  struct Team {
    std::int32_t sequence = 0;
    std::int32_t kv_head = 0;
    std::int32_t begin = 0;  // its units in the flat order
    std::int32_t end = 0;
  };

  KVSIM_HD std::int32_t total() const {
    return units_before[static_cast<std::size_t>(batch)] * kv_heads;
  }
  KVSIM_HD std::int32_t share_begin(std::int32_t cta) const {
    return static_cast<std::int32_t>(std::int64_t{total()} * cta / ctas);
  }
  /// The CTA whose share holds the flat unit.
  KVSIM_HD std::int32_t cta_of(std::int32_t unit) const {
    return static_cast<std::int32_t>((std::int64_t{unit + 1} * ctas - 1) / total());
  }
  KVSIM_HD Team team(std::int32_t sequence, std::int32_t kv_head) const {
    const auto s = static_cast<std::size_t>(sequence);
    const std::int32_t units = units_before[s + 1] - units_before[s];
    const std::int32_t begin = units_before[s] * kv_heads + units * kv_head;
    return {sequence, kv_head, begin, begin + units};
  }
  KVSIM_HD Team team_at(std::int32_t unit) const {
    std::int32_t sequence = 0;
    while (units_before[static_cast<std::size_t>(sequence) + 1] * kv_heads <= unit) ++sequence;
    const auto s = static_cast<std::size_t>(sequence);
    const std::int32_t units = units_before[s + 1] - units_before[s];
    return team(sequence, (unit - units_before[s] * kv_heads) / units);
  }
  KVSIM_HD Team next(const Team& t) const {
    return t.kv_head + 1 < kv_heads ? team(t.sequence, t.kv_head + 1) : team(t.sequence + 1, 0);
  }
  KVSIM_HD std::int32_t teams() const { return batch * kv_heads; }
  KVSIM_HD std::int32_t most_units_per_cta() const {
    return ctas_per_team > 0 ? (units_before[1] + ctas_per_team - 1) / ctas_per_team
                             : (total() + ctas - 1) / ctas;
  }
};

/// What a split depends on.
struct UnitCounts {
  std::int64_t sequences = 0;
  std::int64_t kv_heads = 1;
  std::int64_t units = 0;  // of one KV head, over all sequences
  std::int64_t most = 0;   // of one sequence
  bool equal = true;       // all sequences have as many tokens

  std::int64_t teams() const { return sequences * kv_heads; }
  std::int64_t total() const { return units * kv_heads; }
};

/// How a split's CTAs are dealt out to teams; fields as in TeamSplit.
struct CtaCounts {
  std::int64_t ctas = 1;
  std::int64_t ctas_per_team = 0;
};

/// The rule, for kernels (plan_teams) and for the cost model (plan_splits) alike; `own_ctas`:
/// whether teams may have CTAs of their own.
CtaCounts deal_out_ctas(const UnitCounts& counts, const SplitUnit& unit, int most_ctas,
                        bool own_ctas = true);

/// Units over at most `most_ctas` CTAs.
TeamSplit plan_teams(std::span<const std::int32_t> contexts, int kv_heads, const SplitUnit& unit,
                     int most_ctas, bool own_ctas = true);

}  // namespace kvsim
