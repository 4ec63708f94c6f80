#pragma once

#include <cstdint>

#include "core/exact_math.h"
#include "kernels/santa/arguments.cuh"
#include "kernels/santa/sizes.h"

// From the tile records of a team to the samples of each of this CTA's tiles. Every CTA of the team
// computes the whole head's distribution, in integers, so all agree without another exchange.

namespace kvsim::device {

/// A tile of this CTA under one head: where its mass begins in the head's distribution, and which
/// samples it draws.
struct alignas(16) TileDraw {
  std::uint64_t start;
  std::uint64_t mass;
  TileScale scale;
  std::uint32_t units;  // of the whole tile
  // Indices in the head of the first sample that may be the tile's, and of the first that is not
  // (largest remainder: 0 and the tile's own count).
  std::uint32_t first;
  std::uint32_t end;
  std::uint32_t before;  // sum of end - first over this CTA's earlier tiles
  std::int32_t tile;
};

struct HeadTotal {
  Strata strata;
  float scale;                  // of the sum of drawn rows
  std::uint32_t offset;         // 24 random bits, for all samples that have none of their own
  std::uint32_t budget_offset;  // the same for tile budgets
  std::uint32_t count;          // samples that may be of this CTA's tiles
};

/// Remainders of a head's tiles, up to a lane's last.
KVSIM_HD constexpr int remainder_row(int tiles) {
  return (tiles + kTilesPerLane - 1) / kTilesPerLane * kTilesPerLane;
}

static_assert(kTilesPerLane == 4);
/// Of a lane's consecutive tiles, in two accesses; so store_remainders.
__device__ inline void load_remainders(std::uint64_t (&value)[kTilesPerLane],
                                       const std::uint64_t* source) {
  const auto* pairs = reinterpret_cast<const ulonglong2*>(source);
  const ulonglong2 low = pairs[0];
  const ulonglong2 high = pairs[1];
  value[0] = low.x, value[1] = low.y, value[2] = high.x, value[3] = high.y;
}
__device__ inline void store_remainders(std::uint64_t* target,
                                        const std::uint64_t (&value)[kTilesPerLane]) {
  auto* pairs = reinterpret_cast<ulonglong2*>(target);
  pairs[0] = {value[0], value[1]};
  pairs[1] = {value[2], value[3]};
}

/// Where the samples of a head's own tiles begin, for several comparisons at once: the tiles'
/// `before`, then numbers larger than any sample's.
inline constexpr int kTilesLinedUp = 8;
inline constexpr std::uint32_t kPastLine = 1u << 30;
KVSIM_HD constexpr int line_of(int tiles) {
  return (tiles + kTilesLinedUp - 1) / kTilesLinedUp * kTilesLinedUp;
}

/// By one warp per head.
class TileDraws {
 public:
  __device__ TileDraws(const SantaArguments& arguments, const OwnBlocks& own, HeadTotal* heads,
                       TileDraw* draws, std::uint32_t* line, std::uint64_t* remainders,
                       std::uint32_t launch, int lane)
      : a_(arguments),
        own_(own),
        heads_(heads),
        draws_(draws),
        line_(line),
        remainders_(remainders),
        launch_(launch),
        lane_(lane),
        inverse_step_(1.0f / static_cast<float>(own.step)) {}

  /// Afterwards the head's part of `draws` and `heads` is there.
  __device__ void run(int head) const {
    draw_offsets(head);
    const std::uint64_t total = place_head(head);
    __syncwarp();
    if (ranks_remainders(a_.rule)) {
      deal_remainders(head, total, deal_whole_samples(head, total));
    } else if (is_budgeted(a_.rule)) {
      count_samples(head);
    }
    __syncwarp();
    line_up_samples(head);
  }

  __device__ std::uint32_t random_of(int head, Purpose purpose, std::uint32_t index) const {
    const int drawing = own_.team.kv_head * a_.group + (a_.shared_offsets ? 0 : head);
    return random24(a_.step.random, own_.team.sequence, drawing, purpose, index);
  }

  /// The mass at which a head's sample m is drawn.
  __device__ std::uint64_t threshold_of(int head, std::uint32_t m) const {
    const std::uint32_t stratum = is_independent(a_.rule) ? 0 : m;
    return heads_[head].strata.threshold(stratum, offset_of(head, m));
  }

 private:
  /// A lane's consecutive tiles of one head.
  struct LaneTiles {
    float highest[kTilesPerLane];
    std::uint32_t units[kTilesPerLane];
  };

  /// Which of a lane's consecutive tiles are this CTA's: its number for them, else -1.
  struct OwnTiles {
    int index[kTilesPerLane];
  };

  /// The offset of a head's sample m.
  __device__ std::uint32_t offset_of(int head, std::uint32_t m) const {
    return has_sample_offsets(a_.rule) ? random_of(head, Purpose::kSampleOffset, m)
                                       : heads_[head].offset;
  }

  /// While the tiles' records are on their way.
  __device__ void draw_offsets(int head) const {
    if (lane_ > 1) return;
    const std::uint32_t offset =
        random_of(head, lane_ == 0 ? Purpose::kSampleOffset : Purpose::kBudgetOffset, 0);
    (lane_ == 0 ? heads_[head].offset : heads_[head].budget_offset) = offset;
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
        complete = complete && is_of(record[i], launch_);
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

  /// The mass before each tile of this CTA; returns the head's total.
  __device__ std::uint64_t place_head(int head) const {
    LaneTiles tiles;
    OwnTiles own = own_tiles_from(lane_ * kTilesPerLane);  // before the wait for records
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
      if (own_.tiles > kTilesAtOnce) {
        tiles = read_tiles(head, first);
        own = own_tiles_from(first);
      }
      total = place_tiles(head, first, tiles, own, highest, total);
    }
    if (lane_ == 0) {
      heads_[head].strata = Strata::of(total, is_independent(a_.rule) ? 1 : a_.samples);
      heads_[head].scale = share_of_rows(head, highest, total) * a_.per_sample;
    }
    return total;
  }

  /// The softmax's share that belongs to rows, not to the head's sink.
  __device__ float share_of_rows(int head, float highest, std::uint64_t total) const {
    if (a_.step.sink_logits == nullptr) return 1;
    const double sink = a_.step.sink_logits[own_.team.kv_head * a_.group + head];
    const double rows = static_cast<double>(total) * 0x1p-40;
    return static_cast<float>(rows / (rows + exp(sink - highest)));
  }

  /// Returns the mass up to the end of the warp's tiles.
  __device__ std::uint64_t place_tiles(int head, int first, const LaneTiles& tiles,
                                       const OwnTiles& own, float highest,
                                       std::uint64_t start) const {
    TileScale scale[kTilesPerLane];
    std::uint64_t mass[kTilesPerLane];
    std::uint64_t sum = 0;
#pragma unroll
    for (int i = 0; i < kTilesPerLane; ++i) {
      scale[i] = tile_scale(exp_nonpositive(tiles.highest[i] - highest));
      mass[i] = head_mass(tiles.units[i], scale[i]);
      sum += mass[i];
    }
    const std::uint64_t earlier = lanes_before(sum, lane_);
    std::uint64_t before = start + earlier;
#pragma unroll
    for (int i = 0; i < kTilesPerLane; ++i) {
      if (own.index[i] >= 0) {
        draws_[head * own_.own_tiles + own.index[i]] = {before, mass[i], scale[i], tiles.units[i],
                                                        0,      0,       0,        first + i};
      }
      before += mass[i];
    }
    if (ranks_remainders(a_.rule) && first < own_.tiles) {
      // Of tiles past the end: 0.
      store_remainders(remainders_ + head * remainder_row(a_.tiles) + first, mass);
    }
    return start + __shfl_sync(0xffffffffu, earlier + sum, kWarp - 1);
  }

  __device__ OwnTiles own_tiles_from(int first) const {
    OwnTiles own;
#pragma unroll
    for (int i = 0; i < kTilesPerLane; ++i) {
      own.index[i] = own_tile(first + i);
      compute_now(own.index[i]);  // not where it is used
    }
    return own;
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

  /// Which samples lie in each of the CTA's tiles: those between two masses.
  __device__ void count_samples(int head) const {
    const std::uint32_t offset = heads_[head].budget_offset;
#pragma unroll 1
    for (int i = lane_; i < 2 * own_.own_tiles; i += kWarp) {
      TileDraw& draw = draws_[head * own_.own_tiles + i / 2];
      const std::uint64_t mass = draw.start + (i % 2 == 0 ? 0 : draw.mass);
      (i % 2 == 0 ? draw.first : draw.end) =
          heads_[head].strata.below(mass, [&](std::uint32_t) { return offset; });
    }
  }

  /// Largest remainder: remainders take the place of masses. Returns how many samples are left for
  /// them when every tile has its whole samples.
  __device__ std::uint32_t deal_whole_samples(int head, std::uint64_t total) const {
    std::uint64_t* remainders = remainders_ + head * remainder_row(a_.tiles);
    std::uint32_t dealt = 0;
#pragma unroll 1
    for (int first = lane_ * kTilesPerLane; first < own_.tiles; first += kTilesAtOnce) {
      std::uint64_t value[kTilesPerLane];  // a mass, then its remainder
      load_remainders(value, remainders + first);
#pragma unroll
      for (int i = 0; i < kTilesPerLane; ++i) {
        const Share share = budget_share(value[i], a_.samples, total);
        dealt += share.whole;
        value[i] = share.remainder;
      }
      store_remainders(remainders + first, value);
    }
    __syncwarp();
    return a_.samples - __reduce_add_sync(0xffffffffu, dealt);
  }

  /// Ranks the remainder of each own tile among all of the head; ties go to lower tiles. Lanes that
  /// share an own tile compare it with others of their own.
  __device__ void deal_remainders(int head, std::uint64_t total, std::uint32_t leftover) const {
    const std::uint64_t* remainders = remainders_ + head * remainder_row(a_.tiles);
    const int width_log2 = min(32 - __clz(own_.own_tiles - 1), 5);
    const int first = lane_ >> width_log2;
#pragma unroll 1
    for (int base = 0; base < own_.own_tiles; base += kWarp) {
      const int own = min(base + (lane_ & ((1 << width_log2) - 1)), own_.own_tiles - 1);
      TileDraw& draw = draws_[head * own_.own_tiles + own];
      const int tile = draw.tile;
      const Share mine = budget_share(draw.mass, a_.samples, total);
      int ahead = 0;
#pragma unroll 1
      for (int other = first * kTilesPerLane; other < own_.tiles;
           other += kTilesAtOnce >> width_log2) {
        std::uint64_t theirs[kTilesPerLane];
        load_remainders(theirs, remainders + other);
#pragma unroll
        for (int i = 0; i < kTilesPerLane; ++i) {
          ahead += leads(theirs[i], mine.remainder, other + i - tile);
        }
      }
#pragma unroll 1
      for (int distance = kWarp / 2; distance >> width_log2 != 0; distance /= 2) {
        ahead += __shfl_xor_sync(0xffffffffu, ahead, distance);
      }
      const bool writes = first == 0 && base + lane_ < own_.own_tiles;
      if (writes) {
        draw.end = mine.whole + (static_cast<std::uint32_t>(ahead) < leftover ? 1 : 0);
      }
    }
  }

  /// 1 if the remainder `theirs` of the tile that is `further` behind goes before `mine`: larger,
  /// or equal and of a lower tile. Without predicates sums of many are not one chain.
  __device__ static int leads(std::uint64_t theirs, std::uint64_t mine, int further) {
    const std::int64_t rest = static_cast<std::int64_t>(mine - theirs) + (further >> 31);
    return static_cast<int>(static_cast<std::uint64_t>(rest) >> 63);
  }

  struct Samples {
    std::uint32_t first;
    std::uint32_t end;
  };

  /// Which samples may lie in a tile. Threshold m lies m + u strata up, u its offset: one for all,
  /// or any from 0 to 1. Who looks a sample up tests exactly.
  __device__ Samples bound_samples(const HeadTotal& head, const TileDraw& draw) const {
    if (draw.mass == 0) return {0, 0};
    const bool one_offset = !has_sample_offsets(a_.rule);
    const float slack = static_cast<float>(a_.samples) * 0x1p-20f;  // of rounding
    const float least = one_offset ? static_cast<float>(head.offset) * 0x1p-24f : 0;
    const float most = one_offset ? least : 1;
    const float begin = static_cast<float>(draw.start) * head.strata.per_mass - most - slack;
    const float end =
        static_cast<float>(draw.start + draw.mass) * head.strata.per_mass - least + slack;
    return {static_cast<std::uint32_t>(max(__float2int_ru(begin), 0)),
            min(static_cast<std::uint32_t>(max(__float2int_ru(end), 0)), a_.samples)};
  }

  /// The samples of own tiles in a row. Independent samples are in no order: all may be in own
  /// tiles.
  __device__ void line_up_samples(int head) const {
    std::uint32_t total = is_independent(a_.rule) ? a_.samples : 0;
#pragma unroll 1
    for (int base = 0; base < own_.own_tiles; base += kWarp) {
      const int lanes = min(own_.own_tiles - base, kWarp);
      TileDraw& draw = draws_[head * own_.own_tiles + base + min(lane_, lanes - 1)];
      Samples samples{0, 0};
      if (lane_ < lanes) {
        samples =
            is_bounded(a_.rule) ? bound_samples(heads_[head], draw) : Samples{draw.first, draw.end};
      }
      const std::uint32_t count = samples.end - samples.first;
      const std::uint32_t before = total + lanes_before(count, lane_, lanes);
      if (lane_ < lanes) {
        draw.first = samples.first;
        draw.end = samples.end;
        draw.before = before;
      }
      if (base + lane_ < line_of(own_.own_tiles)) {
        line_[head * line_of(own_.own_tiles) + base + lane_] = lane_ < lanes ? before : kPastLine;
      }
      total = __shfl_sync(0xffffffffu, before + count, lanes - 1);
    }
    if (lane_ == 0) heads_[head].count = total;
  }

  const SantaArguments& a_;
  const OwnBlocks& own_;
  HeadTotal* heads_;           // [group]
  TileDraw* draws_;            // [group, own tiles]
  std::uint32_t* line_;        // [group, line_of(own tiles)]
  std::uint64_t* remainders_;  // [group, remainder_row(tiles)]
  std::uint32_t launch_;
  int lane_;
  float inverse_step_;
};

}  // namespace kvsim::device
