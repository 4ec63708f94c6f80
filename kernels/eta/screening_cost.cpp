#include "kernels/eta/screening_cost.h"

#include <algorithm>
#include <cmath>

#include "kernels/eta/cycles.h"
#include "kernels/eta/sizes.h"

namespace kvsim::eta {
namespace {

namespace cycles = eta_cycles;

std::int64_t ceil_of(std::int64_t n, std::int64_t parts) { return (n + parts - 1) / parts; }

double turns_of(double blocks) { return std::ceil(blocks / kScreenedAtOnce); }

/// Of one turn, while no other can have its own.
double in_turn(double share) {
  return cycles::kTurnOver + cycles::kQueue * std::min(1.0, share * kScreenedAtOnce);
}

}  // namespace

ScreeningCost::ScreeningCost(const Shape& shape, const DeviceLimits& limits, const SplitPlan& plan,
                             int block, const BlockRule& rule)
    : block_(block), rule_(rule), teams_(shape.batch() * shape.kv_heads) {
  warps_ = screening_warps(head_class(shape.head_dim), heads8_of(shape.group()),
                           limits.shared_bytes_per_sm >= kLargeSharedBytes);
  ctas_of_sm_ = std::ceil(plan.launch.ctas / limits.sms);
  count_teams(shape, plan);
  const std::int64_t longest = *std::max_element(shape.contexts.begin(), shape.contexts.end());
  const std::int64_t full = longest / block;
  const auto most = static_cast<double>(full);
  runs_ = plan.most_teams;
  const double units = std::ceil(plan.most_units() / runs_);
  run_turns_ = std::max(1.0, turns_of(std::min(most, units * kShareTokens / block)));
  const double starts = std::min(runs_, std::ceil(teams_ / plan.launch.ctas));
  const double first = turns_of(std::min(most, static_cast<double>(rule.chunk)));
  const bool has_chunk = plan.ctas_per_team <= 1 && run_turns_ >= first;
  if (may_rescue(full, rule) && has_chunk) run_tracked_ = starts * first / runs_;
}

/// Where a head may be rescued, the CTA with a team's first blocks bounds the first chunk once more
/// unless it has all of it.
void ScreeningCost::count_teams(const Shape& shape, const SplitPlan& plan) {
  const auto ctas = static_cast<std::int64_t>(plan.launch.ctas);
  const auto total = static_cast<std::int64_t>(plan.units);
  const auto own_ctas = static_cast<std::int64_t>(plan.ctas_per_team);
  const auto cta_of = [&](std::int64_t unit) { return ((unit + 1) * ctas - 1) / total; };
  std::int64_t begin = 0;  // of the team in the flat order
  for (const std::int64_t context : shape.contexts) {
    const std::int64_t units = ceil_of(context, kShareTokens);
    const std::int64_t full = context / block_;
    const std::int64_t chunk = std::min(rule_.chunk, full);
    for (int head = 0; head < shape.kv_heads; ++head, begin += units) {
      const std::int64_t first = cta_of(begin);
      const std::int64_t stop = std::min(begin + units, total * (first + 1) / ctas);
      const std::int64_t members = own_ctas > 0 ? own_ctas : cta_of(begin + units - 1) - first + 1;
      pairs_ += static_cast<double>(members);
      // Teams with CTAs of their own deal units out in turn, so the first has no whole chunk.
      const bool whole = own_ctas > 0
                             ? own_ctas == 1
                             : std::min(full, (stop - begin) * kShareTokens / block_) >= chunk;
      if (whole || !may_rescue(full, rule_)) continue;
      reread_ += static_cast<double>(chunk);
      most_reread_ = std::max(most_reread_, static_cast<double>(chunk));
    }
  }
}

/// A run of turns: each warp's own follow each other, and all end in turn. `tracked` of them keep
/// what the rescue needs.
double ScreeningCost::run_cycles(double turns, double tracked, double share) const {
  const double serial = in_turn(share) + cycles::kTrack * tracked / turns;
  const double rounds = std::ceil(turns / warps_);
  const double behind = turns - 1 - (rounds - 1) * warps_;  // turns after the last round's first
  const double by_warp = rounds * (cycles::kBounds + serial) + behind * serial;
  return std::max(by_warp, cycles::kBounds + turns * serial);
}

/// Until the first rows come: queries, the first turn's records, and the rows wait for each other,
/// with the instructions between. The turns after the first go on beside the rows, so they are a
/// lower bound; they find their records there, but for the first ones of each run, whose queries
/// had to come before. Attending warps are no bound: a unit takes one some 1600 cycles, so those
/// of an SM could take twice what memory delivers.
void ScreeningCost::fill(Stage& stage, double share) const {
  const double first = cycles::kBounds + in_turn(share);
  stage.dependent_trips = 2;
  stage.chain_cycles = cycles::kQueries + first + cycles::kTake;
  stage.load_rounds = 1 + 2 * (runs_ - 1);
  double turns = runs_ * run_cycles(run_turns_, run_tracked_, share);
  if (most_reread_ > 0) {
    const double again = turns_of(most_reread_);
    turns += run_cycles(again, again, 0);
    ++stage.load_rounds;
  }
  const double beside = turns - first + (runs_ - 1) * cycles::kQueries + cycles::kClose;
  stage.load_warps = warps_ * ctas_of_sm_;
  stage.round_cycles = beside / stage.load_rounds;
}

}  // namespace kvsim::eta
