#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/device/geometry.h"

// How the five launches of implementation=published deal their work out.

namespace kvsim::santapp {

/// Teams whose leaders a CTA of the first launch scores.
inline constexpr int kScoredTeams = 128;

/// Teams of a part, whose largest the second launch finds: what it keeps in registers.
inline constexpr int kWarpPart = 256;
inline constexpr int kLargestWarpPart = 1024;
inline constexpr int kCtaPart = 8192;

/// The second launch looks at a part, the third at all that the parts name: so that both have as
/// much to do, √((K + 1) M) of M teams.
constexpr int part_teams(std::int64_t draws, std::int64_t teams) {
  std::int64_t part = kWarpPart;
  while (part <= kLargestWarpPart && part * part < (draws + 1) * teams) part *= 2;
  return static_cast<int>(part > kLargestWarpPart ? kCtaPart : part);
}

/// Candidates that a part names of each head: all that can be among the first K + 1.
constexpr int part_list(std::int64_t draws, int part) {
  return static_cast<int>(std::min<std::int64_t>(draws + 1, part));
}

/// CTAs of the fourth launch that share the rows of a (sequence, KV head), of which there are about
/// `rows`: how many is known to the device alone. Two for each SM, while all have two units.
inline constexpr int kMostSplits = 256;
constexpr int row_splits(std::int64_t groups, std::int64_t rows, int sms) {
  constexpr int kLeast = 2 * device::kUnitTokens;
  const std::int64_t room = std::max<std::int64_t>(1, 2 * sms / groups);
  return static_cast<int>(std::clamp<std::int64_t>((rows + kLeast - 1) / kLeast, 1,
                                                   std::min<std::int64_t>(room, kMostSplits)));
}

}  // namespace kvsim::santapp
