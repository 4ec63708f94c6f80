#pragma once

#include <cstdint>

#include "core/exact_math.h"
#include "kernels/santa/arguments.cuh"

namespace kvsim::device {

inline constexpr int kLaneTokensLog2 = 3;  // of a block; a tile is 4 to 32 lanes
static_assert(kBlockTokens / kWarp == 1 << kLaneTokensLog2);

/// A lane's part of its tile.
struct TilePart {
  float highest;          // score of the whole tile
  std::uint32_t through;  // units up to the lane's last token
};

/// What becomes of a block's scores of one head, by one warp: prefix sums of integer masses, and a
/// record of each tile for the CTAs of the team.
struct PrefixSums {
  template <bool kTeams>
  __device__ static void make(const StreamArguments& a, const std::uint32_t* scores,
                              std::uint32_t* prefix, const UnitStream<kTeams>& blocks, int head,
                              int lane, std::uint32_t launch) {
    const TilePart part = sum_up(a.tile_log2, scores, prefix, lane);
    const int lanes = 1 << (a.tile_log2 - kLaneTokensLog2);
    const int tile = ((blocks.position - blocks.team.begin) << (kBlockLog2 - a.tile_log2)) +
                     (lane >> (a.tile_log2 - kLaneTokensLog2));
    const bool exists = tile << a.tile_log2 < context_of<kTeams>(a.step, blocks.team.sequence);
    if ((lane & (lanes - 1)) == lanes - 1 && exists) {  // others wait for it, be it empty
      publish(records_of(a, blocks.team, head) + tile, __float_as_uint(part.highest), part.through,
              launch);
    }
  }

  /// Prefix sums, which restart in every tile, of a block's masses; `prefix` may be `scores`.
  __device__ static TilePart sum_up(int tile_log2, const std::uint32_t* scores,
                                    std::uint32_t* prefix, int lane) {
    constexpr int kTokens = 1 << kLaneTokensLog2;
    const int lanes = 1 << (tile_log2 - kLaneTokensLog2);
    const int in_tile = lane & (lanes - 1);
    const auto* source = reinterpret_cast<const uint4*>(scores + lane * kTokens);
    alignas(16) std::uint32_t word[kTokens];
    *reinterpret_cast<uint4*>(word) = source[0];
    *reinterpret_cast<uint4*>(word + 4) = source[1];
    float highest = __uint_as_float(word[0]);
#pragma unroll
    for (int i = 1; i < kTokens; ++i) highest = fmaxf(highest, __uint_as_float(word[i]));
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      if (distance < lanes) {
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, distance));
      }
    }
    const bool empty = highest == -INFINITY;
    std::uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const float exponent = empty ? -INFINITY : __uint_as_float(word[i]) - highest;
      sum += token_mass(exp_nonpositive(exponent));
      word[i] = sum;
    }
    std::uint32_t before = sum;
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {  // in_tile < lanes
      const std::uint32_t other = __shfl_up_sync(0xffffffffu, before, distance);
      if (in_tile >= distance) before += other;
    }
    before -= sum;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) word[i] += before;
    auto* target = reinterpret_cast<uint4*>(prefix + lane * kTokens);
    target[0] = *reinterpret_cast<uint4*>(word);
    target[1] = *reinterpret_cast<uint4*>(word + 4);
    return {highest, sum + before};
  }
};

}  // namespace kvsim::device
