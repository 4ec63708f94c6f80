#pragma once

#include "kernels/implementation.h"
#include "kernels/split_plan.h"

namespace kvsim {

/// What a launch of the kernels that keep scores on chip looks like (SANTA, top-k).
struct StreamPlan {
  SplitPlan split;
  double resident_blocks = 0;  // of a CTA
  double spilled_blocks = 0;   // over all CTAs: what becomes of their scores waits in global memory
  int warps = 8;               // of a CTA, that gather rows
  double ring_bytes = 0;       // of a CTA, under way while it streams

  /// Spilled blocks of the CTA that has most.
  double most_spilled() const;
  /// How many of `rows`, over all heads, fall to a CTA in one team.
  double rows_of_cta(const Shape& shape, double rows) const;
};
/// In one launch, or in two with everything spilled between them. Scores have the room that the
/// ring leaves; a kernel that needs more for gathering leaves them less.
StreamPlan plan_stream_cost(const Shape& shape, const DeviceLimits& limits, bool fused = true);

/// The stage that scores keys, but for their reads: queries, and what of the scores shared memory
/// has no room for.
Stage& add_stream(Work& work, const Shape& shape, const StreamPlan& plan);
/// Every CTA of a team going `times` over its spilled blocks.
void read_spilled(Stage& stage, const Shape& shape, const StreamPlan& plan, double times);

}  // namespace kvsim
