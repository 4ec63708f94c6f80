#pragma once

#include <cstdint>

#include "core/exact_math.h"
#include "kernels/santa/arguments.cuh"

// From the tile records of a team to the samples of each of this CTA's tiles. Every CTA of the team
// computes the whole head's distribution, in integers, so all agree without another exchange.

namespace kvsim::device {

/// A tile of this CTA under one head: where its mass begins in the head's distribution, and which
/// samples it draws.
struct TileDraw {
  std::uint64_t start;
  std::uint64_t mass;
  TileScale scale;
  std::uint32_t units;   // of the whole tile
  std::uint32_t first;   // index of the tile's first sample in the head
  std::uint32_t end;     // of the first sample that is not the tile's
  std::uint32_t before;  // samples of this CTA in earlier (head, tile) pairs
  std::int32_t head;
  std::int32_t tile;
  std::int32_t own;  // number of the tile among the CTA's
};

struct HeadTotal {
  Strata strata;
  float scale;           // of the sum of drawn rows
  std::uint32_t offset;  // 24 random bits for thresholds, and for budgets
  std::uint32_t budget_offset;
  std::uint32_t leftover;  // samples that remainders are dealt (largest remainder)
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
  __device__ OwnBlocks(const SantaArguments& a, const UnitStream& blocks)
      : team(blocks.team), first(blocks.position - blocks.team.begin), step(blocks.step) {
    const int per_block_log2 = kBlockLog2 - a.tile_log2;
    const int stop = min(blocks.team.end, blocks.end);
    count = (stop - blocks.position + step - 1) / step;
    const int context = a.step.contexts[static_cast<std::size_t>(team.sequence)];
    tiles = (context + (1 << a.tile_log2) - 1) >> a.tile_log2;
    const int past_end = ((first + (count - 1) * step + 1) << per_block_log2) - tiles;
    own_tiles = (count << per_block_log2) - max(past_end, 0);
  }
};

template <int kWarps>
class TileDraws {
 public:
  __device__ TileDraws(const SantaArguments& arguments, const OwnBlocks& own, HeadTotal* heads,
                       TileDraw* draws, std::uint64_t* remainders, std::uint32_t* sorted,
                       std::uint32_t launch)
      : a_(arguments),
        own_(own),
        heads_(heads),
        draws_(draws),
        remainders_(remainders),
        sorted_(sorted),
        launch_(launch),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        inverse_step_(1.0f / static_cast<float>(own.step)) {}

  /// By all threads of the CTA. Afterwards `draws` holds [group, own_tiles], heads in order.
  __device__ void run() {
    draw_offsets();
    if (a_.rule == SantaRule::kIid) sort_offsets();
#pragma unroll 1
    for (int head = warp_; head < a_.group; head += kWarps) read_head(head);
    __syncthreads();
    count_samples();
    __syncthreads();
    if (warp_ == 0) add_up_counts();
    __syncthreads();
  }

  __device__ std::uint32_t random_of(int head, Purpose purpose, std::uint32_t index) const {
    return random24(a_.step.random, own_.team.sequence, own_.team.kv_head * a_.group + head,
                    purpose, index);
  }

  /// The mass at which a head's sample m is drawn.
  __device__ std::uint64_t threshold_of(int head, std::uint32_t m) const {
    const std::uint32_t stratum = a_.rule == SantaRule::kIid ? 0 : m;
    return heads_[head].strata.threshold(stratum, offset_of(head, m));
  }

 private:
  /// The offset of a head's sample m, or of its tile budgets.
  __device__ std::uint32_t offset_of(int head, std::uint32_t m) const {
    if (a_.rule == SantaRule::kIid) return sorted_[head * a_.sorted + static_cast<int>(m)];
    if (a_.rule == SantaRule::kStratified) return random_of(head, Purpose::kSampleOffset, m);
    const bool budgets = a_.rule == SantaRule::kSystematicBudgets;
    return budgets ? heads_[head].budget_offset : heads_[head].offset;
  }

  /// A lane's consecutive tiles of one head.
  struct LaneTiles {
    float highest[kTilesPerLane];
    std::uint32_t units[kTilesPerLane];
  };

  /// By the last warp, while the others read tiles.
  __device__ void draw_offsets() {
    if (warp_ != kWarps - 1 || lane_ >= a_.group) return;
    heads_[lane_].offset = random_of(lane_, Purpose::kSampleOffset, 0);
    if (a_.rule == SantaRule::kSystematicBudgets) {
      heads_[lane_].budget_offset = random_of(lane_, Purpose::kBudgetOffset, 0);
    }
  }

  /// Independent samples: the random numbers of every head in ascending order, by a bitonic
  /// network.
  __device__ void sort_offsets() {
    constexpr int kThreads = kWarps * kWarp;
    const int thread = static_cast<int>(threadIdx.x);
    const auto samples = static_cast<int>(a_.samples);
#pragma unroll 1
    for (int head = 0; head < a_.group; ++head) {
#pragma unroll 1
      for (int m = thread; m < a_.sorted; m += kThreads) {
        sorted_[head * a_.sorted + m] =
            m < samples ? random_of(head, Purpose::kSampleOffset, static_cast<std::uint32_t>(m))
                        : ~0u;
      }
    }
#pragma unroll 1
    for (int run = 2; run <= a_.sorted; run *= 2) {
#pragma unroll 1
      for (int distance = run / 2; distance > 0; distance /= 2) {
        __syncthreads();
#pragma unroll 1
        for (int i = thread; i < a_.group * a_.sorted / 2; i += kThreads) {
          const int low = 2 * i - (i & (distance - 1));
          const bool ascending = (low & (a_.sorted - 1) & run) == 0;
          const std::uint32_t a = sorted_[low];
          const std::uint32_t b = sorted_[low + distance];
          sorted_[low] = ascending ? min(a, b) : max(a, b);
          sorted_[low + distance] = ascending ? max(a, b) : min(a, b);
        }
      }
    }
    __syncthreads();
  }

  /// Independent samples: how many thresholds lie below `mass`.
  __device__ std::uint32_t samples_below(int head, std::uint64_t mass) const {
    std::uint32_t low = 0;
    std::uint32_t high = a_.samples;
#pragma unroll 1
    while (low < high) {
      const std::uint32_t middle = (low + high) / 2;
      const bool below = threshold_of(head, middle) < mass;
      low = below ? middle + 1 : low;
      high = below ? high : middle;
    }
    return low;
  }

  /// Waits until the tiles' records of this launch are there; tiles past the end have no mass.
  __device__ LaneTiles read_tiles(int head, int first) const {
    const TaggedPair* records = records_of(a_, own_.team, head);
    TaggedPair record[kTilesPerLane];
    bool complete = false;
    while (!complete) {
      complete = true;
#pragma unroll
      for (int i = 0; i < kTilesPerLane; ++i) {
        record[i] = peek(records + min(first + i, own_.tiles - 1));
      }
#pragma unroll
      for (int i = 0; i < kTilesPerLane; ++i) {
        complete = complete && record[i].a.launch == launch_ && record[i].b.launch == launch_;
      }
    }
    LaneTiles tiles;
#pragma unroll
    for (int i = 0; i < kTilesPerLane; ++i) {
      tiles.highest[i] = __uint_as_float(record[i].a.word);
      tiles.units[i] = first + i < own_.tiles ? record[i].b.word : 0;
    }
    return tiles;
  }

  /// The head's total, and the mass before each tile of this CTA.
  __device__ void read_head(int head) {
    LaneTiles tiles;
    float highest = -INFINITY;
#pragma unroll 1
    for (int base = 0; base < own_.tiles; base += kTilesAtOnce) {
      tiles = read_tiles(head, base + lane_ * kTilesPerLane);
#pragma unroll
      for (int i = 0; i < kTilesPerLane; ++i) highest = fmaxf(highest, tiles.highest[i]);
    }
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, distance));
    }
    std::uint64_t total = 0;
#pragma unroll 1
    for (int base = 0; base < own_.tiles; base += kTilesAtOnce) {
      const int first = base + lane_ * kTilesPerLane;
      if (own_.tiles > kTilesAtOnce) tiles = read_tiles(head, first);
      total = place_tiles(head, first, tiles, highest, total);
    }
    if (a_.rule == SantaRule::kLargestRemainder) deal_whole_samples(head, total);
    if (lane_ == 0) {
      const bool whole = a_.rule == SantaRule::kIid;
      heads_[head].strata = Strata::of(total, whole ? 1 : a_.samples);
      heads_[head].scale = share_of_rows(head, highest, total) / static_cast<float>(a_.samples);
    }
  }

  /// The softmax's share that belongs to rows, not to the head's sink.
  __device__ float share_of_rows(int head, float highest, std::uint64_t total) const {
    if (a_.step.sink_logits == nullptr) return 1;
    const double sink = a_.step.sink_logits[own_.team.kv_head * a_.group + head];
    const double rows = static_cast<double>(total) * 0x1p-40;
    return static_cast<float>(rows / (rows + exp(sink - highest)));
  }

  /// Returns the mass up to the end of the warp's tiles.
  __device__ std::uint64_t place_tiles(int head, int first, const LaneTiles& tiles, float highest,
                                       std::uint64_t start) {
    TileScale scale[kTilesPerLane];
    std::uint64_t mass[kTilesPerLane];
    std::uint64_t sum = 0;
#pragma unroll
    for (int i = 0; i < kTilesPerLane; ++i) {
      scale[i] = tile_scale(exp_nonpositive(tiles.highest[i] - highest));
      mass[i] = head_mass(tiles.units[i], scale[i]);
      sum += mass[i];
    }
    std::uint64_t through = sum;
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const std::uint64_t other = __shfl_up_sync(0xffffffffu, through, distance);
      if (lane_ >= distance) through += other;
    }
    std::uint64_t before = start + through - sum;
#pragma unroll
    for (int i = 0; i < kTilesPerLane; ++i) {
      const int own = own_tile(first + i);
      if (own >= 0) {
        draws_[head * own_.own_tiles + own] = {before, mass[i], scale[i], tiles.units[i], 0,
                                               0,      0,       head,     first + i,      own};
      }
      if (a_.rule == SantaRule::kLargestRemainder && first + i < own_.tiles) {
        remainders_[head * a_.tiles + first + i] = mass[i];
      }
      before += mass[i];
    }
    return start + __shfl_sync(0xffffffffu, through, kWarp - 1);
  }

  /// This CTA's number for a tile, -1 if the tile is another's.
  __device__ int own_tile(int tile) const {
    const int per_block_log2 = kBlockLog2 - a_.tile_log2;
    const int distance = (tile >> per_block_log2) - own_.first;
    // Exact below 2^22 blocks; an integer division would take ten times as long.
    const auto block = static_cast<int>((static_cast<float>(distance) + 0.5f) * inverse_step_);
    const bool own =
        tile < own_.tiles && distance >= 0 && block * own_.step == distance && block < own_.count;
    return own ? (block << per_block_log2) + (tile & ((1 << per_block_log2) - 1)) : -1;
  }

  /// Largest remainder: every tile's whole samples; remainders take the place of masses.
  __device__ void deal_whole_samples(int head, std::uint64_t total) {
    __syncwarp();
    std::uint64_t* remainders = remainders_ + head * a_.tiles;
    std::uint32_t dealt = 0;
    for (int tile = lane_; tile < own_.tiles; tile += kWarp) {
      const Share share = budget_share(remainders[tile], a_.samples, total);
      remainders[tile] = share.remainder;
      dealt += share.whole;
      const int own = own_tile(tile);
      if (own >= 0) draws_[head * own_.own_tiles + own].end = share.whole;
    }
    dealt = __reduce_add_sync(0xffffffffu, dealt);
    if (lane_ == 0) heads_[head].leftover = a_.samples - dealt;
  }

  /// How many samples each of the CTA's tiles draws.
  __device__ void count_samples() {
    const int pairs = a_.group * own_.own_tiles;
    if (a_.rule == SantaRule::kLargestRemainder) {
#pragma unroll 1
      for (int p = warp_; p < pairs; p += kWarps) deal_remainder(draws_[p]);
      return;
    }
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < 2 * pairs; i += kWarps * kWarp) {
      TileDraw& draw = draws_[i / 2];
      const std::uint64_t mass = draw.start + (i % 2 == 0 ? 0 : draw.mass);
      const std::uint32_t below = a_.rule == SantaRule::kIid
                                      ? samples_below(draw.head, mass)
                                      : heads_[draw.head].strata.below(mass, [&](std::uint32_t m) {
                                          return offset_of(draw.head, m);
                                        });
      (i % 2 == 0 ? draw.first : draw.end) = below;
    }
  }

  /// A warp ranks the remainder of one tile among all of the head; ties go to lower tiles.
  __device__ void deal_remainder(TileDraw& draw) {
    const std::uint64_t* remainders = remainders_ + draw.head * a_.tiles;
    const std::uint64_t mine = remainders[draw.tile];
    std::uint32_t ahead = 0;
#pragma unroll 2
    for (int other = lane_; other < own_.tiles; other += kWarp) {
      const std::uint64_t theirs = remainders[other];
      ahead += theirs > mine || (theirs == mine && other < draw.tile) ? 1u : 0u;
    }
    ahead = __reduce_add_sync(0xffffffffu, ahead);
    if (lane_ == 0 && ahead < heads_[draw.head].leftover) ++draw.end;
  }

  /// Warp 0: exclusive sums of the counts.
  __device__ void add_up_counts() {
    const int pairs = a_.group * own_.own_tiles;
    std::uint32_t total = 0;
#pragma unroll 1
    for (int base = 0; base < pairs; base += kWarp) {
      const int p = base + lane_;
      const std::uint32_t count = p < pairs ? draws_[p].end - draws_[p].first : 0;
      std::uint32_t through = count;
#pragma unroll
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const std::uint32_t other = __shfl_up_sync(0xffffffffu, through, distance);
        if (lane_ >= distance) through += other;
      }
      if (p < pairs) draws_[p].before = total + through - count;
      total += __shfl_sync(0xffffffffu, through, kWarp - 1);
    }
  }

  const SantaArguments& a_;
  const OwnBlocks& own_;
  HeadTotal* heads_;           // [group]
  TileDraw* draws_;            // [group, own tiles]
  std::uint64_t* remainders_;  // [group, tiles]
  std::uint32_t* sorted_;      // [group, a.sorted]
  std::uint32_t launch_;
  int warp_;
  int lane_;
  float inverse_step_;
};

}  // namespace kvsim::device
