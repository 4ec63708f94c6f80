#pragma once

#include <cstdint>

#include "kernels/eta/blocks.h"
#include "kernels/shape.h"
#include "kernels/split_plan.h"

namespace kvsim::eta {

/// How long the kernel's screening takes, and what it reads more than once.
class ScreeningCost {
 public:
  ScreeningCost(const Shape& shape, const DeviceLimits& limits, const SplitPlan& plan, int block,
                const BlockRule& rule);

  /// CTAs that work on a team and read its queries: over all teams, in teams.
  double query_reads() const { return pairs_ / teams_; }
  /// Records of first chunks that are read once more.
  double reread() const { return reread_; }

  /// The times of the stage that screens and attends, of whose blocks a group takes `share`.
  void fill(Stage& stage, double share) const;

 private:
  void count_teams(const Shape& shape, const SplitPlan& plan);
  double run_cycles(double turns, double tracked, double share) const;

  int block_;
  BlockRule rule_;
  double warps_ = 1;  // of a CTA
  double ctas_of_sm_ = 1;
  double teams_ = 0;
  double pairs_ = 0;  // (team, CTA) pairs
  double reread_ = 0;
  double most_reread_ = 0;  // of one CTA
  double runs_ = 1;         // teams of the longest CTA, one after the other
  double run_turns_ = 0;    // of each
  double run_tracked_ = 0;  // turns of it in a first chunk, on average
};

}  // namespace kvsim::eta
