#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/dense/accumulator.cuh"
#include "kernels/device/exchange.cuh"
#include "kernels/device/step.h"
#include "kernels/device/units.cuh"
#include "kernels/santapp/packed_teams.cuh"
#include "kernels/santapp/sizes.h"

// What a launch of SANTA++ is told, the sizes of its instances, and what a CTA knows of itself.

namespace kvsim::santapp {

struct SantappArguments {
  device::Partials partials;
  std::int32_t group = 1;
  std::int32_t draws = 1;          // teams of each head
  std::int32_t tiles = 1;          // of each (sequence, KV head)
  std::int32_t tiles_per_cta = 1;  // CTA r of them takes tiles r, r + CTAs, …
  std::int32_t list = 8;           // candidates that a tile names of each head
  PackedTeams table;
  KvTensor routes;                       // the rows of it that route
  std::uint32_t* stash = nullptr;        // TileViews of all CTAs; null: they lie in shared memory
  device::TaggedPair* lists = nullptr;   // [groups, tiles, heads, list / 2]: two candidates each
  device::TaggedPair* counts = nullptr;  // [2, CTAs, heads, kBins / 2]
  TeamSplit split;                       // only its grid
  DeviceStep step;
};

/// A row that a CTA attends to: of the packed prompt, or, as ~token, of the cache.
struct ListedRow {
  std::int32_t row;
  std::uint32_t team;  // of the CTA's tiles; kAllHeads: every head attends to it, for certain
};
inline constexpr std::uint32_t kAllHeads = 0xFFFFFFFFu;
inline constexpr std::int32_t kNoRow = INT32_MIN;

/// The priority of the first team that a head does not draw, and which team that is.
struct HeadThreshold {
  std::uint32_t key;
  std::int32_t team;
  std::int32_t open;  // the lists were too short to tell
  std::int32_t padding;
};

template <int D, int kHeads8Value, bool kLarge>
struct SantappShape {
  static constexpr int kDim = D;
  static constexpr int kHeads8 = kHeads8Value;
  using Tile = device::UnitTile<D>;

  static constexpr int kWarps = D == 256 ? 4 : 8;
  static constexpr int kThreads = kWarps * device::kWarp;
  /// 128 KB of leaders are under way, or 64 KB; two stages hold a unit of members, K and V.
  static constexpr int kStages = (kLarge ? 128 : 64) * 1024 / (kWarps * Tile::kBytes);
  static constexpr int kPairs = kStages / 2;
  static constexpr int kRingBytes = kWarps * kStages * Tile::kBytes;
  static constexpr int kWarpUnits = kTileUnits / kWarps;   // of a tile
  static constexpr int kWarpHeads = 8 * kHeads8 / kWarps;  // whose candidates a warp finds
  static constexpr int kListed = kRowsListed;
  using Merge = device::DenseMerge<D, kHeads8, kWarps>;

  /// Candidates, and sums that are merged, take the ring's place.
  static constexpr int kMergeBytes = 4 * kWarps * Merge::kWarpFloats;
  static constexpr int kSumBytes = kThreads * static_cast<int>(sizeof(device::WeightedPair));
  static constexpr int kFront = std::max(kRingBytes, kMergeBytes + kSumBytes);
  static constexpr int kWeights = kFront;
  static constexpr int kRows = kWeights + Merge::kWeightBytes;
  static constexpr int kThresholds = kRows + kListed * static_cast<int>(sizeof(ListedRow));
  static constexpr int kBinned = kThresholds + 16 * static_cast<int>(sizeof(HeadThreshold));
  static constexpr int kScan = kBinned + 16 * 16 * 4;
  static constexpr int kStash = kScan + 4 * kWarps;
  static_assert(kPairs >= 1 && kStash % 16 == 0);
};

/// What a CTA keeps of a tile until its teams are drawn: words of shared or global memory. Teams of
/// a tile are numbered in their order.
struct TileView {
  std::uint32_t* words;
  int group;

  KVSIM_HD static constexpr int count(int group) { return (group + 3) * kTileTeams; }

  /// φ of a head's teams; of those that it draws, ln c in its place.
  __device__ float* weights(int head) const {
    return reinterpret_cast<float*>(words) + head * kTileTeams;
  }
  __device__ std::uint32_t* heads() const { return words + group * kTileTeams; }  // that draw it
  __device__ std::int32_t* begins() const {                                       // of its members
    return reinterpret_cast<std::int32_t*>(words) + (group + 1) * kTileTeams;
  }
  __device__ std::int32_t* sizes() const {
    return reinterpret_cast<std::int32_t*>(words) + (group + 2) * kTileTeams;
  }
};

/// A CTA's place in the launch.
struct TeamCta {
  using Arguments = SantappArguments;

  const SantappArguments& a;
  TeamSplit::Team team;  // as other kernels call a (sequence, KV head)
  std::int64_t number;   // of it
  int rank;              // among its CTAs
  int ctas;
  int warp;
  int lane;
  std::uint32_t* stash;
  int prompt;      // rows in teams
  bool takes_all;  // every team is drawn, so none by chance

  __device__ TeamCta(const SantappArguments& arguments, char* shared, int stash_at)
      : a(arguments),
        team(device::own_team(a.split)),
        number(std::int64_t{team.sequence} * a.step.kv_heads + team.kv_head),
        rank(static_cast<int>(blockIdx.x)),
        ctas(static_cast<int>(gridDim.x)),
        warp(static_cast<int>(threadIdx.x) / device::kWarp),
        lane(static_cast<int>(threadIdx.x) % device::kWarp),
        stash(a.stash == nullptr ? reinterpret_cast<std::uint32_t*>(shared + stash_at)
                                 : a.stash + std::int64_t{device::this_cta()} * a.tiles_per_cta *
                                                 TileView::count(a.group)) {
    const PackedTeams::Header header = *a.table.header(number);  // nobody waits for it here
    prompt = header.rows;
    takes_all = a.draws >= header.teams;
  }

  __device__ int tile_number(int own) const { return rank + own * ctas; }
  __device__ TileView tile(int own) const {
    return {stash + std::int64_t{own} * TileView::count(a.group), a.group};
  }
  __device__ int unit(int tile_number, int slot) const { return tile_number + a.tiles * slot; }
  /// The team of keys that is number `index` of a tile.
  __device__ int team_of(int tile_number, int index) const {
    return device::kUnitTokens * unit(tile_number, index / device::kUnitTokens) +
           index % device::kUnitTokens;
  }
  __device__ std::int64_t head_row(int head) const {
    return device::first_head(a.step, a.group, team) + head;
  }
};

}  // namespace kvsim::santapp
