#pragma once

#include "kernels/device/blocks.h"

// Sizes of SANTA's kernels that its cost model must agree on; plain C++, as geometry.h is.

namespace kvsim::device {

/// A row is found among 16 sums that lie 16 apart, then among the 16 after the one found.
inline constexpr int kPrefixesAtOnce = 16;
static_assert(kPrefixesAtOnce * kPrefixesAtOnce == kBlockTokens);

/// Tile records that a lane, and a warp, reads at once.
inline constexpr int kTilesPerLane = 4;
inline constexpr int kTilesAtOnce = 32 * kTilesPerLane;

/// Teams of a CTA's share that are gathered together, where CTAs have no team of their own: most
/// shares span two.
inline constexpr int kPartsAtOnce = 2;

/// Warps of santa-flash that finish blocks: each has one head, or two of groups above 8.
inline constexpr int kFinishWarps = 8;

/// V rows that a warp has under way: as many as registers hold.
constexpr int sampled_rows_at_once(int dim, int group) {
  if (group > 8) return 4;
  return dim <= 128 ? 16 : 8;
}

/// log2 of the most partial sums of a head; chunks of 16 or 32 samples go to them in turn.
constexpr int gather_slots_log2(int group, int warps) {
  constexpr int kMostSums = 32;
  int log2 = 0;
  while (2 << log2 <= warps && group << (log2 + 1) <= kMostSums) ++log2;
  return log2;
}

}  // namespace kvsim::device
