#pragma once

#include "core/device_limits.h"
#include "kernels/device/geometry.h"
#include "kernels/shape.h"
#include "kernels/work.h"

namespace kvsim {

/// How a persistent kernel deals the tokens of all teams (sequence, KV head) out over its CTAs, all
/// of which run at once, by the kernels' own rule (kernels/device/team_split.h): what of it costs.
struct SplitPlan {
  LaunchShape launch;
  double ctas_per_team = 0;  // 0: contiguous shares, which may span teams
  double units = 0;          // of all teams
  double imbalance = 1;      // units of the longest CTA over the mean
  double partials = 0;       // (team, CTA) pairs of the teams that several CTAs share; 0 = none
  double team_units = 0;     // units of all teams, each as often as CTAs work on the team
  double most_teams = 1;     // of one CTA
  double waits = 1;          // 0 if no CTA waits for another between two stages

  /// Σ over CTAs of the units beyond the first `kept` of each.
  double units_beyond(double kept) const;
  /// Of the longest CTA; whole, whatever the quotients' last bits.
  double most_units() const;
};

/// In closed form, but for a walk over the borders of contiguous shares. Batches that no kernel
/// takes at once are split as if one did.
SplitPlan plan_splits(const Shape& shape, const DeviceLimits& limits, const SplitUnit& unit,
                      bool own_ctas = true, int ctas_per_sm = 1);

/// Bytes of one head's partial result as released kernels merge it: output, maximum and sum in
/// float32; and as our CTAs exchange it: a launch number with every word, and head sizes padded.
inline double partial_row_bytes(const Shape& shape) { return 4.0 * (shape.v_head_dim + 2); }
double exchanged_row_bytes(const Shape& shape, bool weighted);

/// The queries of the whole batch, read once.
void read_query(Stage& stage, const Shape& shape);

/// How partial results become the output when the plan splits teams.
struct Merge {
  Boundary before = Boundary::kTeamExchange;
  double row_bytes = 0;  // of one partial result
};

/// Ends the work: its last stage writes one partial result per (team, CTA) pair and query head,
/// which a stage of its own adds up; without partials the last stage writes the output itself.
void finish_output(Work& work, const Shape& shape, const SplitPlan& plan, const Merge& merge);

/// Σ ceil(context / tile) over the batch.
double tiles_of(const Shape& shape, int tile);

/// Query heads over the whole batch.
inline double query_heads(const Shape& shape) { return shape.batch() * shape.q_heads; }

inline constexpr int kScoreBytes = 4;

/// Operations of `rows` dot products (summed over heads), scale included.
void count_scores(Stage& stage, const Shape& shape, double rows);

/// Operations of a softmax over `rows` scores (summed over heads) and the weighted sum of as many V
/// rows, normalised at the end.
void count_weighted_values(Stage& stage, const Shape& shape, double rows);

}  // namespace kvsim
