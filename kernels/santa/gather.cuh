#pragma once

#include <cstdint>

#include "kernels/santa/kernel.cuh"

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
};

struct HeadTotal {
  Strata strata;
  float scale;             // of the sum of drawn rows
  std::uint32_t offset;    // 24 random bits
  std::uint32_t leftover;  // samples that remainders are dealt (largest remainder)
};

/// How the ring is used while gathering, for host (sizes) and device.
struct GatherLayout {
  int sum;  // bytes before each array
  int heads;
  int draws;
  int sums;
  int remainders;
  int entries;
  int bytes;

  KVSIM_HD static GatherLayout of(int group, int warps, int row, int pairs, int remainder_count,
                                  int entry_count) {
    const int items = group > warps ? group : warps;
    GatherLayout layout{};
    layout.sum = 0;
    layout.heads = layout.sum + warps * kWarp * static_cast<int>(sizeof(Weighted));
    layout.draws = layout.heads + group * static_cast<int>(sizeof(HeadTotal));
    layout.sums = (layout.draws + pairs * static_cast<int>(sizeof(TileDraw)) + 15) / 16 * 16;
    layout.remainders = layout.sums + items * row * 4;
    layout.entries = layout.remainders + remainder_count * 8;
    layout.bytes = layout.entries + entry_count * 4;
    return layout;
  }
};

template <typename T, int D, bool kLarge>
class SantaGather {
 public:
  using Shape = SantaShape<D, kLarge>;

  __device__ SantaGather(const SantaArguments& arguments, char* shared)
      : a_(arguments),
        shared_(arguments, shared, Shape::kRingBytes),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp) {
    const bool ranked = a_.rule == SantaRule::kLargestRemainder;
    const int group = a_.step.group();
    const GatherLayout layout = GatherLayout::of(group, Shape::kWarps, D, a_.pairs,
                                                 ranked ? group * a_.tiles : 0, 0);
    sum_ = reinterpret_cast<Weighted*>(shared + layout.sum);
    heads_ = reinterpret_cast<HeadTotal*>(shared + layout.heads);
    draws_ = reinterpret_cast<TileDraw*>(shared + layout.draws);
    sums_ = reinterpret_cast<float*>(shared + layout.sums);
    remainders_ = reinterpret_cast<std::uint64_t*>(shared + layout.remainders);
    entries_ = reinterpret_cast<std::int32_t*>(shared + layout.entries);
  }

  __device__ void run() {
    const int cta = static_cast<int>(blockIdx.x);
    launch_ = a_.partials.launches.current(gridDim.x);
    UnitStream blocks = units_of_worker(a_.split, cta, 0, 1);
    const TeamSplit::Team first = blocks.team;
    TeamSplit::Team last = first;
    int index = 0;
    while (!blocks.done()) {
      own_ = blocks;
      own_index_ = index;
      const std::int32_t stop = min(blocks.team.end, blocks.end);
      own_blocks_ = (stop - blocks.position + blocks.step - 1) / blocks.step;
      last = own_.team;
      gather_team();
      index += own_blocks_;
      blocks.position += own_blocks_ * blocks.step;
      blocks.settle(a_.split);
    }
    __syncthreads();
    if (threadIdx.x == 0) a_.partials.launches.leave();
    add_up_team(first, cta);
    if (last.begin != first.begin) add_up_team(last, cta);
  }

 private:
  static constexpr int kTilesPerLane = 4;

  /// A lane's consecutive tiles of one head.
  struct LaneTiles {
    float highest[kTilesPerLane];
    std::uint32_t units[kTilesPerLane];
  };

  __device__ void gather_team() {
    const int per_block = kBlockTokens / a_.tile;
    tiles_ = (a_.step.contexts[static_cast<std::size_t>(own_.team.sequence)] + a_.tile - 1) / a_.tile;
    first_block_ = own_.position - own_.team.begin;
    const int past_end = (first_block_ + (own_blocks_ - 1) * own_.step + 1) * per_block - tiles_;
    own_tiles_ = own_blocks_ * per_block - max(past_end, 0);
    stamp(a_,2); //DBG
    for (int head = warp_; head < a_.step.group(); head += Shape::kWarps) read_head(head);
    __syncthreads();
    stamp(a_,3); //DBG
    count_samples();
    __syncthreads();
    stamp(a_,4); //DBG
    if (warp_ == 0) add_up_counts();
    __syncthreads();
    stamp(a_,5); //DBG
    find_rows();
    __syncthreads();
    stamp(a_,6); //DBG
    gather_rows();
    __syncthreads();
    stamp(a_,7); //DBG
    write_sums();
    stamp(a_,9); //DBG
  }

  __device__ RandomStream random_of(int head, Purpose purpose) const {
    RandomStream random = a_.step.random;
    random.sequence += static_cast<std::uint32_t>(own_.team.sequence);
    random.head += static_cast<std::uint32_t>(own_.team.kv_head * a_.step.group() + head);
    random.purpose = purpose;
    return random;
  }

  /// Waits until the tiles' records of this launch are there; tiles past the end have no mass.
  __device__ LaneTiles read_tiles(int head, int first) const {
    const TaggedPair* records = records_of(a_, own_.team, head);
    LaneTiles tiles;
    TaggedPair record[kTilesPerLane];
    bool complete = false;
    while (!complete) {
      complete = true;
#pragma unroll
      for (int i = 0; i < kTilesPerLane; ++i) {
        if (first + i < tiles_) record[i] = peek(records + first + i);
      }
#pragma unroll
      for (int i = 0; i < kTilesPerLane; ++i) {
        const bool present = record[i].a.launch == launch_ && record[i].b.launch == launch_;
        complete = complete && (first + i >= tiles_ || present);
      }
    }
#pragma unroll
    for (int i = 0; i < kTilesPerLane; ++i) {
      const bool valid = first + i < tiles_;
      tiles.highest[i] = valid ? __uint_as_float(record[i].a.word) : -INFINITY;
      tiles.units[i] = valid ? record[i].b.word : 0;
    }
    return tiles;
  }

  /// The head's total, and the mass before each tile of this CTA.
  __device__ void read_head(int head) {
    constexpr int kAtOnce = kWarp * kTilesPerLane;
    LaneTiles tiles;
    float highest = -INFINITY;
    for (int base = 0; base < tiles_; base += kAtOnce) {
      tiles = read_tiles(head, base + lane_ * kTilesPerLane);
#pragma unroll
      for (int i = 0; i < kTilesPerLane; ++i) highest = fmaxf(highest, tiles.highest[i]);
    }
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, distance));
    }
    std::uint64_t start = 0;
    for (int base = 0; base < tiles_; base += kAtOnce) {
      const int first = base + lane_ * kTilesPerLane;
      if (tiles_ > kAtOnce) tiles = read_tiles(head, first);
      start = place_tiles(head, first, tiles, highest, start);
    }
    if (a_.rule == SantaRule::kLargestRemainder) deal_whole_samples(head, start);
    if (lane_ == 0) {
      heads_[head].strata = Strata::of(start, a_.samples);
      heads_[head].scale = share_of_rows(head, highest, start) / static_cast<float>(a_.samples);
      heads_[head].offset = random_of(head, Purpose::kSampleOffset).threshold24(0);
    }
  }

  /// The softmax's share that belongs to rows, not to the head's sink.
  __device__ float share_of_rows(int head, float highest, std::uint64_t total) const {
    if (a_.step.sink_logits == nullptr) return 1;
    const double sink = a_.step.sink_logits[own_.team.kv_head * a_.step.group() + head];
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
        draws_[head * own_tiles_ + own] = {before, mass[i], scale[i], tiles.units[i], 0, 0, 0};
      }
      if (a_.rule == SantaRule::kLargestRemainder && first + i < tiles_) {
        remainders_[head * a_.tiles + first + i] = mass[i];
      }
      before += mass[i];
    }
    return start + __shfl_sync(0xffffffffu, through, kWarp - 1);
  }

  /// This CTA's number for a tile, -1 if the tile is another's.
  __device__ int own_tile(int tile) const {
    if (tile >= tiles_) return -1;
    const int per_block = kBlockTokens / a_.tile;
    const int distance = tile / per_block - first_block_;
    if (distance < 0) return -1;
    const int block = own_.step == 1 ? distance : distance / own_.step;
    if (block * own_.step != distance || block >= own_blocks_) return -1;
    return block * per_block + tile % per_block;
  }

  /// Largest remainder: every tile's whole samples; remainders take the place of masses.
  __device__ void deal_whole_samples(int head, std::uint64_t total) {
    __syncwarp();
    std::uint64_t* remainders = remainders_ + head * a_.tiles;
    std::uint32_t dealt = 0;
    for (int tile = lane_; tile < tiles_; tile += kWarp) {
      const Share share = budget_share(remainders[tile], a_.samples, total);
      remainders[tile] = share.remainder;
      dealt += share.whole;
      const int own = own_tile(tile);
      if (own >= 0) draws_[head * own_tiles_ + own].end = share.whole;
    }
    dealt = __reduce_add_sync(0xffffffffu, dealt);
    if (lane_ == 0) heads_[head].leftover = a_.samples - dealt;
  }

  /// How many samples each of the CTA's tiles draws.
  __device__ void count_samples() {
    const int pairs = a_.step.group() * own_tiles_;
    if (a_.rule == SantaRule::kLargestRemainder) {
      for (int p = warp_; p < pairs; p += Shape::kWarps) deal_remainder(p);
      return;
    }
    for (int i = static_cast<int>(threadIdx.x); i < 2 * pairs; i += Shape::kThreads) {
      TileDraw& draw = draws_[i / 2];
      const int head = i / 2 / own_tiles_;
      if (i % 2 == 0) {
        draw.first = samples_below(head, draw.start);
      } else {
        draw.end = samples_below(head, draw.start + draw.mass);
      }
    }
  }

  /// Samples of a head, or budgets of its tiles, that fall below a mass.
  __device__ std::uint32_t samples_below(int head, std::uint64_t mass) const {
    const Strata& strata = heads_[head].strata;
    if (a_.rule == SantaRule::kStratified) {
      const RandomStream random = random_of(head, Purpose::kSampleOffset);
      return strata.below(mass, [&](std::uint32_t m) { return random.threshold24(m); });
    }
    const std::uint32_t offset = a_.rule == SantaRule::kSystematicBudgets
                                     ? random_of(head, Purpose::kBudgetOffset).threshold24(0)
                                     : heads_[head].offset;
    return strata.below(mass, [&](std::uint32_t) { return offset; });
  }

  /// A warp ranks the remainder of one pair among all tiles of the head; ties go to lower tiles.
  __device__ void deal_remainder(int pair) {
    const int head = pair / own_tiles_;
    const int tile = tile_of_own(pair % own_tiles_);
    const std::uint64_t* remainders = remainders_ + head * a_.tiles;
    const std::uint64_t mine = remainders[tile];
    std::uint32_t ahead = 0;
    for (int other = lane_; other < tiles_; other += kWarp) {
      ahead += remainders[other] > mine || (remainders[other] == mine && other < tile) ? 1u : 0u;
    }
    ahead = __reduce_add_sync(0xffffffffu, ahead);
    if (lane_ == 0 && ahead < heads_[head].leftover) ++draws_[pair].end;
  }

  __device__ int tile_of_own(int own) const {
    const int per_block = kBlockTokens / a_.tile;
    return (first_block_ + own / per_block * own_.step) * per_block + own % per_block;
  }

  /// Warp 0: exclusive sums of the counts.
  __device__ void add_up_counts() {
    const int pairs = a_.step.group() * own_tiles_;
    std::uint32_t total = 0;
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

  /// Samples before pair p; all of the CTA's for p = pairs.
  __device__ std::uint32_t samples_before(int p) const {
    const int pairs = a_.step.group() * own_tiles_;
    if (p < pairs) return draws_[p].before;
    const TileDraw& last = draws_[pairs - 1];
    return last.before + last.end - last.first;
  }

  __device__ void find_rows() {
    const int pairs = a_.step.group() * own_tiles_;
    const std::uint32_t samples = samples_before(pairs);
    for (std::uint32_t e = threadIdx.x; e < samples; e += Shape::kThreads) {
      int low = 0;  // last pair whose samples begin at or before e
      int high = pairs;
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        (draws_[middle].before <= e ? low : high) = middle;
      }
      entries_[e] = row_of_sample(low, e - draws_[low].before);
    }
  }

  __device__ std::int32_t row_of_sample(int pair, std::uint32_t sample) const {
    const TileDraw& draw = draws_[pair];
    const int head = pair / own_tiles_;
    const int own = pair % own_tiles_;
    const int per_block = kBlockTokens / a_.tile;
    const int block = own / per_block;
    const std::uint32_t* prefix =
        stash_of(a_, shared_, own_index_ + block, own_.position + block * own_.step) +
        head * kStashRow + own % per_block * a_.tile;
    const int inside = budgeted() ? row_in_budget(draw, head, tile_of_own(own), sample, prefix)
                                  : row_in_head(draw, head, sample, prefix);
    return tile_of_own(own) * a_.tile + inside;
  }

  __device__ bool budgeted() const {
    return a_.rule == SantaRule::kLargestRemainder || a_.rule == SantaRule::kSystematicBudgets;
  }

  __device__ int row_in_budget(const TileDraw& draw, int head, int tile, std::uint32_t sample,
                               const std::uint32_t* prefix) const {
    const std::uint32_t offset =
        a_.offset_per_tile ? random_of(head, Purpose::kSampleOffset)
                                 .threshold24(static_cast<std::uint32_t>(tile))
                           : heads_[head].offset;
    const std::uint64_t threshold =
        Strata::of(draw.units, draw.end - draw.first).threshold(sample, offset);
    return row_above(prefix, static_cast<std::uint32_t>(threshold));
  }

  __device__ int row_in_head(const TileDraw& draw, int head, std::uint32_t sample,
                             const std::uint32_t* prefix) const {
    const std::uint32_t m = draw.first + sample;
    const std::uint32_t offset = a_.rule == SantaRule::kStratified
                                     ? random_of(head, Purpose::kSampleOffset).threshold24(m)
                                     : heads_[head].offset;
    const std::uint64_t threshold =
        heads_[head].strata.threshold(m, offset) - draw.start;
    return row_above(prefix, units_above(threshold, draw.scale) - 1);
  }

  /// First row of a tile whose prefix sum exceeds `units`, which the last one's does.
  __device__ int row_above(const std::uint32_t* prefix, std::uint32_t units) const {
    int row = 0;
    for (int step = a_.tile / 2; step > 0; step /= 2) {
      if (prefix[row + step - 1] <= units) row += step;
    }
    return row;
  }

  /// Sums of drawn V rows. A head's samples are shared by the warps that there are for it.
  __device__ void gather_rows() {
    const int group = a_.step.group();
    const int parts = parts_per_head();
    for (int item = warp_; item < group * parts; item += Shape::kWarps) {
      const int head = item / parts;
      const auto begin = samples_before(head * own_tiles_);
      const auto count = samples_before((head + 1) * own_tiles_) - begin;
      const auto part = static_cast<std::uint32_t>(item % parts);
      const auto share = static_cast<std::uint32_t>(parts);
      float sum[D / kWarp] = {};
      add_rows(sum, head, static_cast<int>(begin + count * part / share),
               static_cast<int>(begin + count * (part + 1) / share));
#pragma unroll
      for (int i = 0; i < D / kWarp; ++i) sums_[item * D + lane_ * (D / kWarp) + i] = sum[i];
    }
  }

  __device__ int parts_per_head() const {
    return max(1, Shape::kWarps / a_.step.group());
  }

  /// Rows drawn several times in a row are read once.
  __device__ void add_rows(float (&sum)[D / kWarp], int head, int begin, int end) {
    for (int base = begin; base < end; base += kWarp) {
      const int valid = min(kWarp, end - base);
      const std::int32_t row = lane_ < valid ? entries_[base + lane_] : -1;
      const std::int32_t left = __shfl_up_sync(0xffffffffu, row, 1);
      std::uint32_t runs =
          __ballot_sync(0xffffffffu, lane_ < valid && (lane_ == 0 || row != left));
      while (runs != 0) add_batch(sum, head, row, runs, valid);
    }
  }

  /// Takes up to 8 runs of equal rows off `runs`; all their loads are under way at once.
  __device__ void add_batch(float (&sum)[D / kWarp], int head, std::int32_t row,
                            std::uint32_t& runs, int valid) {
    constexpr int kBatch = 8;
    constexpr int kWords = D / 2 / kWarp;
    std::uint32_t words[kBatch][kWords];
    float count[kBatch];
    const bool inside = lane_ * (D / kWarp) < a_.step.head_dim;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      count[j] = 0;
#pragma unroll
      for (int w = 0; w < kWords; ++w) words[j][w] = 0;
      if (runs == 0) continue;
      const int first = __ffs(static_cast<int>(runs)) - 1;
      runs &= runs - 1;
      const int next = runs != 0 ? __ffs(static_cast<int>(runs)) - 1 : valid;
      const std::int32_t drawn = __shfl_sync(0xffffffffu, row, first);
      count[j] = static_cast<float>(next - first);
      if (inside) {
        const T* v = row_pointer<T>(a_.step.v, own_.team.sequence, own_.team.kv_head, drawn) +
                     lane_ * (D / kWarp);
        load_words<kWords>(words[j], v);
      }
      if (a_.step.counts != nullptr && lane_ == 0) dump(head, drawn, next - first);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const float2 value = unpack2<T>(words[j][w]);
        sum[2 * w] = fmaf(count[j], value.x, sum[2 * w]);
        sum[2 * w + 1] = fmaf(count[j], value.y, sum[2 * w + 1]);
      }
    }
  }

  template <int kWords>
  __device__ static void load_words(std::uint32_t (&words)[kWords], const void* source) {
    if constexpr (kWords == 1) {
      words[0] = __ldg(static_cast<const std::uint32_t*>(source));
    } else if constexpr (kWords == 2) {
      *reinterpret_cast<uint2*>(words) = __ldg(static_cast<const uint2*>(source));
    } else {
      *reinterpret_cast<uint4*>(words) = __ldg(static_cast<const uint4*>(source));
    }
  }

  __device__ void dump(int head, std::int32_t row, int count) {
    const std::int64_t query_head = first_head() + head;
    atomicAdd(a_.step.counts + query_head * a_.step.dump_stride + row,
              static_cast<std::uint32_t>(count));
  }

  __device__ std::int64_t first_head() const {
    return std::int64_t{own_.team.sequence} * a_.step.q_heads +
           own_.team.kv_head * a_.step.group();
  }

  /// The warps' sums become the CTA's: output if the team is its own, else a partial result.
  __device__ void write_sums() {
    const int group = a_.step.group();
    const int parts = parts_per_head();
    const bool alone = a_.split.members(own_.team).count == 1;
    const int slot = slot_of(a_.split, own_.team, static_cast<int>(blockIdx.x));
    for (int i = static_cast<int>(threadIdx.x); i < group * D / 2; i += Shape::kThreads) {
      const int head = 2 * i / D;
      const int column = 2 * i % D;
      float2 sum = {0, 0};
      for (int p = 0; p < parts; ++p) {
        const auto part =
            *reinterpret_cast<const float2*>(sums_ + (head * parts + p) * D + column);
        sum.x += part.x;
        sum.y += part.y;
      }
      sum.x *= heads_[head].scale;
      sum.y *= heads_[head].scale;
      if (alone) {
        write_output(own_.team, head, column, sum.x);
        write_output(own_.team, head, column + 1, sum.y);
      } else {
        publish(a_.partials.values + slot * (group * D / 2) + i, __float_as_uint(sum.x),
                __float_as_uint(sum.y), launch_);
      }
    }
  }

  __device__ void add_up_team(const TeamSplit::Team& team, int cta) {
    if (a_.split.members(team).count == 1) return;
    const TeamSum<D, Shape::kWarps, false> sum(a_.partials, a_.split, a_.step.group(), sum_,
                                               launch_);
    sum.run(team, cta, [&](int head, int column, const Weighted& total) {
      write_output(team, head, column, total.value);
    });
  }

  __device__ void write_output(const TeamSplit::Team& team, int head, int column, float value) {
    if (column >= a_.step.head_dim) return;
    const std::int64_t row = std::int64_t{team.sequence} * a_.step.q_heads +
                             team.kv_head * a_.step.group() + head;
    store_output(a_.step, row * a_.step.head_dim + column, value);
  }

  const SantaArguments& a_;
  SantaShared shared_;
  int warp_;
  int lane_;
  Weighted* sum_;              // [threads]
  HeadTotal* heads_;           // [group]
  TileDraw* draws_;            // [group, own tiles]
  float* sums_;                // [items, D]
  std::uint64_t* remainders_;  // [group, tiles]
  std::int32_t* entries_;      // rows drawn, by head and row
  UnitStream own_;             // this CTA's first block of the team
  std::uint32_t launch_ = 0;   // this launch's number
  int own_index_ = 0;          // its number in the CTA
  int own_blocks_ = 0;
  int own_tiles_ = 0;
  int first_block_ = 0;  // of this CTA in the team
  int tiles_ = 0;
};

}  // namespace kvsim::device
