#pragma once

#include <cstdint>

#include "core/exact_math.h"
#include "kernels/device/exchange.cuh"
#include "kernels/device/step.h"
#include "kernels/device/team_split.h"
#include "kernels/device/units.cuh"
#include "kernels/santa/rule.h"

// What the two halves of the SANTA kernels share: stream.cuh (keys to tile records and prefix sums)
// and gather.cuh (records to samples to output). Fused in one launch, or one launch each.

namespace kvsim::device {

inline constexpr int kBlockTokens = 256;  // what a CTA takes at once: one or more tiles
inline constexpr int kBlockLog2 = 8;
inline constexpr int kStashRow = kBlockTokens + 4;  // words, padded against bank conflicts

enum class SantaRule { kSystematic, kStratified, kLargestRemainder, kSystematicBudgets };

struct SantaArguments {
  DeviceStep step;
  TeamSplit split;  // in blocks
  Partials partials;
  TaggedPair* records = nullptr;  // [teams, group, tiles]: a tile's largest score and its units
  std::uint32_t* stash =
      nullptr;  // [blocks, group, kStashRow], for blocks that shared memory lacks
  SantaRule rule = SantaRule::kSystematic;
  std::uint32_t samples = 128;
  std::int32_t tile_log2 = 8;      // tiles of 32 to 256 tokens
  std::int32_t tiles = 0;          // of the longest context
  std::int32_t shared_blocks = 0;  // blocks of a CTA whose prefix sums stay in shared memory
  std::int32_t blocks_per_cta = 0;
  std::int32_t pairs = 0;       // most (head, tile) pairs of a CTA in one team
  std::int32_t parts_log2 = 0;  // warps that share a head's samples
  bool offset_per_tile = false;
  unsigned long long* stamps = nullptr;  // DBG
};
__device__ inline void stamp(const SantaArguments& a, int i) {
  if (a.stamps && threadIdx.x == 0) {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    a.stamps[blockIdx.x * 16 + i] = t;
  }
}  // DBG

template <int D, bool kLarge>
struct SantaShape {
  static constexpr int kWarps = kLarge ? 8 : 4;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kStages = D == 64 ? 8 : (D == 128 ? 4 : 2);
  static constexpr int kRingBytes = kWarps * kStages * UnitTile<D>::kBytes;
  static constexpr int kUnitsPerWarp = kBlockTokens / kUnitTokens / kWarps;
};

/// Shared memory after the ring. Gathering reuses the ring, which is empty by then.
struct SantaShared {
  std::uint32_t* done;   // [blocks_per_cta] warps that have scored a block
  std::uint32_t* stash;  // [shared_blocks, group, kStashRow] scores, then prefix sums

  __device__ SantaShared(const SantaArguments& a, char* shared, int ring_bytes)
      : done(reinterpret_cast<std::uint32_t*>(shared + ring_bytes)),
        stash(done + flag_words(a.blocks_per_cta)) {}

  /// 32-bit words before the stash.
  KVSIM_HD static int flag_words(int blocks_per_cta) { return (blocks_per_cta + 31) / 32 * 32; }
};

/// Scores or prefix sums of head 0 in the CTA's block number `index`, flat position `block`.
__device__ inline std::uint32_t* stash_of(const SantaArguments& a, const SantaShared& shared,
                                          int index, std::int64_t block) {
  const int row = a.step.group() * kStashRow;
  return index < a.shared_blocks ? shared.stash + index * row : a.stash + block * row;
}

__device__ inline TaggedPair* records_of(const SantaArguments& a, const TeamSplit::Team& team,
                                         int head) {
  const int index = team.sequence * a.step.kv_heads + team.kv_head;
  return a.records + (std::int64_t{index} * a.step.group() + head) * a.tiles;
}

}  // namespace kvsim::device
