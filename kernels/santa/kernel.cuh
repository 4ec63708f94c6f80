#pragma once

#include <cstdint>

#include "core/exact_math.h"
#include "kernels/device/exchange.cuh"
#include "kernels/device/step.h"
#include "kernels/device/team_split.h"
#include "kernels/device/units.cuh"
#include "kernels/santa/rule.h"

// The two halves of the SANTA kernels: stream (keys to tile records and prefix sums) and gather
// (records to samples to output). Fused in one launch, or one launch each.

namespace kvsim::device {

inline constexpr int kBlockTokens = 256;  // what a CTA takes at once: one or more tiles
inline constexpr int kStashRow = kBlockTokens + 4;  // words, padded against bank conflicts

enum class SantaRule { kSystematic, kStratified, kLargestRemainder, kSystematicBudgets };

struct SantaArguments {
  DeviceStep step;
  TeamSplit split;      // in blocks
  Partials partials;
  TaggedPair* records = nullptr;  // [teams, group, tiles]: a tile's largest score and its units
  std::uint32_t* stash = nullptr;  // [blocks, group, kStashRow], for blocks that shared memory lacks
  SantaRule rule = SantaRule::kSystematic;
  std::uint32_t samples = 128;
  std::int32_t tile = 256;         // 32, 64, 128 or 256 tokens
  std::int32_t tiles = 0;          // of the longest context
  std::int32_t shared_blocks = 0;  // blocks of a CTA whose prefix sums stay in shared memory
  std::int32_t blocks_per_cta = 0;
  std::int32_t pairs = 0;  // most (head, tile) pairs of a CTA in one team
  bool offset_per_tile = false;
  unsigned long long* stamps = nullptr;  //DBG
};
__device__ inline void stamp(const SantaArguments& a, int i){ if(a.stamps&&threadIdx.x==0){unsigned long long t;asm volatile("mov.u64 %0, %globaltimer;":"=l"(t));a.stamps[blockIdx.x*16+i]=t;}} //DBG


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

template <typename T, int D, int kHeads8, bool kLarge>
class SantaStream {
 public:
  using Shape = SantaShape<D, kLarge>;

  __device__ SantaStream(const SantaArguments& arguments, char* shared)
      : a_(arguments),
        shared_(arguments, shared, Shape::kRingBytes),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        ring_(shared_address(shared) +
              static_cast<std::uint32_t>(warp_ * Shape::kStages * UnitTile<D>::kBytes)),
        ahead_(units_of_worker(a_.split, static_cast<int>(blockIdx.x), 0, 1)),
        keys_(a_.step.k, a_.step.head_dim, lane_, evict_first_policy()) {}

  __device__ void run() {
    UnitStream blocks = ahead_;
    seek();
    for (int s = 0; s < Shape::kStages; ++s) copy_ahead(ring_ + s * UnitTile<D>::kBytes);
    for (int i = static_cast<int>(threadIdx.x); i < a_.blocks_per_cta; i += Shape::kThreads) {
      shared_.done[i] = 0;
    }
    launch_ = a_.partials.launches.current(gridDim.x);
    load_queries(blocks.team);
    __syncthreads();
    tile_ = ring_;
    UnitStream before = blocks;
    int index = 0;
    while (!blocks.done()) {
      score_block(blocks, index);
      if (index > 0) finish_block(before, index - 1);
      before = blocks;
      ++index;
      if (blocks.advance(a_.split)) load_queries(blocks.team);
    }
    if (index > 0) finish_block(before, index - 1);
  }

 private:
  __device__ void load_queries(const TeamSplit::Team& team) {
    const int group = a_.step.group();
    const std::int64_t head = std::int64_t{team.sequence} * a_.step.q_heads + team.kv_head * group;
    queries_.load(static_cast<const T*>(a_.step.q) + head * a_.step.head_dim, group,
                  a_.step.head_dim, lane_);
  }

  __device__ int tokens_from(const UnitStream& blocks) const {
    return a_.step.contexts[static_cast<std::size_t>(blocks.team.sequence)] -
           (blocks.position - blocks.team.begin) * kBlockTokens;
  }

  /// The first token of this warp's next unit.
  __device__ int ahead_token() const {
    return (ahead_.position - ahead_.team.begin) * kBlockTokens +
           (warp_ + ahead_unit_ * Shape::kWarps) * kUnitTokens;
  }

  __device__ void seek() {
    if (ahead_.done()) return;
    // A warp's first unit may lie past the end of a short block; its rows are not read then.
    ahead_tokens_ = tokens_from(ahead_) - warp_ * kUnitTokens;
    if (ahead_tokens_ > 0) keys_.seek(ahead_.team.sequence, ahead_.team.kv_head, ahead_token());
  }

  /// Starts the copy of this warp's next unit; an empty group when none is left.
  __device__ void copy_ahead(std::uint32_t tile) {
    if (!ahead_.done()) {
      if (ahead_tokens_ > 0) keys_.copy(tile, ahead_tokens_);
      int jump = Shape::kWarps * kUnitTokens;
      bool moved = false;
      if (++ahead_unit_ == Shape::kUnitsPerWarp) {
        ahead_unit_ = 0;
        jump += (ahead_.step - 1) * kBlockTokens;
        moved = ahead_.advance(a_.split);
      }
      if (moved) {
        seek();
      } else {
        ahead_tokens_ -= jump;
        if (ahead_tokens_ > 0) {
          keys_.advance(jump, ahead_.team.sequence, ahead_.team.kv_head, ahead_token());
        }
      }
    }
    commit_copies();
  }

  /// Scores this warp's units of a block into the stash.
  __device__ void score_block(const UnitStream& blocks, int index) {
    std::uint32_t* stash = stash_of(a_, shared_, index, blocks.position);
    int tokens = tokens_from(blocks) - warp_ * kUnitTokens;
#pragma unroll 1
    for (int u = 0; u < Shape::kUnitsPerWarp; ++u) {
      const int inside = (warp_ + u * Shape::kWarps) * kUnitTokens;
      wait_copies<Shape::kStages - 1>();
      __syncwarp();
      float s[kHeads8][4];
      score_unit<T, D, kHeads8>(s, tile_, queries_, lane_);
      __syncwarp();
      copy_ahead(tile_);
      tile_ = tile_ + UnitTile<D>::kBytes == ring_ + Shape::kStages * UnitTile<D>::kBytes
                  ? ring_
                  : tile_ + UnitTile<D>::kBytes;
      finish_scores(s, tokens);
      store_scores(s, stash + inside);
      if (a_.step.scores != nullptr) dump(s, blocks, inside, tokens);
      tokens -= Shape::kWarps * kUnitTokens;
    }
    __syncwarp();
    if (lane_ == 0) {
      __threadfence_block();
      atomicAdd(shared_.done + index, 1u);
    }
  }

  __device__ void finish_scores(float (&s)[kHeads8][4], int tokens) const {
    const bool plain = a_.step.logit_cap <= 0 && tokens >= kUnitTokens;
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (plain) {
          s[n][i] *= a_.step.scale;
        } else {
          const bool valid = lane_ / 4 + 8 * (i / 2) < tokens;
          s[n][i] = valid ? logit(s[n][i], a_.step.scale, a_.step.logit_cap) : -INFINITY;
        }
      }
    }
  }

  __device__ void store_scores(const float (&s)[kHeads8][4], std::uint32_t* stash) const {
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
      const int head = 8 * n + 2 * (lane_ % 4);
      std::uint32_t* target = stash + head * kStashRow + lane_ / 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (head + i % 2 < a_.step.group()) {
          target[i % 2 * kStashRow + 8 * (i / 2)] = __float_as_uint(s[n][i]);
        }
      }
    }
  }

  __device__ void dump(const float (&s)[kHeads8][4], const UnitStream& blocks, int inside,
                       int tokens) const {
    const std::int64_t first_head = std::int64_t{blocks.team.sequence} * a_.step.q_heads +
                                    blocks.team.kv_head * a_.step.group();
    const int first_token = (blocks.position - blocks.team.begin) * kBlockTokens + inside;
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int head = 8 * n + 2 * (lane_ % 4) + i % 2;
        const int token = lane_ / 4 + 8 * (i / 2);
        if (head >= a_.step.group() || token >= tokens) continue;
        a_.step.scores[(first_head + head) * a_.step.dump_stride + first_token + token] = s[n][i];
      }
    }
  }

  /// The heads of a block are dealt out over the warps; each turns scores into prefix sums while the
  /// others stream on.
  __device__ void finish_block(const UnitStream& blocks, int index) {
    const int group = a_.step.group();
    const int first = (warp_ + Shape::kWarps - (index * group) % Shape::kWarps) % Shape::kWarps;
    if (first >= group) return;
    const volatile std::uint32_t* done = shared_.done + index;
    while (*done != static_cast<std::uint32_t>(Shape::kWarps)) {
    }
    __threadfence_block();
    std::uint32_t* stash = stash_of(a_, shared_, index, blocks.position);
    for (int head = first; head < group; head += Shape::kWarps) {
      finish_head(stash + head * kStashRow, blocks, head);
    }
  }

  /// Each lane holds 8 tokens; a tile is 4 to 32 lanes.
  __device__ void finish_head(std::uint32_t* stash, const UnitStream& blocks, int head) {
    constexpr int kTokens = kBlockTokens / kWarp;
    const int lanes = a_.tile / kTokens;
    auto* mine = reinterpret_cast<uint4*>(stash + lane_ * kTokens);
    std::uint32_t word[kTokens];
    *reinterpret_cast<uint4*>(word) = mine[0];
    *reinterpret_cast<uint4*>(word + 4) = mine[1];
    float highest = __uint_as_float(word[0]);
#pragma unroll
    for (int i = 1; i < kTokens; ++i) highest = fmaxf(highest, __uint_as_float(word[i]));
    for (int distance = 1; distance < lanes; distance *= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, distance));
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
    for (int distance = 1; distance < lanes; distance *= 2) {
      const std::uint32_t other = __shfl_up_sync(0xffffffffu, before, distance);
      if (lane_ % lanes >= distance) before += other;
    }
    before -= sum;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) word[i] += before;
    mine[0] = *reinterpret_cast<uint4*>(word);
    mine[1] = *reinterpret_cast<uint4*>(word + 4);
    const int first = (blocks.position - blocks.team.begin) * (kBlockTokens / a_.tile);
    if (lane_ % lanes == lanes - 1 && !empty) {
      publish(records_of(a_, blocks.team, head) + first + lane_ / lanes, __float_as_uint(highest),
              sum + before, launch_);
    }
  }

  const SantaArguments& a_;
  SantaShared shared_;
  int warp_;
  int lane_;
  std::uint32_t ring_;
  std::uint32_t tile_ = 0;  // of the ring: the one that is scored next
  UnitStream ahead_;
  std::uint32_t launch_ = 0;  // this launch's number
  int ahead_unit_ = 0;    // of this warp in the block
  int ahead_tokens_ = 0;  // from the unit to the end of its sequence
  UnitReader<T, D> keys_;
  QueryFragments<T, D, kHeads8> queries_;
};

}  // namespace kvsim::device
