#pragma once

#include <cstdint>

#include "kernels/dense/accumulator.cuh"
#include "kernels/device/exchange.cuh"
#include "kernels/device/step.h"
#include "kernels/device/units.cuh"
#include "kernels/eta/queue.cuh"
#include "kernels/eta/record_table.cuh"
#include "kernels/eta/rule.h"
#include "kernels/eta/sizes.h"

// What a launch of ETA is told, and the sizes of its instances.

namespace kvsim::eta {

struct EtaArguments {
  device::Partials partials;
  std::int32_t group = 1;
  std::int32_t block_log2 = 6;  // of its tokens
  std::int32_t chunk = 128;     // blocks
  std::int32_t pinned = 2;      // blocks
  float z = 0;
  Gate gate = Gate::kMultiplicative;
  bool rescue = true;
  RecordTable records;
  TeamSplit split;  // in kShareTokens
  DeviceStep step;
};

/// Warps that attend stream rows as those of dense attention do; others screen blocks ahead of
/// them.
template <int D, int kHeads8Value, bool kLarge>
struct EtaShape {
  static constexpr int kDim = D;
  static constexpr int kHeads8 = kHeads8Value;
  using Tile = device::UnitTile<D>;

  /// Each unit takes a warp long, so there are many. An SM with little shared memory has little
  /// bandwidth, too, and does with fewer rows under way.
  static constexpr int kWarps = (D == 256 ? 4 : 8) / (kLarge ? 1 : 2);
  static constexpr int kStages = D == 64 ? (kHeads8 == 1 ? (kLarge ? 2 : 4) : (kLarge ? 4 : 3))
                                         : (kLarge && D * kHeads8 < 512 ? 2 : 1);
  static constexpr int kWorkers = kWarps * device::kWarp;
  static constexpr int kStageBytes = 2 * Tile::kBytes;
  static constexpr int kRingBytes = kWarps * kStages * kStageBytes;

  /// A screening warp has two stages, a tile of records each, or one where that is too much beside
  /// the rest: of an SM 32 KB or less are under way.
  static constexpr int kScreenBytes = 2 * Tile::kBytes;  // of a tile: centroids and spreads
  static constexpr int kScreenStages = !kLarge && D * kHeads8 == 512 ? 1 : 2;
  static constexpr int kScreenWarps = screening_warps(D, kHeads8, kLarge);
  static constexpr int kScreenRing = kScreenWarps * kScreenStages * kScreenBytes;
  static constexpr int kThreads = kWorkers + kScreenWarps * device::kWarp;

  using Merge = device::DenseMerge<D, kHeads8, kWarps>;
  using Queue = UnitQueue<kWarps>;
  static constexpr int kScreen = kRingBytes;
  static constexpr int kScratch = kScreen + kScreenRing;
  static constexpr int kWeights = kScratch + 4 * kWarps * Merge::kWarpFloats;
  static constexpr int kNorms = kWeights + Merge::kWeightBytes;
  static constexpr int kQueue = kNorms + 4 * kScreenWarps * kScreenStages * kScreenedAtOnce;
  static constexpr int kStaged = kQueue + static_cast<int>(sizeof(Queue));
  static constexpr int kSharedBytes =
      kStaged + kWarps * kStages * static_cast<int>(sizeof(StagedUnit));
  static_assert(kQueue % 16 == 0 && kStaged % 16 == 0);

  /// At most; SMs of 100 KB, and those of 228, hold them. Those of 164 have room for some.
  static constexpr int kCtasPerSm = ctas_per_sm(D, kHeads8, kLarge ? kTwoCtasSharedBytes : 0);
  static constexpr int kRoom = kCtasPerSm > 1 ? kTwoCtasSharedBytes : (kLarge ? 228 : 100) * 1024;
  static_assert(kCtasPerSm * (kSharedBytes + kSystemSharedBytes) <= kRoom);
};

/// Blocks of a sequence, numbered in the order in which they are screened.
struct BlockRun {
  int first;   // block number 0
  int skip;    // blocks of others between two shares
  int shares;  // blocks of a share, log2
  int count;

  __device__ int block(int i) const { return first + i + (i >> shares) * skip; }
};

/// A team's blocks that are this CTA's own.
struct OwnBlocks {
  TeamSplit::Team team;
  int context;
  int full;        // blocks of the sequence
  BlockRun run;    // of these, the CTA's
  bool has_first;  // of the sequence
  bool has_tail;   // the rows behind its last full block

  template <bool kTeams>
  __device__ OwnBlocks(const EtaArguments& a, const device::UnitStream<kTeams>& units)
      : team(units.team),
        context(device::context_of<kTeams>(a.step, team.sequence)),
        full(context >> a.block_log2) {
    const int first_share = units.position - team.begin;
    const int stop = min(team.end, units.end);
    const int own = max((stop - units.position + units.step - 1) / units.step, 0);
    const int last = first_share + (own - 1) * units.step;
    const int shares = 8 - a.block_log2;
    const int past_end = max(((last + 1) << shares) - full, 0);
    run = {first_share << shares, (units.step - 1) << shares, shares,
           own > 0 ? max((own << shares) - past_end, 0) : 0};
    has_first = own > 0 && first_share == 0;
    has_tail = own > 0 && last == team.end - team.begin - 1;
  }
};

}  // namespace kvsim::eta
