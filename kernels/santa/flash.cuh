#pragma once

#include <cstdint>

#include "kernels/santa/arguments.cuh"
#include "kernels/santa/drawn_rows.cuh"
#include "kernels/santa/prefix_sums.cuh"

// santa-flash: finishing warps draw a block's samples as soon as its scores are there, and add up
// their V rows while further keys stream in. The softmax state of dense attention (a reference and
// a sum of weights) goes with the sums, so that tiles need not know each other.

namespace kvsim::device {

struct FlashArguments : StreamArguments {
  std::uint32_t samples = 2048;
  std::int32_t sharers = 1;  // warps that take a head's blocks in turn, a power of two
  bool offset_per_tile = false;
  bool shared_offsets = false;  // a group's heads draw the same random words
};

/// As many finishing warps as streaming ones.
template <int D, int kHeads8, bool kLarge>
struct FlashShape : StreamShape<D, kHeads8, kLarge> {
  using Base = StreamShape<D, kHeads8, kLarge>;
  static constexpr int kFinishWarps = device::kFinishWarps;
  static constexpr int kFinishers = kFinishWarps * kWarp;
  static constexpr int kThreads = Base::kWorkers + kFinishers;
  static constexpr int kHeadsPerWarp = kHeads8;
  static constexpr int kSlots = kFinishWarps * kHeadsPerWarp;  // sums of a head by a warp
};

/// Shared memory behind the ring, for host (sizes) and device.
template <typename Shape>
struct FlashLayout {
  static constexpr int kQueues = Shape::kRingBytes;
  // Each head of a warp has two, for rows that are under way and those drawn meanwhile.
  static constexpr int kSums =
      kQueues + 2 * Shape::kSlots * kWarp * static_cast<int>(sizeof(DrawnRow));
  static constexpr int kWeights = kSums + Shape::kSlots * Shape::kDim * 4;
  static constexpr int kBytes = kWeights + Shape::kSlots * 8;
};

inline constexpr int kMostTiles = 1 << 16;

/// Samples of a team's tiles (even_budget): S = whole * tiles + rest.
struct EvenBudgets {
  std::uint32_t tiles;
  std::uint32_t whole;
  std::uint32_t rest;

  __device__ static EvenBudgets of(std::uint32_t tiles, std::uint32_t samples) {
    if (samples < tiles) return {tiles, 1, 0};  // one each
    return {tiles, samples / tiles, samples % tiles};
  }
  /// Samples of the tiles before one.
  __device__ std::uint32_t before(std::uint32_t tile) const {
    return tile * whole + (rest == 0 ? 0 : tile * rest / tiles);
  }
};

/// A finishing warp's part (a Finish of KeyStream).
template <typename T, typename Shape, bool kTeams>
class FlashDraws {
 public:
  static constexpr int D = Shape::kDim;
  using Arguments = FlashArguments;

  __device__ FlashDraws(const Arguments& arguments, char* shared)
      : a_(arguments),
        warp_(static_cast<int>(threadIdx.x) / kWarp - Shape::kWarps),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        head_(warp_ % min(a_.group, Shape::kFinishWarps)),
        turn_(warp_ / min(a_.group, Shape::kFinishWarps)),
        sums_(reinterpret_cast<float*>(shared + FlashLayout<Shape>::kSums)),
        weights_(reinterpret_cast<float2*>(shared + FlashLayout<Shape>::kWeights)),
        queues_(reinterpret_cast<DrawnRow*>(shared + FlashLayout<Shape>::kQueues)),
        rows_(a_.step, a_.group, lane_) {}

  /// What of a block does not depend on its scores is done before they are there.
  template <typename Blocks>
  __device__ bool takes(const Blocks& blocks, int index) {
    if (turn_ >= a_.sharers || (index & (a_.sharers - 1)) != turn_) return false;
    if (!open_) begin_team(blocks.team);
    const int tiles_log2 = kBlockLog2 - a_.tile_log2;
    const int first = (blocks.position - blocks.team.begin) << tiles_log2;
    tiles_.first = first;
    tiles_.count = min(1 << tiles_log2, static_cast<int>(budgets_.tiles) - first);
    tiles_.before = budgets_.before(static_cast<std::uint32_t>(first + min(lane_, tiles_.count)));
    return true;
  }

  template <typename Blocks>
  __device__ void block(const StreamShared& shared, const Blocks& blocks, int index,
                        std::uint32_t) {
    std::uint32_t* scores = scores_of(a_, shared, index);
#pragma unroll
    for (int j = 0; j < Shape::kHeadsPerWarp; ++j) {
      const int head = head_ + j * Shape::kFinishWarps;
      if (head < a_.group) draw(state_[j], scores + head * kStashRow, blocks.team, head);
    }
  }

  /// The warps' sums become the CTA's: output if the team is its own, else a partial result.
  __device__ void close(const TeamSplit::Team& team, std::uint32_t launch) {
#pragma unroll
    for (int j = 0; j < Shape::kHeadsPerWarp; ++j) write_state(state_[j], j);
    sync_finishers();
    const Sharing sharing = sharing_of<kTeams>(a_.split, a_.partials, team);
    const int thread = static_cast<int>(threadIdx.x) - Shape::kWorkers;
#pragma unroll 1
    for (int i = thread; i < a_.group * D / 2; i += Shape::kFinishers) {
      const int head = 2 * i / D;
      const WeightedPair total = total_of(head, 2 * i % D);
      if (sharing.members == 1) {
        write_weighted(a_.step, a_.group, team, head, 2 * i % D, total);
        continue;
      }
      publish(a_.partials.values + sharing.slot * (a_.group * D / 2) + i, __float_as_uint(total.a),
              __float_as_uint(total.b), launch);
      if (2 * i % D == 0) {
        publish(a_.partials.weights + sharing.slot * a_.group + head, __float_as_uint(total.sum),
                __float_as_uint(total.highest), launch);
      }
    }
    if constexpr (!kTeams) sync_finishers();  // the next team's sums take their place
    open_ = false;
  }

 private:
  using Rows = DrawnRows<T, D, sampled_rows_at_once(D, Shape::kMostGroup)>;

  /// A head's sum of rows, in units of 2^highest, and what is still to be added.
  struct State {
    typename Rows::Sum sum = {};
    float mass = 0;  // of the tiles that this lane is the last of
    float highest = -INFINITY;
    std::uint32_t offset = 0;   // 24 random bits, for all samples of the head
    DrawnRow* queue = nullptr;  // to be filled next
    typename Rows::Batch pending;
  };

  /// Tiles of a block.
  struct Tiles {
    int first;
    int count;
    std::uint32_t before;  // samples before this lane's tile of them
  };

  __device__ void begin_team(const TeamSplit::Team& team) {
    open_ = true;
    context_ = context_of<kTeams>(a_.step, team.sequence);
    const int tiles = (context_ + (1 << a_.tile_log2) - 1) >> a_.tile_log2;
    budgets_ = EvenBudgets::of(static_cast<std::uint32_t>(tiles), a_.samples);
#pragma unroll
    for (int j = 0; j < Shape::kHeadsPerWarp; ++j) {
      state_[j].offset = offset_of(team, head_ + j * Shape::kFinishWarps, 0);
      state_[j].queue = queues_ + (j * Shape::kFinishWarps + warp_) * kWarp;
    }
  }

  __device__ static void sync_finishers() { sync_some(Shape::kFinishers); }

  __device__ std::uint32_t offset_of(const TeamSplit::Team& team, int head,
                                     std::uint32_t tile) const {
    const int drawing = team.kv_head * a_.group + (a_.shared_offsets ? 0 : head);
    return random24(a_.step.random, team.sequence, drawing, Purpose::kSampleOffset, tile);
  }

  /// Moves the reference up to `highest`.
  __device__ static void raise(State& state, float highest) {
    const float factor = rescale(state.highest, highest);
    state.highest = highest;
    state.mass *= factor;
#pragma unroll
    for (int i = 0; i < Rows::kColumns; ++i) state.sum[i] *= factor;
  }

  /// Samples of a block's tiles under one head. Rows of the block before are added when this one's
  /// prefix sums are done: until then they are under way.
  __device__ void draw(State& state, std::uint32_t* scores, const TeamSplit::Team& team, int head) {
    const TilePart part = PrefixSums::sum_up(a_.tile_log2, scores, scores, lane_);
    __syncwarp();
    rows_.add(state.sum, state.pending);
    state.pending.rows = 0;
    const float mass = weigh(state, part);
    const std::uint32_t stop = __shfl_sync(0xffffffffu, tiles_.before, tiles_.count);
#pragma unroll 1
    for (std::uint32_t sample = __shfl_sync(0xffffffffu, tiles_.before, 0); sample < stop;
         sample += kWarp) {
      const std::uint32_t mine = min(sample + static_cast<std::uint32_t>(lane_), stop - 1);
      int tile = 0;
      for (int i = 1; i < tiles_.count; ++i) {
        tile += __shfl_sync(0xffffffffu, tiles_.before, i) <= mine ? 1 : 0;
      }
      const std::uint32_t before = __shfl_sync(0xffffffffu, tiles_.before, tile);
      const std::uint32_t count = __shfl_sync(0xffffffffu, tiles_.before, tile + 1) - before;
      const int last = ((tile + 1) << (a_.tile_log2 - kLaneTokensLog2)) - 1;  // lane of the tile
      const std::uint32_t units = __shfl_sync(0xffffffffu, part.through, last);
      const float share = __shfl_sync(0xffffffffu, mass, last) / static_cast<float>(count);
      std::uint32_t offset = state.offset;
      if (a_.offset_per_tile) {
        offset = offset_of(team, head, static_cast<std::uint32_t>(tiles_.first + tile));
      }
      const std::uint32_t threshold = tile_threshold(units, count, mine - before, offset);
      const int row = ((tiles_.first + tile) << a_.tile_log2) +
                      rows_below(scores + (tile << a_.tile_log2), a_.tile_log2, threshold + 1);
      const bool drawn = sample + static_cast<std::uint32_t>(lane_) < stop && units > 0;
      // Scores that are not numbers may exceed all sums: never a row past the context.
      add_rows(state, team, head, drawn ? min(row, context_ - 1) : -1, share);
    }
  }

  /// Returns the mass of this lane's tile, in units of e^reference, up to the lane.
  __device__ float weigh(State& state, const TilePart& part) const {
    const int lanes = 1 << (a_.tile_log2 - kLaneTokensLog2);
    float highest = part.highest * kLog2e;
#pragma unroll 1
    for (int distance = lanes; distance < kWarp; distance *= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, distance));
    }
    if (highest > state.highest) raise(state, highest);
    const float mass = static_cast<float>(part.through) * 0x1p-23f *
                       rescale(part.highest * kLog2e, fmaxf(state.highest, -FLT_MAX));
    if ((lane_ & (lanes - 1)) == lanes - 1) state.mass += mass;
    return mass;
  }

  /// Adds rows up but for the last batch, which stays under way.
  __device__ void add_rows(State& state, const TeamSplit::Team& team, int head, int row,
                           float share) {
    const int queued = rows_.fill(state.queue, team, head, row, share);
#pragma unroll 1
    for (int base = 0; base < queued; base += Rows::kRowsAtOnce) {
      rows_.add(state.sum, state.pending);
      rows_.load(state.pending, state.queue + base, queued - base);
    }
    constexpr int kOther = Shape::kSlots * kWarp;
    state.queue += state.queue - queues_ < kOther ? kOther : -kOther;
  }

  __device__ void write_state(State& state, int j) {
    rows_.add(state.sum, state.pending);
    float mass = state.mass;
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      mass += __shfl_xor_sync(0xffffffffu, mass, distance);
    }
    const int slot = j * Shape::kFinishWarps + warp_;
    if (lane_ == 0) weights_[slot] = {state.highest, mass};
    rows_.write(state.sum, sums_ + slot * D);
    state = State();
  }

  /// Two columns of a head, over the warps that shared its blocks.
  __device__ WeightedPair total_of(int head, int column) const {
    WeightedPair total{0, 0, 0, -INFINITY};
    for (int turn = 0; turn < a_.sharers; ++turn) {
      total.highest = fmaxf(total.highest, weights_[turn * a_.group + head].x);
    }
    for (int turn = 0; turn < a_.sharers; ++turn) {
      const int slot = turn * a_.group + head;
      const float factor = rescale(weights_[slot].x, total.highest);
      const auto part = *reinterpret_cast<const float2*>(sums_ + slot * D + column);
      total.a += factor * part.x;
      total.b += factor * part.y;
      total.sum += factor * weights_[slot].y;
    }
    return total;
  }

  const FlashArguments& a_;
  int warp_;  // of the finishing ones
  int lane_;
  int head_;
  int turn_;
  float* sums_;       // [slots, D]
  float2* weights_;   // [slots]: reference and mass
  DrawnRow* queues_;  // [2, slots, 32]
  Rows rows_;
  State state_[Shape::kHeadsPerWarp];
  bool open_ = false;  // a team, of which:
  int context_ = 0;
  EvenBudgets budgets_{};
  Tiles tiles_{};  // of the block at hand
};

}  // namespace kvsim::device
