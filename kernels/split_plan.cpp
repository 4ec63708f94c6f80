#include "kernels/split_plan.h"

#include <algorithm>
#include <cmath>

#include "kernels/device/team_split.h"

namespace kvsim {
namespace {

std::int64_t units_in(std::int64_t context, const SplitUnit& unit) {
  return (context + unit.tokens - 1) / unit.tokens;
}

UnitCounts count_units(const Shape& shape, const SplitUnit& unit) {
  UnitCounts counts{static_cast<std::int64_t>(shape.contexts.size()), shape.kv_heads, 0, 0, true};
  for (const std::int64_t context : shape.contexts) {
    const std::int64_t units = units_in(context, unit);
    counts.units += units;
    counts.most = std::max(counts.most, units);
    counts.equal = counts.equal && context == shape.contexts.front();
  }
  return counts;
}

/// Contiguous shares: the teams that their borders cut. Sequence by sequence, as the teams of one
/// are equally long.
void count_cuts(const Shape& shape, const SplitUnit& unit, std::int64_t total, std::int64_t ctas,
                SplitPlan& plan) {
  std::size_t sequence = 0;
  std::int64_t begin = 0;  // of the sequence in the flat order
  std::int64_t units = units_in(shape.contexts[0], unit);
  std::int64_t team = 0;
  std::int64_t team_end = units;
  std::int64_t first_team = 0;  // of the share
  std::int64_t cut_team = -1;
  std::int64_t end = 0;  // of the share: total * (cta + 1) / ctas, without dividing
  std::int64_t rest = 0;
  for (std::int64_t cta = 0; cta < ctas; ++cta) {
    end += total / ctas;
    rest += total % ctas;
    if (rest >= ctas) {
      rest -= ctas;
      ++end;
    }
    if (end > team_end) {
      while (end > begin + units * shape.kv_heads) {
        begin += units * shape.kv_heads;
        units = units_in(shape.contexts[++sequence], unit);
      }
      const std::int64_t of_sequence = (end - 1 - begin) / units;
      team = static_cast<std::int64_t>(sequence) * shape.kv_heads + of_sequence;
      team_end = begin + (of_sequence + 1) * units;
    }
    plan.most_teams = std::max(plan.most_teams, static_cast<double>(team - first_team + 1));
    const bool cut = end < team_end;
    first_team = cut ? team : team + 1;
    if (!cut) continue;
    plan.partials += team == cut_team ? 1 : 2;
    plan.team_units += static_cast<double>(units);
    cut_team = team;
  }
}

}  // namespace

SplitPlan plan_splits(const Shape& shape, const DeviceLimits& limits, const SplitUnit& unit,
                      bool own_ctas, int ctas_per_sm) {
  const UnitCounts counts = count_units(shape, unit);
  const int most_ctas = ctas_per_sm * limits.sms;
  const CtaCounts ctas = deal_out_ctas(counts, unit, most_ctas, own_ctas);
  SplitPlan plan;
  plan.launch = {static_cast<double>(ctas.ctas), static_cast<double>(most_ctas)};
  plan.ctas_per_team = static_cast<double>(ctas.ctas_per_team);
  plan.units = plan.team_units = static_cast<double>(counts.total());
  if (ctas.ctas_per_team > 0) {
    const auto most =
        static_cast<double>(units_in(counts.most, {static_cast<int>(ctas.ctas_per_team), 1}));
    plan.imbalance = most * plan.ctas_per_team / static_cast<double>(counts.most);
    plan.partials = ctas.ctas_per_team > 1 ? plan.launch.ctas : 0;
    plan.team_units *= plan.ctas_per_team;
  } else {
    plan.imbalance = std::ceil(plan.units / plan.launch.ctas) * plan.launch.ctas / plan.units;
    count_cuts(shape, unit, counts.total(), ctas.ctas, plan);
  }
  // A device of one unit, an accelerator, drains its pipeline all the same.
  plan.waits = plan.partials > 0 || limits.sms == 1 ? 1 : 0;
  return plan;
}

double SplitPlan::most_units() const { return std::round(imbalance * units / launch.ctas); }

double SplitPlan::units_beyond(double kept) const {
  const double teams = ctas_per_team > 0 ? launch.ctas / ctas_per_team : 1;
  const double sharers = ctas_per_team > 0 ? ctas_per_team : launch.ctas;
  const double few = std::floor(units / teams / sharers);  // units of the CTAs with the fewest
  const double longer = units / teams - few * sharers;     // CTAs with one more
  return teams *
         (longer * std::max(0.0, few + 1 - kept) + (sharers - longer) * std::max(0.0, few - kept));
}

double exchanged_row_bytes(const Shape& shape, bool weighted) {
  constexpr double kTaggedBytes = 8;
  const int columns = std::max(head_class(shape.v_head_dim), shape.v_head_dim);
  return kTaggedBytes * (columns + (weighted ? 2 : 0));
}

void read_query(Stage& stage, const Shape& shape) {
  stage.read(Tensor::kQuery, shape.query_bytes(), 1, 1);
}

void finish_output(Work& work, const Shape& shape, const SplitPlan& plan, const Merge& merge) {
  if (plan.partials > 0) {
    const double rows = plan.partials * shape.group();
    work.stages.back().write(Tensor::kPartial, merge.row_bytes, rows);
    Stage& stage = work.add_stage("merge", merge.before);
    stage.read(Tensor::kPartial, merge.row_bytes, rows, rows);
    // A share's first and last team are added up one after the other.
    stage.cache_trips = plan.most_teams > 1 ? 1 : 0;
  }
  work.stages.back().write(Tensor::kOutput, shape.output_bytes(), 1);
}

double tiles_of(const Shape& shape, int tile) {
  double tiles = 0;
  for (const std::int64_t context : shape.contexts) {
    tiles += std::ceil(static_cast<double>(context) / tile);
  }
  return tiles;
}

void count_scores(Stage& stage, const Shape& shape, double rows) {
  stage.count(Op::kMultiply, Phase::kScore, rows * (shape.head_dim + 1));
  stage.count(Op::kAdd, Phase::kScore, rows * (shape.head_dim - 1));
}

void count_weighted_values(Stage& stage, const Shape& shape, double rows) {
  const double heads = query_heads(shape);
  stage.count(Op::kCompare, Phase::kSoftmax, rows - heads);
  stage.count(Op::kAdd, Phase::kSoftmax, 2 * rows - heads);  // subtract the maximum, sum
  stage.count(Op::kExp, Phase::kSoftmax, rows);
  stage.count(Op::kMultiply, Phase::kValue, rows * shape.v_head_dim);
  stage.count(Op::kAdd, Phase::kValue, (rows - heads) * shape.v_head_dim);
  stage.count(Op::kMultiply, Phase::kMerge, heads * (shape.v_head_dim + 1));  // times 1 / sum
}

}  // namespace kvsim
