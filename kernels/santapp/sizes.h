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

/// Rows of K and V that a CTA lists at once to attend to.
inline constexpr int kRowsListed = 1024;

/// What a CTA has, by class of head sizes (head_class), heads in eights and whether SMs have
/// kLargeSharedBytes: what the kernel's SantappShape says of its instances, for the cost model.
struct CtaSizes {
  int warps;
  int stages;       // units of leaders, or of K or V, that a warp has under way
  int front_bytes;  // of the ring, which candidates and sums take over
  int fixed_bytes;  // of shared memory in front of the stash
};

constexpr CtaSizes cta_sizes(int head_dim, int heads8, bool large) {
  CtaSizes sizes{};
  sizes.warps = head_dim == 256 ? 4 : 8;
  const int unit_bytes = device::kUnitTokens * 2 * head_dim;
  sizes.stages = (large ? 128 : 64) * 1024 / (sizes.warps * unit_bytes);
  const int heads = 8 * heads8;
  const int merge_bytes = 4 * sizes.warps * heads * (head_dim + 4) + 16 * 32 * sizes.warps;
  sizes.front_bytes = std::max(sizes.warps * sizes.stages * unit_bytes, merge_bytes);
  const int weight_bytes = 8 * sizes.warps * heads;
  constexpr int kThresholdBytes = 16 * 16;
  constexpr int kBinBytes = 16 * 16 * 4;
  sizes.fixed_bytes = sizes.front_bytes + weight_bytes + 8 * kRowsListed + kThresholdBytes +
                      kBinBytes + 4 * sizes.warps;
  return sizes;
}

/// Words of the stash for a tile: a weight of each head, and where a team's members are.
constexpr int tile_words(int group) { return (group + 3) * kTileTeams; }

}  // namespace kvsim::santapp
