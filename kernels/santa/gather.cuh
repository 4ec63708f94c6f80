#pragma once

#include <cstdint>

#include "kernels/santa/arguments.cuh"
#include "kernels/santa/draws.cuh"

namespace kvsim::device {

/// How the ring is used while gathering, for host (sizes) and device.
struct GatherLayout {
  int sum;  // bytes before each array
  int heads;
  int draws;
  int sums;
  int remainders;
  int sorted;
  int entries;
  int bytes;

  KVSIM_HD static GatherLayout of(int group, int warps, int row, int pairs, int remainder_count,
                                  int sorted_count, int entry_count) {
    const int items = group > warps ? group : warps;
    GatherLayout layout{};
    layout.sum = 0;
    layout.heads = layout.sum + warps * kWarp * static_cast<int>(sizeof(Weighted));
    layout.draws = layout.heads + group * static_cast<int>(sizeof(HeadTotal));
    layout.sums = (layout.draws + pairs * static_cast<int>(sizeof(TileDraw)) + 15) / 16 * 16;
    layout.remainders = layout.sums + items * row * 4;
    layout.sorted = layout.remainders + remainder_count * 8;
    layout.entries = layout.sorted + sorted_count * 4;
    layout.bytes = layout.entries + entry_count * 4;
    return layout;
  }
};

/// Draws the samples that fall into this CTA's tiles, adds up their V rows, and adds up the team.
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
    const int group = a_.group;
    const GatherLayout layout = GatherLayout::of(
        group, Shape::kWarps, D, a_.pairs, ranked ? group * a_.tiles : 0, group * a_.sorted, 0);
    sum_ = reinterpret_cast<Weighted*>(shared + layout.sum);
    heads_ = reinterpret_cast<HeadTotal*>(shared + layout.heads);
    draws_ = reinterpret_cast<TileDraw*>(shared + layout.draws);
    sums_ = reinterpret_cast<float*>(shared + layout.sums);
    remainders_ = reinterpret_cast<std::uint64_t*>(shared + layout.remainders);
    sorted_ = reinterpret_cast<std::uint32_t*>(shared + layout.sorted);
    entries_ = reinterpret_cast<std::int32_t*>(shared + layout.entries);
  }

  /// `launches`: as read from the counter.
  __device__ void run(unsigned long long launches) {
    const int cta = static_cast<int>(blockIdx.x);
    launch_ = LaunchCounter::number(launches, gridDim.x);
    UnitStream blocks = units_of_worker(a_.split, cta, 0, 1);
    const TeamSplit::Team first = blocks.team;
    TeamSplit::Team last = first;
#pragma unroll 1
    while (!blocks.done()) {
      own_ = OwnBlocks(a_, blocks);
      last = own_.team;
      gather_team(sharing_of(a_.split, last, cta));
      own_index_ += own_.count;
      blocks.position += own_.count * blocks.step;
      blocks.settle(a_.split);
    }
    __syncthreads();
    if (threadIdx.x == 0) a_.partials.launches.leave();
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {  // one copy of the code for the share's first and last team
      if (i == 0 || last.begin != first.begin) add_up_team(i == 0 ? first : last, cta);
    }
  }

 private:
  using Draws = TileDraws<Shape::kWarps>;
  static constexpr int kColumns = D / kWarp;  // of a V row, per lane

  __device__ void gather_team(const Sharing& sharing) {
    __syncthreads();  // what the team before left in shared memory may still be read
    Draws draws(a_, own_, heads_, draws_, remainders_, sorted_, launch_);
    draws.run();
    find_rows(draws);
    __syncthreads();
    gather_rows();
    __syncthreads();
    write_sums(sharing);
  }

  /// Samples before the tiles of a head; all of the CTA's for head = group.
  __device__ int samples_before(int head) const {
    const int pairs = a_.group * own_.own_tiles;
    const int p = head * own_.own_tiles;
    if (p < pairs) return static_cast<int>(draws_[p].before);
    const TileDraw& last = draws_[pairs - 1];
    return static_cast<int>(last.before + last.end - last.first);
  }

  /// One sample per thread: its tile, and its row in the tile.
  __device__ void find_rows(const Draws& draws) {
    const int pairs = a_.group * own_.own_tiles;
    const int samples = samples_before(a_.group);
#pragma unroll 1
    for (int e = static_cast<int>(threadIdx.x); e < samples; e += Shape::kThreads) {
      int low = 0;  // last pair whose samples begin at or before e
      int high = pairs;
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        (static_cast<int>(draws_[middle].before) <= e ? low : high) = middle;
      }
      const TileDraw& draw = draws_[low];
      const std::uint32_t sample = static_cast<std::uint32_t>(e) - draw.before;
      entries_[e] = (draw.tile << a_.tile_log2) +
                    row_above(prefix_of_tile(draw), units_below(draws, draw, sample));
    }
  }

  /// Prefix sums of a tile.
  __device__ const std::uint32_t* prefix_of_tile(const TileDraw& draw) const {
    const int per_block_log2 = kBlockLog2 - a_.tile_log2;
    const int block = draw.own >> per_block_log2;
    const int inside = draw.own & ((1 << per_block_log2) - 1);
    return prefix_of(a_, shared_, own_index_ + block,
                     own_.team.begin + own_.first + block * own_.step) +
           draw.head * kStashRow + (inside << a_.tile_log2);
  }

  /// A sample takes the first row of its tile whose prefix sum exceeds this.
  __device__ std::uint32_t units_below(const Draws& draws, const TileDraw& draw,
                                       std::uint32_t sample) const {
    const bool budgeted =
        a_.rule == SantaRule::kLargestRemainder || a_.rule == SantaRule::kSystematicBudgets;
    if (!budgeted) {
      const std::uint32_t m = draw.first + sample;
      return units_above(draws.threshold_of(draw.head, m) - draw.start, draw.scale) - 1;
    }
    std::uint32_t offset = heads_[draw.head].offset;
    if (a_.offset_per_tile) {
      offset =
          draws.random_of(draw.head, Purpose::kSampleOffset, static_cast<std::uint32_t>(draw.tile));
    }
    const Strata strata = Strata::of(draw.units, draw.end - draw.first);
    return static_cast<std::uint32_t>(strata.threshold(sample, offset));
  }

  __device__ int row_above(const std::uint32_t* prefix, std::uint32_t units) const {
    int row = 0;
#pragma unroll 1
    for (int step = 1 << a_.tile_log2 >> 1; step > 0; step /= 2) {
      if (prefix[row + step - 1] <= units) row += step;
    }
    return row;
  }

  /// Sums of drawn V rows. A head's samples are shared by the warps that there are for it.
  __device__ void gather_rows() {
    const int parts = 1 << a_.parts_log2;
#pragma unroll 1
    for (int item = warp_; item < a_.group << a_.parts_log2; item += Shape::kWarps) {
      const int head = item >> a_.parts_log2;
      const int part = item & (parts - 1);
      const int begin = samples_before(head);
      const int count = samples_before(head + 1) - begin;
      float sum[kColumns] = {};
      add_rows(sum, head, begin + (count * part >> a_.parts_log2),
               begin + (count * (part + 1) >> a_.parts_log2));
#pragma unroll
      for (int i = 0; i < kColumns; ++i) sums_[item * D + lane_ * kColumns + i] = sum[i];
    }
  }

  /// Each lane looks up one sample's row; rows drawn several times in a row are read once.
  __device__ void add_rows(float (&sum)[kColumns], int head, int begin, int end) {
#pragma unroll 1
    for (int base = begin; base < end; base += kWarp) {
      const int valid = min(kWarp, end - base);
      const std::int32_t row = entries_[base + min(lane_, valid - 1)];
      const std::int32_t left = __shfl_up_sync(0xffffffffu, row, 1);
      std::uint32_t runs = __ballot_sync(0xffffffffu, lane_ < valid && (lane_ == 0 || row != left));
      const std::uint32_t later = runs & ~((2u << lane_) - 1u);
      const int next = later != 0 ? __ffs(static_cast<int>(later)) - 1 : valid;
      const int drawn = (runs >> lane_ & 1) != 0 ? next - lane_ : 0;
      const T* v = row_pointer<T>(a_.step.v, own_.team.sequence, own_.team.kv_head, row);
      if (a_.step.counts != nullptr && drawn > 0) dump(head, row, drawn);
#pragma unroll 1
      while (runs != 0) add_batch(sum, v, static_cast<float>(drawn), runs);
    }
  }

  /// Takes a few runs off `runs`; all their loads are under way at once.
  __device__ void add_batch(float (&sum)[kColumns], const T* v, float drawn,
                            std::uint32_t& runs) const {
    constexpr int kBatch = kSampledRowsAtOnce;
    constexpr int kWords = kColumns / 2;
    std::uint32_t words[kBatch][kWords];
    float count[kBatch];
    const bool inside = lane_ * kColumns < a_.step.head_dim;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int lane = runs != 0 ? __ffs(static_cast<int>(runs)) - 1 : 0;
      const auto* row = reinterpret_cast<const T*>(
          __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(v), lane));
      count[j] = runs != 0 ? __shfl_sync(0xffffffffu, drawn, lane) : 0;
      runs &= runs - 1;
      load_words<kWords>(words[j], inside ? row + lane_ * kColumns : row);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const float2 value = unpack2<T>(words[j][w]);
        if (!inside || count[j] == 0) continue;
        sum[2 * w] = fmaf(count[j], value.x, sum[2 * w]);
        sum[2 * w + 1] = fmaf(count[j], value.y, sum[2 * w + 1]);
      }
    }
  }

  __device__ std::int64_t first_head(const TeamSplit::Team& team) const {
    return std::int64_t{team.sequence} * a_.step.q_heads + team.kv_head * a_.group;
  }

  __device__ void dump(int head, std::int32_t row, int count) const {
    atomicAdd(a_.step.counts + (first_head(own_.team) + head) * a_.step.dump_stride + row,
              static_cast<std::uint32_t>(count));
  }

  /// The warps' sums become the CTA's: output if the team is its own, else a partial result.
  __device__ void write_sums(const Sharing& sharing) {
    const int group = a_.group;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < group * D / 2; i += Shape::kThreads) {
      const int head = 2 * i / D;
      const int column = 2 * i % D;
      float2 sum = {0, 0};
#pragma unroll 1
      for (int p = 0; p < 1 << a_.parts_log2; ++p) {
        const auto part =
            *reinterpret_cast<const float2*>(sums_ + ((head << a_.parts_log2) + p) * D + column);
        sum.x += part.x;
        sum.y += part.y;
      }
      sum.x *= heads_[head].scale;
      sum.y *= heads_[head].scale;
      if (sharing.members == 1) {
        write_output(own_.team, head, column, sum.x);
        write_output(own_.team, head, column + 1, sum.y);
      } else {
        publish(a_.partials.values + sharing.slot * (group * D / 2) + i, __float_as_uint(sum.x),
                __float_as_uint(sum.y), launch_);
      }
    }
  }

  __device__ void add_up_team(const TeamSplit::Team& team, int cta) {
    const Sharing sharing = sharing_of(a_.split, team, cta);
    if (sharing.members == 1) return;
    const TeamSum<D, Shape::kWarps, false> sum(a_.partials, a_.group, sum_, launch_);
    sum.run(sharing, cta, [&](int head, int column, const Weighted& total) {
      write_output(team, head, column, total.value);
    });
  }

  __device__ void write_output(const TeamSplit::Team& team, int head, int column,
                               float value) const {
    if (column >= a_.step.head_dim) return;
    store_output(a_.step, (first_head(team) + head) * a_.step.head_dim + column, value);
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
  std::uint32_t* sorted_;      // [group, a.sorted]
  std::int32_t* entries_;      // rows drawn, by head and row
  OwnBlocks own_;
  int own_index_ = 0;         // the first of them among all blocks of the CTA
  std::uint32_t launch_ = 0;  // this launch's number
};

}  // namespace kvsim::device
