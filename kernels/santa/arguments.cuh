#pragma once

#include <cstdint>

#include "core/exact_math.h"
#include "kernels/device/exchange.cuh"
#include "kernels/device/step.h"
#include "kernels/device/team_split.h"
#include "kernels/device/units.cuh"
#include "kernels/santa/blocks.h"
#include "kernels/santa/rule.h"

// What the two halves of the SANTA kernels share: stream.cuh (keys to tile records and prefix sums)
// and gather.cuh (records to samples to output). Fused in one launch, or one launch each.

namespace kvsim::device {

enum class SantaRule { kSystematic, kStratified, kIid, kLargestRemainder, kSystematicBudgets };

/// What the beginning of a kernel reads lies close together: constants are fetched line by line.
struct SantaArguments {
  Partials partials;
  TaggedPair* records = nullptr;  // [teams, group, tiles]: a tile's largest score and its units
  std::uint32_t* stash =
      nullptr;  // [blocks, group, kStashRow], for blocks that shared memory lacks
  SantaRule rule = SantaRule::kSystematic;
  std::uint32_t samples = 128;
  std::int32_t group = 1;            // of the step: a division less
  std::int32_t tile_log2 = 8;        // tiles of 32 to 256 tokens
  std::int32_t tiles = 0;            // of the longest context
  std::int32_t front_bytes = 0;      // of shared memory: the ring, or what takes its place later
  std::int32_t resident_blocks = 0;  // of a CTA: their prefix sums stay in shared memory
  std::int32_t blocks_per_cta = 0;
  std::int32_t pairs = 0;       // most (head, tile) pairs of a CTA in one team
  std::int32_t parts_log2 = 0;  // warps that share a head's rows (top-k)
  std::int32_t slots_log2 = 0;  // warps that may share a head's samples
  bool offset_per_tile = false;
  TeamSplit split;  // in blocks
  DeviceStep step;
};

template <int D, int kHeads8, bool kLarge>
struct SantaShape {
  static constexpr int kWarps = stream_warps(kLarge);      // that stream keys and gather rows
  static constexpr int kScanWarps = kWarps / 2 * kHeads8;  // that make prefix sums of scores
  static constexpr int kWorkers = kWarps * kWarp;
  static constexpr int kThreads = kWorkers + kScanWarps * kWarp;
  static constexpr int kStages = stream_stages(D);
  static constexpr int kRingBytes = stream_ring_bytes(D, kLarge);
  static_assert(kRingBytes == kWarps * kStages * UnitTile<D>::kBytes);
  static constexpr int kUnitsPerWarp = kBlockTokens / kUnitTokens / kWarps;
};

/// Shared memory after the ring. Gathering reuses the ring, which is empty by then.
struct SantaShared {
  std::uint64_t* scored;    // [blocks_per_cta] barriers: a block's scores are there
  std::uint64_t* finished;  // [blocks_per_cta] barriers: a block's prefix sums are there
  std::uint32_t* stash;     // [resident and staging blocks, group, kStashRow]

  __device__ SantaShared(const SantaArguments& a, char* shared)
      : scored(reinterpret_cast<std::uint64_t*>(shared + a.front_bytes)),
        finished(scored + a.blocks_per_cta),
        stash(reinterpret_cast<std::uint32_t*>(shared + a.front_bytes +
                                               barrier_bytes(a.blocks_per_cta))) {}
};

__device__ inline bool is_spilled(const SantaArguments& a, int index) {
  return index >= a.resident_blocks;
}

/// Where the CTA's block number `index` has its scores, [group, kStashRow].
__device__ inline std::uint32_t* scores_of(const SantaArguments& a, const SantaShared& shared,
                                           int index) {
  const int first = a.resident_blocks;
  const int slot = is_spilled(a, index) ? first + (index - first) % kStagingBlocks : index;
  return shared.stash + slot * a.group * kStashRow;
}

/// Where it has its prefix sums; `block` is its flat position.
__device__ inline std::uint32_t* prefix_of(const SantaArguments& a, const SantaShared& shared,
                                           int index, int block) {
  const int row = a.group * kStashRow;
  return is_spilled(a, index) ? a.stash + std::int64_t{block} * row : shared.stash + index * row;
}

__device__ inline TaggedPair* records_of(const SantaArguments& a, const TeamSplit::Team& team,
                                         int head) {
  const int index = team.sequence * a.step.kv_heads + team.kv_head;
  return a.records + (std::int64_t{index} * a.group + head) * a.tiles;
}

}  // namespace kvsim::device
