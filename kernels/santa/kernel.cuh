#pragma once

#include <cstdint>

#include "core/exact_math.h"
#include "kernels/device/merge.cuh"
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

/// What a tile tells the others: its largest score and its units (rule.h). Each half carries the
/// epoch of its launch, so the data is its own barrier: readers poll until the epoch is there.
struct TileRecord {
  std::uint32_t highest;
  std::uint32_t epoch_a;
  std::uint32_t units;
  std::uint32_t epoch_b;
};

struct SantaArguments {
  DeviceStep step;
  TeamSplit split;      // in blocks
  Partials partials;
  TileRecord* records = nullptr;    // [teams, group, tiles]
  std::uint32_t* epochs = nullptr;  // [teams], launches finished
  std::uint32_t* stash = nullptr;   // [blocks, group, kStashRow], for blocks that shared memory lacks
  SantaRule rule = SantaRule::kSystematic;
  std::uint32_t samples = 128;
  std::int32_t tile = 256;         // 32, 64, 128 or 256 tokens
  std::int32_t tiles = 0;          // of the longest context
  std::int32_t shared_blocks = 0;  // blocks of a CTA whose prefix sums stay in shared memory
  std::int32_t blocks_per_cta = 0;
  std::int32_t pairs = 0;  // most (head, tile) pairs of a CTA in one team
  bool offset_per_tile = false;
};

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
        stash(done + (a.blocks_per_cta + 31) / 32 * 32) {}
};

/// Scores or prefix sums of head 0 in the CTA's block number `index`, flat position `block`.
__device__ inline std::uint32_t* stash_of(const SantaArguments& a, const SantaShared& shared,
                                          int index, std::int64_t block) {
  const int row = a.step.group() * kStashRow;
  return index < a.shared_blocks ? shared.stash + index * row : a.stash + block * row;
}

__device__ inline TileRecord* records_of(const SantaArguments& a, const TeamSplit::Team& team,
                                         int head) {
  const int index = team.sequence * a.step.kv_heads + team.kv_head;
  return a.records + (std::int64_t{index} * a.step.group() + head) * a.tiles;
}

__device__ inline std::uint32_t* epoch_of(const SantaArguments& a, const TeamSplit::Team& team) {
  return a.epochs + team.sequence * a.step.kv_heads + team.kv_head;
}

__device__ inline void publish(TileRecord* record, float highest, std::uint32_t units,
                               std::uint32_t epoch) {
  const std::uint64_t tag = std::uint64_t{epoch} << 32;
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(record),
               "l"(tag | __float_as_uint(highest)), "l"(tag | units)
               : "memory");
}

__device__ inline TileRecord peek(const TileRecord* record) {
  std::uint64_t a;
  std::uint64_t b;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(record)
               : "memory");
  return {static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(a >> 32),
          static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(b >> 32)};
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
        policy_(evict_first_policy()) {}

  __device__ void run() {
    UnitStream blocks = units_of_worker(a_.split, static_cast<int>(blockIdx.x), 0, 1);
    ahead_ = blocks;
    for (int s = 0; s < Shape::kStages; ++s) copy_ahead(s);
    for (int i = static_cast<int>(threadIdx.x); i < a_.blocks_per_cta; i += Shape::kThreads) {
      shared_.done[i] = 0;
    }
    __syncthreads();
    std::int64_t team_begin = -1;
    UnitStream before = blocks;
    int index = 0;
    for (; !blocks.done(); ++index) {
      if (blocks.team.begin != team_begin) load_queries(blocks.team);
      team_begin = blocks.team.begin;
      score_block(blocks, index);
      if (index > 0) finish_block(before, index - 1);
      before = blocks;
      blocks.advance(a_.split);
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
           static_cast<int>(blocks.position - blocks.team.begin) * kBlockTokens;
  }

  /// Starts the copy of this warp's next unit; an empty group when none is left.
  __device__ void copy_ahead(int stage) {
    if (!ahead_.done()) {
      const int inside = (warp_ + ahead_unit_ * Shape::kWarps) * kUnitTokens;
      const int tokens = tokens_from(ahead_) - inside;
      if (tokens > 0) {
        const int token =
            static_cast<int>(ahead_.position - ahead_.team.begin) * kBlockTokens + inside;
        copy_unit<T, D>(ring_ + static_cast<std::uint32_t>(stage * UnitTile<D>::kBytes),
                        row_pointer<T>(a_.step.k, ahead_.team.sequence, ahead_.team.kv_head, token),
                        a_.step.k.token_stride, tokens, a_.step.head_dim, lane_, policy_);
      }
      if (++ahead_unit_ == Shape::kUnitsPerWarp) {
        ahead_unit_ = 0;
        ahead_.advance(a_.split);
      }
    }
    commit_copies();
  }

  /// Scores this warp's units of a block into the stash.
  __device__ void score_block(const UnitStream& blocks, int index) {
    std::uint32_t* stash = stash_of(a_, shared_, index, blocks.position);
    const int tokens = tokens_from(blocks);
#pragma unroll
    for (int u = 0; u < Shape::kUnitsPerWarp; ++u) {
      const int inside = (warp_ + u * Shape::kWarps) * kUnitTokens;
      wait_copies<Shape::kStages - 1>();
      __syncwarp();
      float s[kHeads8][4];
      score_unit<T, D, kHeads8>(s, ring_ + static_cast<std::uint32_t>(stage_ * UnitTile<D>::kBytes),
                                queries_, lane_);
      __syncwarp();
      copy_ahead(stage_);
      stage_ = stage_ + 1 == Shape::kStages ? 0 : stage_ + 1;
      store_scores(s, stash, blocks, inside, tokens);
    }
    __syncwarp();
    if (lane_ == 0) {
      __threadfence_block();
      atomicAdd(shared_.done + index, 1u);
    }
  }

  __device__ void store_scores(const float (&s)[kHeads8][4], std::uint32_t* stash,
                               const UnitStream& blocks, int inside, int tokens) {
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int head = 8 * n + 2 * (lane_ % 4) + i % 2;
        const int token = inside + lane_ / 4 + 8 * (i / 2);
        if (head >= a_.step.group()) continue;
        const float score =
            token < tokens ? logit(s[n][i], a_.step.scale, a_.step.logit_cap) : -INFINITY;
        stash[head * kStashRow + token] = __float_as_uint(score);
        if (a_.step.scores != nullptr && token < tokens) dump(blocks, head, token, score);
      }
    }
  }

  __device__ void dump(const UnitStream& blocks, int head, int token, float score) {
    const std::int64_t row = std::int64_t{blocks.team.sequence} * a_.step.q_heads +
                             blocks.team.kv_head * a_.step.group() + head;
    const std::int64_t first = (blocks.position - blocks.team.begin) * kBlockTokens;
    a_.step.scores[row * a_.step.dump_stride + first + token] = score;
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
    const std::uint32_t epoch = 1 + *const_cast<volatile std::uint32_t*>(epoch_of(a_, blocks.team));
    std::uint32_t* stash = stash_of(a_, shared_, index, blocks.position);
    for (int head = first; head < group; head += Shape::kWarps) {
      finish_head(stash + head * kStashRow, blocks, head, epoch);
    }
  }

  /// Each lane holds 8 tokens; a tile is 4 to 32 lanes.
  __device__ void finish_head(std::uint32_t* stash, const UnitStream& blocks, int head,
                              std::uint32_t epoch) {
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
    const std::int64_t first = (blocks.position - blocks.team.begin) * (kBlockTokens / a_.tile);
    if (lane_ % lanes == lanes - 1 && !empty) {
      publish(records_of(a_, blocks.team, head) + first + lane_ / lanes, highest, sum + before,
              epoch);
    }
  }

  const SantaArguments& a_;
  SantaShared shared_;
  int warp_;
  int lane_;
  std::uint32_t ring_;
  std::uint64_t policy_;
  UnitStream ahead_;
  int ahead_unit_ = 0;
  int stage_ = 0;
  QueryFragments<T, D, kHeads8> queries_;
};

}  // namespace kvsim::device
