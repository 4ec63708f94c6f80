#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/philox.h"

namespace kvsim::santapp {

/// The teams that one query head draws without replacement.
struct Draw {
  std::vector<std::int32_t> teams;   // ascending
  std::vector<float> log_inclusion;  // ln c of each
  float threshold = 0;               // κ; -inf where all teams are drawn
};

/// `count` teams by Gumbel top-k over φ (section 2.3, appendix A); `noise` is the head's stream,
/// with one word a team. All of them, each for certain, if there are no more.
Draw draw_teams(std::span<const float> weights, std::int64_t count, const RandomStream& noise);

/// `count` of a team's keys, each as likely as any other, ascending; all of them if there are no
/// more. `words` is the head's stream, of which words `first` and on are this team's.
std::vector<std::int32_t> draw_members(std::span<const std::int32_t> keys, std::int64_t count,
                                       const RandomStream& words, std::uint32_t first);

}  // namespace kvsim::santapp
