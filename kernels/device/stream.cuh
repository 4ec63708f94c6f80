#pragma once

#include <cstdint>

#include "kernels/device/blocks.h"
#include "kernels/device/exchange.cuh"
#include "kernels/device/step.h"
#include "kernels/device/team_split.h"
#include "kernels/device/units.cuh"

// Kernels that stream all keys, keep what becomes of their scores on chip, and then select: what a
// launch is told (methods add to it), and where a CTA has its blocks of scores.

namespace kvsim::device {

/// What the beginning of a kernel reads lies close together: constants are fetched line by line.
struct StreamArguments {
  Partials partials;
  TaggedPair* records = nullptr;     // [teams, group, tiles]: what CTAs tell each other of a tile
  std::uint32_t* stash = nullptr;    // of the blocks that shared memory lacks
  std::int32_t group = 1;            // of the step: a division less
  std::int32_t tile_log2 = 8;        // tiles of 32 to 256 tokens
  std::int32_t tiles = 0;            // of the longest context
  std::int32_t front_bytes = 0;      // of shared memory: the ring, or what takes its place later
  std::int32_t resident_blocks = 0;  // of a CTA: their scores stay in shared memory
  std::int32_t staging_blocks = kStagingBlocks;
  std::int32_t blocks_per_cta = 0;
  TeamSplit split;  // in blocks
  DeviceStep step;
};

template <int D, int kHeads8Value, bool kLarge>
struct StreamShape {
  static constexpr int kDim = D;
  static constexpr int kHeads8 = kHeads8Value;
  static constexpr int kMostGroup = 8 * kHeads8;
  static constexpr int kWarps = stream_warps(kLarge);  // that stream keys and gather rows
  static constexpr int kFinishWarps = finish_warps(kWarps, kHeads8 > 1);
  static constexpr int kWorkers = kWarps * kWarp;
  static constexpr int kThreads = kWorkers + kFinishWarps * kWarp;
  static constexpr int kStages = stream_stages(D);
  static constexpr int kRingBytes = stream_ring_bytes(D, kLarge);
  static_assert(kRingBytes == kWarps * kStages * UnitTile<D>::kBytes);
  static constexpr int kUnitsPerWarp = kBlockTokens / kUnitTokens / kWarps;
};

/// Shared memory after the ring. Gathering reuses the ring, which is empty by then.
struct StreamShared {
  std::uint64_t* scored;    // [blocks_per_cta] barriers: a block's scores are there
  std::uint64_t* finished;  // [blocks_per_cta] barriers: what Finish made of it is there
  std::uint32_t* stash;     // of resident and staging blocks

  __device__ StreamShared(const StreamArguments& a, char* shared)
      : scored(reinterpret_cast<std::uint64_t*>(shared + a.front_bytes)),
        finished(scored + a.blocks_per_cta),
        stash(reinterpret_cast<std::uint32_t*>(shared + a.front_bytes +
                                               barrier_bytes(a.blocks_per_cta))) {}
};

__device__ inline bool is_spilled(const StreamArguments& a, int index) {
  return index >= a.resident_blocks;
}

/// Where the CTA's block number `index` has its scores, [group, kStashRow].
__device__ inline std::uint32_t* scores_of(const StreamArguments& a, const StreamShared& shared,
                                           int index) {
  const int first = a.resident_blocks;
  const int slot = is_spilled(a, index) ? first + (index - first) % a.staging_blocks : index;
  return shared.stash + slot * stash_words(a.group);
}

/// Where it has what Finish (KeyStream) made of it; `block` is its flat position.
__device__ inline std::uint32_t* finished_of(const StreamArguments& a, const StreamShared& shared,
                                             int index, int block) {
  const int words = stash_words(a.group);
  return is_spilled(a, index) ? a.stash + std::int64_t{block} * words
                              : shared.stash + index * words;
}

__device__ inline TaggedPair* records_of(const StreamArguments& a, const TeamSplit::Team& team,
                                         int head) {
  const int index = team.sequence * a.step.kv_heads + team.kv_head;
  return a.records + (std::int64_t{index} * a.group + head) * a.tiles;
}

/// A Finish (KeyStream) that makes as many words of a block's scores of each head, in their place
/// or where spilled blocks go: `Words::make(arguments, scores, target, blocks, head, lane,
/// launch)`, by one warp, for each head, which are dealt out over the finishing warps.
template <typename Shape, typename Words>
class FinishHeads {
 public:
  using Arguments = StreamArguments;

  __device__ FinishHeads(const Arguments& arguments, char*) : a_(arguments) {}

  template <typename Blocks>
  __device__ static bool takes(const Blocks&, int) {
    return true;
  }

  template <typename Blocks>
  __device__ void block(const StreamShared& shared, const Blocks& blocks, int index,
                        std::uint32_t launch) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const std::uint32_t* scores = scores_of(a_, shared, index);
    std::uint32_t* target = finished_of(a_, shared, index, blocks.position);
#pragma unroll 1
    for (int head = static_cast<int>(threadIdx.x) / kWarp - Shape::kWarps; head < a_.group;
         head += Shape::kFinishWarps) {
      Words::make(a_, scores + head * kStashRow, target + head * kStashRow, blocks, head, lane,
                  launch);
    }
  }

  __device__ static void close(const TeamSplit::Team&, std::uint32_t) {}

 private:
  const StreamArguments& a_;
};

/// This CTA's blocks of one team.
struct OwnBlocks {
  TeamSplit::Team team;
  int first;  // block of the team
  int step;
  int count;
  int tiles;      // of the team
  int own_tiles;  // of this CTA

  __device__ OwnBlocks() = default;
  template <bool kTeams>
  __device__ OwnBlocks(const StreamArguments& a, const UnitStream<kTeams>& blocks)
      : team(blocks.team), first(blocks.position - blocks.team.begin), step(blocks.step) {
    const int per_block_log2 = kBlockLog2 - a.tile_log2;
    const int stop = min(blocks.team.end, blocks.end);
    count = (stop - blocks.position + step - 1) / step;
    const int context = context_of<kTeams>(a.step, team.sequence);
    tiles = (context + (1 << a.tile_log2) - 1) >> a.tile_log2;
    const int past_end = ((first + (count - 1) * step + 1) << per_block_log2) - tiles;
    own_tiles = (count << per_block_log2) - max(past_end, 0);
  }
};

/// A team of the CTA's share.
struct TeamPart {
  OwnBlocks own;
  Sharing sharing;
  int index;  // of the first own block among all of the CTA's
};

/// The team that `blocks` is at, whose first block is the CTA's number `index`; both go on to the
/// next.
template <bool kTeams>
__device__ inline TeamPart take_part(const StreamArguments& a, UnitStream<kTeams>& blocks,
                                     int& index) {
  const OwnBlocks own(a, blocks);
  const TeamPart part{own, sharing_of<kTeams>(a.split, a.partials, own.team), index};
  index += own.count;
  blocks.position += own.count * blocks.step;
  blocks.settle(a.split);
  return part;
}

}  // namespace kvsim::device
