#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/device/geometry.h"

// How the SANTA++ kernel deals teams out over CTAs, for its launch and the cost model alike.

namespace kvsim::santapp {

/// Teams whose leaders a CTA scores before it looks for the largest of them. The units of 16 teams
/// that make up a tile lie as far apart as there are tiles, so that no tile has all of a part of
/// the prompt that many heads look at.
inline constexpr int kTileTeams = 256;
inline constexpr int kTileUnits = kTileTeams / device::kUnitTokens;

/// Teams that a prompt's rows fall into, at most.
constexpr std::int64_t most_teams(std::int64_t rows, int parent, int representatives) {
  const std::int64_t parents = std::max<std::int64_t>((rows + parent - 1) / parent, 2);
  return std::min(rows, parents * representatives);
}

/// The grid: every (sequence, KV head) has CTAs of its own, each of which takes tiles in turn.
struct TileSplit {
  std::int64_t ctas_per_team = 1;
  std::int64_t tiles_per_cta = 1;

  std::int64_t tiles() const { return ctas_per_team * tiles_per_cta; }
};

constexpr TileSplit split_tiles(std::int64_t groups, std::int64_t teams, int sms) {
  const std::int64_t worth = std::max<std::int64_t>(1, (teams + kTileTeams - 1) / kTileTeams);
  TileSplit split;
  split.ctas_per_team = std::max<std::int64_t>(1, std::min(sms / groups, worth));
  split.tiles_per_cta = (worth + split.ctas_per_team - 1) / split.ctas_per_team;
  return split;
}

/// Candidates that a tile names of each head: four times what it should have to, so that one whose
/// teams are drawn much more often than others' seldom has too few. All of them always suffice.
constexpr int list_length(std::int64_t draws, std::int64_t tiles) {
  constexpr std::int64_t kLeast = 8;
  const std::int64_t wanted = std::max(kLeast, 4 * (draws + 1) / tiles);
  const auto rounded = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(wanted)));
  return static_cast<int>(std::min<std::int64_t>(rounded, kTileTeams));
}

}  // namespace kvsim::santapp
