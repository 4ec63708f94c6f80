#pragma once

#include <cstdint>

#include "kernels/santa/arguments.cuh"
#include "kernels/santa/drawn_rows.cuh"
#include "kernels/santa/draws.cuh"
#include "kernels/santa/sizes.h"

namespace kvsim::device {

/// How the ring is used while gathering, for host (sizes) and device. Arrays of heads are as many
/// times there as there are parts at once.
struct GatherLayout {
  int most_tiles;  // of a CTA in one team
  int sum;         // bytes before each array
  int parts;
  int queues;
  int heads;
  int draws;
  int lines;
  int sums;
  int remainders;
  int bytes;

  KVSIM_HD static GatherLayout of(const SantaArguments& a, int warps, int row) {
    const int own_tiles = a.blocks_per_cta << (kBlockLog2 - a.tile_log2);
    const int heads = a.group * (a.split.ctas_per_team > 0 ? 1 : kPartsAtOnce);
    const int remainder_count = ranks_remainders(a.rule) ? heads * remainder_row(a.tiles) : 0;
    GatherLayout layout{};
    layout.most_tiles = own_tiles < a.tiles ? own_tiles : a.tiles;
    layout.sum = 0;
    layout.parts = layout.sum + warps * kWarp * static_cast<int>(sizeof(WeightedPair));
    layout.queues =
        layout.parts + (kPartsAtOnce * static_cast<int>(sizeof(TeamPart)) + 15) / 16 * 16;
    layout.heads = layout.queues + warps * kWarp * static_cast<int>(sizeof(DrawnRow));
    layout.draws = layout.heads + (heads * static_cast<int>(sizeof(HeadTotal)) + 15) / 16 * 16;
    layout.lines = layout.draws + heads * layout.most_tiles * static_cast<int>(sizeof(TileDraw));
    layout.sums = layout.lines + heads * line_of(layout.most_tiles) * 4;
    layout.remainders = layout.sums + (heads << a.slots_log2) * row * 4;
    layout.bytes = layout.remainders + remainder_count * 8;
    return layout;
  }
};

/// Draws the samples that fall into this CTA's tiles, adds up their V rows, and adds up the team.
template <typename T, int D, typename Shape, bool kTeams>
class SantaGather {
 public:
  __device__ SantaGather(const SantaArguments& arguments, char* shared)
      : a_(arguments),
        shared_(arguments, shared),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        rows_(arguments.step, arguments.group, lane_) {
    const GatherLayout layout = GatherLayout::of(a_, Shape::kWarps, D);
    most_tiles_ = layout.most_tiles;
    sum_ = reinterpret_cast<WeightedPair*>(shared + layout.sum);
    parts_ = reinterpret_cast<TeamPart*>(shared + layout.parts);
    queue_ = reinterpret_cast<DrawnRow*>(shared + layout.queues) + warp_ * kWarp;
    heads_ = reinterpret_cast<HeadTotal*>(shared + layout.heads);
    draws_ = reinterpret_cast<TileDraw*>(shared + layout.draws);
    line_ = reinterpret_cast<std::uint32_t*>(shared + layout.lines);
    sums_ = reinterpret_cast<float*>(shared + layout.sums);
    remainders_ = reinterpret_cast<std::uint64_t*>(shared + layout.remainders);
  }

  /// `launches`: as read from the counter.
  __device__ void run(unsigned long long launches) {
    launch_ = LaunchCounter::number(launches);
    UnitStream<kTeams> blocks = units_of_cta<kTeams>(a_.split);
    const TeamSplit::Team first = blocks.team;
    TeamSplit::Team last = first;
    int index = 0;
#pragma unroll 1
    while (!blocks.done()) {
      const bool again = index > 0;
      const int parts = take_parts(blocks, index);
      last = own_.team;
      gather_parts(parts, again);
      if (kTeams) break;
    }
#pragma unroll 1
    for (int i = 0; i < (kTeams ? 1 : 2); ++i) {  // the share's first and last team
      if (i == 0 || last.begin != first.begin) add_up_team(i == 0 ? first : last);
    }
    sync_workers<Shape::kWorkers>();
    if (threadIdx.x == 0) a_.partials.launches.leave(a_.split.ctas);
  }

 private:
  using Rows = DrawnRows<T, D, sampled_rows_at_once(D, Shape::kMostGroup)>;

  /// The share's next teams, whose first block is the CTA's number `index`. Afterwards `own_` is
  /// the last of them.
  __device__ int take_parts(UnitStream<kTeams>& blocks, int& index) {
    if constexpr (kTeams) {
      own_ = OwnBlocks(a_, blocks);
      sharing_ = sharing_of<kTeams>(a_.split, a_.partials, own_.team);
      return 1;
    } else {
      if (index > 0) sync_workers<Shape::kWorkers>();  // the parts before may still be read
      int parts = 0;
#pragma unroll 1
      for (; parts < kPartsAtOnce && !blocks.done(); ++parts) {
        const TeamPart part = take_part<kTeams>(a_, blocks, index);
        own_ = part.own;
        if (threadIdx.x == 0) parts_[parts] = part;
      }
      return parts;
    }
  }

  /// Turns to part n: what it owns, and its heads' arrays.
  __device__ void turn_to(int n) {
    if constexpr (kTeams) return;
    own_ = parts_[n].own;
    own_index_ = parts_[n].index;
    first_head_ = n * a_.group;
  }
  __device__ int part_of(int head) const { return kTeams || head < a_.group ? 0 : 1; }

  __device__ TileDraws draws() const {
    return TileDraws(a_, own_, heads_ + first_head_, draws_ + first_head_ * most_tiles_,
                     line_ + first_head_ * line_of(most_tiles_),
                     remainders_ + first_head_ * remainder_row(a_.tiles), launch_, lane_);
  }

  /// `again`: not the first parts of the CTA. Heads are numbered over all parts.
  __device__ void gather_parts(int parts, bool again) {
    static_assert(kPartsAtOnce == 2);
    sync_workers<Shape::kWorkers>();  // the ring, or what the parts before left there, is in use
#pragma unroll 1
    for (int head = warp_; head < parts * a_.group; head += Shape::kWarps) {
      turn_to(part_of(head));
      draws().run(head - first_head_);
    }
    if (again) {
      sync_workers<Shape::kWorkers>();
    } else {
      join_threads<Shape::kThreads>();  // with the finishing warps: prefix sums are there
    }
    gather_rows(parts);
    sync_workers<Shape::kWorkers>();
    write_sums(parts);
  }

  /// The row of sample e among those that may be this CTA's, or -1 if it is another's.
  __device__ int row_of(const TileDraws& draws, int head, std::uint32_t e) const {
    const bool independent = is_independent(a_.rule);
    const std::uint64_t place = independent ? draws.threshold_of(head, e) : 0;
    const int own = independent ? tile_with_mass(head, place) : tile_with_sample(head, e);
    const TileDraw& draw = tiles_of(head)[own];
    if (draw.mass == 0) return -1;  // too small to count, or all scores are -infinity
    std::uint32_t units = 0;        // the row's prefix sum is the first that is not below
    if (is_budgeted(a_.rule)) {
      units = units_of_sample(draws, head, draw, e - draw.before);
    } else {
      const std::uint64_t threshold =
          independent ? place : draws.threshold_of(head, draw.first + e - draw.before);
      if (threshold < draw.start || threshold - draw.start >= draw.mass) return -1;
      units = units_above(threshold - draw.start, draw.scale);
    }
    const int first = draw.tile << a_.tile_log2;
    const int context = context_of<kTeams>(a_.step, own_.team.sequence);
    // Scores that are not numbers may exceed all sums: never a row past the context.
    return min(first + rows_below(prefix_of_tile(head, own), a_.tile_log2, units), context - 1);
  }

  /// A head's own tiles.
  __device__ const TileDraw* tiles_of(int head) const {
    return draws_ + first_head_ * most_tiles_ + head * own_.own_tiles;
  }

  /// The last own tile whose samples begin at or before e.
  __device__ int tile_with_sample(int head, std::uint32_t e) const {
    static_assert(kTilesLinedUp == 8);
    const auto* line = reinterpret_cast<const uint4*>(line_ + first_head_ * line_of(most_tiles_) +
                                                      head * line_of(own_.own_tiles));
    int begun = 0;
#pragma unroll 1
    for (int base = 0; base < own_.own_tiles; base += kTilesLinedUp, line += 2) {
      begun += count_below(line[0], e + 1) + count_below(line[1], e + 1);
    }
    return begun - 1;
  }
  /// The last own tile that begins at or before `place` in the head's distribution, or the first.
  __device__ int tile_with_mass(int head, std::uint64_t place) const {
    const TileDraw* tiles = tiles_of(head);
    int own = 0;
#pragma unroll 4
    for (int i = 1; i < own_.own_tiles; ++i) own += tiles[i].start <= place ? 1 : 0;
    return own;
  }

  /// Prefix sums of an own tile.
  __device__ const std::uint32_t* prefix_of_tile(int head, int own) const {
    const int per_block_log2 = kBlockLog2 - a_.tile_log2;
    const int block = own >> per_block_log2;
    const int inside = own & ((1 << per_block_log2) - 1);
    return finished_of(a_, shared_, own_index_ + block,
                       own_.team.begin + own_.first + block * own_.step) +
           head * kStashRow + (inside << a_.tile_log2);
  }

  /// A tile's sample takes the tile's first row whose prefix sum is at least this.
  __device__ std::uint32_t units_of_sample(const TileDraws& draws, int head, const TileDraw& draw,
                                           std::uint32_t sample) const {
    std::uint32_t offset = heads_[first_head_ + head].offset;
    if (a_.offset_per_tile) {
      offset = draws.random_of(head, Purpose::kSampleOffset, static_cast<std::uint32_t>(draw.tile));
    }
    return tile_threshold(draw.units, draw.end - draw.first, sample, offset) + 1;
  }

  /// Chunks of `count` samples that go to sums of their own.
  __device__ int chunks_of(std::uint32_t count) const {
    const std::uint32_t chunks = (count + (1u << chunk_log2_) - 1) >> chunk_log2_;
    return min(static_cast<int>(chunks), 1 << a_.slots_log2);
  }

  /// Sums of drawn V rows. All heads' chunks are dealt out over the warps in turn.
  __device__ void gather_rows(int parts) {
    const int heads = parts * a_.group;
    // Half a warp's samples at once if that keeps more warps busy, not one warp for longer.
    const std::uint32_t count = lane_ < heads ? heads_[lane_].count : 0;
    const std::uint32_t halves = __reduce_add_sync(0xffffffffu, (count + 15) / 16);
    chunk_log2_ = halves > static_cast<std::uint32_t>(Shape::kWarps) ? 5 : 4;
    const int chunks = chunks_of(count);  // of this lane's head
    const int first = lanes_before(chunks, lane_, heads);
#pragma unroll 1
    for (int item = warp_;; item += Shape::kWarps) {
      const std::uint32_t begun = __ballot_sync(0xffffffffu, chunks > 0 && first <= item);
      if (begun == 0) break;
      const int head = kWarp - 1 - __clz(static_cast<int>(begun));
      const int slot = item - __shfl_sync(0xffffffffu, first, head);
      if (slot >= __shfl_sync(0xffffffffu, chunks, head)) break;
      turn_to(part_of(head));
      gather_chunk(head, slot);
    }
  }

  /// `head` is numbered over all parts.
  __device__ void gather_chunk(int head, int slot) {
    const TileDraws draws = this->draws();
    const std::uint32_t count = heads_[head].count;
    const bool looks_up = lane_ >> chunk_log2_ == 0;
    typename Rows::Sum sum = {};
#pragma unroll 1
    for (auto e = static_cast<std::uint32_t>(slot << chunk_log2_); e < count;
         e += 1u << (chunk_log2_ + a_.slots_log2)) {
      const auto mine = e + static_cast<std::uint32_t>(lane_);
      const int row = looks_up && mine < count ? row_of(draws, head - first_head_, mine) : -1;
      add_rows(sum, head - first_head_, row);
    }
    rows_.write(sum, sums_ + ((head << a_.slots_log2) + slot) * D);
  }

  /// A row of each lane, -1 for none.
  __device__ void add_rows(typename Rows::Sum& sum, int head, int row) const {
    const int queued = rows_.fill(queue_, own_.team, head, row, 1);
#pragma unroll 1
    for (int base = 0; base < queued; base += Rows::kRowsAtOnce) {
      typename Rows::Batch batch;
      rows_.load(batch, queue_ + base, queued - base);
      rows_.add(sum, batch);
    }
  }

  /// The warps' sums become the CTA's: output if the team is its own, else a partial result.
  __device__ void write_sums(int parts) {
    const int pairs = a_.group * D / 2;  // of a part
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < parts * pairs; i += Shape::kWorkers) {
      const int head = 2 * i / D;
      const int column = 2 * i % D;
      const int n = part_of(head);
      const int chunks = chunks_of(heads_[head].count);
      float2 sum = {0, 0};
#pragma unroll 1
      for (int slot = 0; slot < chunks; ++slot) {
        const auto part =
            *reinterpret_cast<const float2*>(sums_ + ((head << a_.slots_log2) + slot) * D + column);
        sum.x += part.x;
        sum.y += part.y;
      }
      sum.x *= heads_[head].scale;
      sum.y *= heads_[head].scale;
      const Sharing sharing = kTeams ? sharing_ : parts_[n].sharing;
      if (sharing.members == 1) {
        const TeamSplit::Team team = kTeams ? own_.team : parts_[n].own.team;
        write_output(team, head - n * a_.group, column, sum.x, sum.y);
      } else {
        publish(a_.partials.values + sharing.slot * pairs + i - n * pairs, __float_as_uint(sum.x),
                __float_as_uint(sum.y), launch_);
      }
    }
  }

  __device__ void add_up_team(const TeamSplit::Team& team) {
    const Sharing sharing = sharing_of<kTeams>(a_.split, a_.partials, team);
    if (sharing.members == 1) return;
    const TeamSum<D, Shape::kWorkers, false> sum(a_.partials, a_.group, sum_, launch_);
    sum.run(sharing, [&](int head, int column, const WeightedPair& total) {
      write_output(team, head, column, total.a, total.b);
    });
  }

  __device__ void write_output(const TeamSplit::Team& team, int head, int column, float a,
                               float b) const {
    if (column >= a_.step.head_dim) return;
    store_output(a_.step, (first_head(a_.step, a_.group, team) + head) * a_.step.head_dim + column,
                 a, b);
  }

  const SantaArguments& a_;
  StreamShared shared_;
  int warp_;
  int lane_;
  Rows rows_;
  int most_tiles_;             // of a head in one part
  WeightedPair* sum_;          // [workers]
  TeamPart* parts_;            // [kPartsAtOnce], unless teams have CTAs of their own
  DrawnRow* queue_;            // [32], of this warp
  HeadTotal* heads_;           // [parts, group]
  TileDraw* draws_;            // [parts][group, own tiles]
  std::uint32_t* line_;        // [parts][group, line_of(own tiles)]
  float* sums_;                // [parts, group, slots, D]
  std::uint64_t* remainders_;  // [parts, group, remainder_row(tiles)]
  OwnBlocks own_;              // of the part that this warp is at
  Sharing sharing_;            // of the team, if the CTA has but one
  int own_index_ = 0;          // of own_'s first block among all blocks of the CTA
  int first_head_ = 0;         // of the part, numbered over all parts
  int chunk_log2_ = 0;         // log2 of the samples that a warp looks up at once
  std::uint32_t launch_ = 0;   // this launch's number
};

}  // namespace kvsim::device
