#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/eta/arguments.cuh"
#include "kernels/eta/rule.h"

// Screening: 16 blocks at a time are bounded for all heads of the group by two matrix products,
// of centroids with queries and of squared spreads with squared queries (eq. 7).

namespace kvsim::eta {

/// A group's queries for screening: q and q² in 16 bits, both scaled by powers of two so that no
/// square leaves the range of 16 bits, and what bounds need of the heads that this lane's results
/// belong to, 8 n + 2 (lane % 4) + {0, 1}.
template <typename T, int D, int kHeads8>
struct ScreeningQueries {
  device::QueryFragments<__half, D, kHeads8> q;
  device::QueryFragments<__half, D, kHeads8> squares;
  float unit[kHeads8][2];  // of products with q; its square of those with squares
  float norm[kHeads8][2];
  float threshold[kHeads8][2];

  __device__ void load(const EtaArguments& a, const TeamSplit::Team& team, int lane) {
    const std::int64_t head = device::first_head(a.step, a.group, team);
    device::QueryFragments<T, D, kHeads8> stored;
    stored.load(static_cast<const T*>(a.step.q) + head * a.step.head_dim, a.group, a.step.head_dim,
                lane);
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
      float largest = 0;
      float sum = 0;
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 pair = device::unpack2<T>(stored.r[n][k][half]);
          largest = fmaxf(largest, fmaxf(fabsf(pair.x), fabsf(pair.y)));
          sum += pair.x * pair.x + pair.y * pair.y;
        }
      }
#pragma unroll
      for (int distance = 1; distance < 4; distance *= 2) {  // lanes of the same head
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
      }
      // The power of two at or below the largest element: then no element is above 2.
      const float power = __uint_as_float(max(__float_as_uint(largest), 0x1000000u) & 0x7f800000u);
      scale(stored, n, 1 / power);
      const float root = sqrtf(sum);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int source = 4 * (2 * (lane % 4) + h);
        unit[n][h] = __shfl_sync(0xffffffffu, power, source);
        norm[n][h] = __shfl_sync(0xffffffffu, root, source);
        const int own = min(8 * n + 2 * (lane % 4) + h, a.group - 1);
        threshold[n][h] = a.step.thresholds[head + own];
      }
    }
  }

 private:
  __device__ void scale(const device::QueryFragments<T, D, kHeads8>& stored, int n, float factor) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 pair = device::unpack2<T>(stored.r[n][k][half]);
        const float2 scaled{pair.x * factor, pair.y * factor};
        q.r[n][k][half] = device::pack2<__half>(scaled.x, scaled.y);
        squares.r[n][k][half] = device::pack2<__half>(scaled.x * scaled.x, scaled.y * scaled.y);
      }
    }
  }
};

/// Products of 16 rows' squares with squared queries, as device::score_unit lays them out.
template <int D, int kHeads8>
__device__ inline void square_unit(float (&s)[kHeads8][4], std::uint32_t tile,
                                   const device::QueryFragments<__half, D, kHeads8>& squares,
                                   int lane) {
  using Tile = device::UnitTile<D>;
#pragma unroll
  for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = 0;
  }
  const std::uint32_t first = tile + Tile::offset(lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    device::Fragment4 rows = device::load_matrix(first ^ Tile::flip(2 * k));
#pragma unroll
    for (std::uint32_t& word : rows.r) {
      __half2 pair = *reinterpret_cast<const __half2*>(&word);
      pair = __hmul2(pair, pair);
      word = *reinterpret_cast<const std::uint32_t*>(&pair);
    }
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
      device::multiply_accumulate<__half>(s[n], rows, squares.r[n][k][0], squares.r[n][k][1]);
    }
  }
}

/// One screening warp of a CTA.
template <typename T, typename Shape, bool kTeams>
class Screener {
 public:
  static constexpr int kHeads8 = Shape::kHeads8;
  using Tile = typename Shape::Tile;
  using Queue = typename Shape::Queue;

  __device__ Screener(const EtaArguments& a, char* shared)
      : a_(a),
        queue_(*reinterpret_cast<Queue*>(shared + Shape::kQueue)),
        warp_(static_cast<int>(threadIdx.x - Shape::kWorkers) / device::kWarp),
        lane_(static_cast<int>(threadIdx.x) % device::kWarp),
        tiles_(device::shared_address(shared) + Shape::kScreen +
               warp_ * Shape::kScreenStages * Shape::kScreenBytes),
        norms_(reinterpret_cast<float*>(shared + Shape::kNorms) +
               warp_ * Shape::kScreenStages * kScreenedAtOnce),
        all_heads_((1u << a.group) - 1) {}

  __device__ void run() {
    device::UnitStream<kTeams> units = device::units_of_cta<kTeams>(a_.split);
    while (true) {
      const OwnBlocks own(a_, units);
      screen(own);
      if (kTeams || own.team.end >= units.end) return;
      units.position = own.team.end;
      units.settle(a_.split);
    }
  }

 private:
  static constexpr int kRows = kScreenedAtOnce;

  /// What a tile of 16 blocks came to, as device::score_unit lays scores out.
  using Bounds = float[kHeads8][4];

  /// Of a tile's block number `lane`: which it is, -1 if there is none, and the heads that take it.
  struct Taken {
    int block;
    std::uint32_t heads;
  };

  __device__ void screen(const OwnBlocks& own) {
    queries_.load(a_, own.team, lane_);
    const int team = own.team.sequence * a_.step.kv_heads + own.team.kv_head;
    norms_from_ = a_.records.norms(team);
    rows_from_ = a_.records.rows(team) + lane_ % Tile::kChunks * 8;
    const bool rescues = own.has_first && a_.rescue && may_rescue(own.full, a_.chunk, a_.pinned);
    const int chunk = min(a_.chunk, own.full);
    const bool has_chunk = own.run.skip == 0 && own.run.count >= chunk;
    screen_run(own, own.run, /*tracks=*/rescues && has_chunk, /*takes=*/true);
    // If the CTA has only some blocks of the first chunk, it bounds all of them once more.
    if (rescues && !has_chunk) screen_run(own, {0, 0, 0, chunk}, /*tracks=*/true, /*takes=*/false);
    if (turn_ % Shape::kScreenWarps == warp_) close(own, rescues);
    ++turn_;
  }

  /// All blocks of a run: each warp takes a tile of 16 at a turn, and has the next one under way.
  __device__ void screen_run(const OwnBlocks& own, const BlockRun& run, bool tracks, bool takes) {
    constexpr int kStep = kRows * Shape::kScreenWarps;
    const int turns = (run.count + kRows - 1) / kRows;
    const int first =
        (warp_ - turn_ % Shape::kScreenWarps + Shape::kScreenWarps) % Shape::kScreenWarps;
#pragma unroll 1
    for (int s = 0; s < Shape::kScreenStages; ++s) copy(run, s, first * kRows + s * kStep);
    int stage = 0;
#pragma unroll 1
    for (int t = first; t < turns; t += Shape::kScreenWarps) {
      const int begin = t * kRows;
      Bounds bounds;
      Taken taken;
      taken.block = lane_ < kRows && begin + lane_ < run.count ? run.block(begin + lane_) : -1;
      device::wait_copies<Shape::kScreenStages - 1>();
      __syncwarp();
      bound(bounds, stage);
      taken.heads = heads_of(bounds);
      __syncwarp();
      copy(run, stage, begin + Shape::kScreenStages * kStep);
      stage = stage + 1 == Shape::kScreenStages ? 0 : stage + 1;
      if (takes && a_.step.bounds != nullptr) dump(own, bounds, taken.block);
      if (is_pinned(taken.block, own.full, a_.pinned)) taken.heads = all_heads_;
      if (taken.block < 0) taken.heads = 0;
      queue_.await_turn(turn_ + t);
      if (t == 0) clear_chunk();
      if (tracks) track(bounds, taken);
      if (takes) hand_over(taken);
      queue_.end_turn(turn_ + t);
    }
    device::wait_copies<0>();
    __syncwarp();
    turn_ += turns;
  }

  /// Starts the copies of the records of a run's blocks number `begin` and on.
  __device__ void copy(const BlockRun& run, int stage, int begin) const {
    const std::uint32_t first = tiles_ + stage * Shape::kScreenBytes +
                                Tile::offset(lane_ / Tile::kChunks, lane_ % Tile::kChunks);
    const std::uint64_t policy = device::evict_first_policy();
    const bool inside = lane_ % Tile::kChunks * 8 < a_.step.head_dim;
#pragma unroll
    for (int i = 0; i < kRows / Tile::kRowsAtOnce; ++i) {
      const int row = lane_ / Tile::kChunks + i * Tile::kRowsAtOnce;
      const std::uint32_t target = Tile::further(first, i * Tile::kRowsAtOnce);
      if (begin + row < run.count && inside) {
        const __half* source =
            rows_from_ + std::int64_t{run.block(begin + row)} * (2 * a_.step.head_dim);
        device::copy_async16(target, source, policy);
        device::copy_async16(target + Tile::kBytes, source + a_.step.head_dim, policy);
      } else {
        device::copy_async16_or_zero(target, a_.records.data, false);
        device::copy_async16_or_zero(target + Tile::kBytes, a_.records.data, false);
      }
    }
    if (lane_ < kRows && begin + lane_ < run.count) {
      device::copy_async4(device::shared_address(norms_ + stage * kRows + lane_),
                          norms_from_ + run.block(begin + lane_));
    }
    device::commit_copies();
  }

  __device__ void bound(Bounds& bounds, int stage) const {
    const std::uint32_t tile = tiles_ + stage * Shape::kScreenBytes;
    Bounds variance;
    device::score_unit<__half, Shape::kDim, kHeads8>(bounds, tile, queries_.q, lane_);
    square_unit<Shape::kDim, kHeads8>(variance, tile + Tile::kBytes, queries_.squares, lane_);
    const float norms[2] = {norms_[stage * kRows + lane_ / 4],
                            norms_[stage * kRows + lane_ / 4 + 8]};
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float unit = queries_.unit[n][i % 2];
        bounds[n][i] = block_bound(bounds[n][i] * unit, device::fast_sqrt(variance[n][i]) * unit,
                                   queries_.norm[n][i % 2], norms[i / 2], a_.z, a_.step.scale);
        if (a_.step.logit_cap > 0) bounds[n][i] = device::capped(bounds[n][i], a_.step.logit_cap);
      }
    }
  }

  /// For the block of row `lane` % 16, the heads whose bound passes.
  __device__ std::uint32_t heads_of(const Bounds& bounds) const {
    std::uint32_t heads = 0;
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Bit 4 r + c: row r (of the second eight for i above 1), head 8 n + 2 c + i % 2.
        const std::uint32_t passed =
            __ballot_sync(0xffffffffu, passes(bounds[n][i], queries_.threshold[n][i % 2]));
        const std::uint32_t own = lane_ / 8 % 2 == i / 2 ? passed >> (4 * (lane_ % 8)) : 0;
        const std::uint32_t apart = (own & 1) | (own & 2) << 1 | (own & 4) << 2 | (own & 8) << 3;
        heads |= apart << (8 * n + i % 2);
      }
    }
    return heads & all_heads_;
  }

  __device__ void dump(const OwnBlocks& own, const Bounds& bounds, int block_of_lane) const {
    const std::int64_t first = device::first_head(a_.step, a_.group, own.team);
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int head = 8 * n + 2 * (lane_ % 4) + i % 2;
        const int block = __shfl_sync(0xffffffffu, block_of_lane, lane_ / 4 + 8 * (i / 2));
        if (head >= a_.group || block < 0) continue;
        a_.step.bounds[(first + head) * a_.step.bound_stride + block] = bounds[n][i];
      }
    }
  }

  /// Queues the blocks of lanes that have heads; too few for a unit wait for others.
  __device__ void hand_over(const Taken& taken) {
    ScreeningState& state = queue_.state;
    const std::uint32_t chosen = __ballot_sync(0xffffffffu, taken.heads != 0);
    if (chosen == 0) return;
    const int carried = state.carried;
    const int pieces = carried + __popc(chosen);
    const bool wait = pieces < 1 << max(4 - a_.block_log2, 0);
    Slot* slot = wait ? nullptr : &open_slot();
    Piece* target = wait ? state.carry : slot->pieces;
    if (taken.heads != 0) {
      const int rank = __popc(chosen & ((1u << lane_) - 1));
      target[carried + rank] = {taken.block << a_.block_log2, taken.heads};
    }
    __syncwarp();
    if (!wait) return fill(*slot, pieces, false);
    if (lane_ == 0) state.carried = pieces;
    __syncwarp();
  }

  /// The next slot, with the pieces that waited.
  __device__ Slot& open_slot() {
    const ScreeningState& state = queue_.state;
    Slot& slot = queue_.empty_slot(state.slot);
    if (lane_ < state.carried) slot.pieces[lane_] = state.carry[lane_];
    return slot;
  }

  /// Publishes a slot with so many pieces; what does not fill a unit is left for the next one.
  __device__ void fill(Slot& slot, int pieces, bool last) {
    ScreeningState& state = queue_.state;
    const int unit_pieces_log2 = max(4 - a_.block_log2, 0);
    const int whole = pieces >> unit_pieces_log2;
    const int rest = pieces - (whole << unit_pieces_log2);
    if (lane_ < rest) state.carry[lane_] = slot.pieces[(whole << unit_pieces_log2) + lane_];
    const int number = state.slot;
    const int units = whole << max(a_.block_log2 - 4, 0);
    __syncwarp();
    if (lane_ == 0) {
      slot.first_unit = state.units;
      slot.units = units;
      slot.last = last ? 1 : 0;
      state.units += units;
      state.carried = rest;
      state.slot = number + 1;
    }
    __syncwarp();
    queue_.fill(number);
  }

  __device__ void clear_chunk() {
    if (lane_ < 16) queue_.state.best[lane_] = -INFINITY;
    if (lane_ < 16) queue_.state.best_block[lane_] = 0;
    if (lane_ == 0) queue_.state.attended = 0;
    __syncwarp();
  }

  /// Keeps what the rescue of the first chunk will ask for: turns come in the order of blocks.
  __device__ void track(const Bounds& bounds, const Taken& taken) {
    const bool inside = taken.block >= 0 && taken.block < a_.chunk;
    if (!__any_sync(0xffffffffu, inside)) return;
    ScreeningState& state = queue_.state;
    const std::uint32_t heads = __reduce_or_sync(0xffffffffu, inside ? taken.heads : 0);
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float best = -INFINITY;
        int at = 0x7fffffff;
#pragma unroll
        for (int eight = 0; eight < 2; ++eight) {
          const int block = __shfl_sync(0xffffffffu, taken.block, lane_ / 4 + 8 * eight);
          const float bound = bounds[n][2 * eight + h];
          if (block >= 0 && block < a_.chunk) keep_larger(best, at, bound, block);
        }
#pragma unroll
        for (int distance = 4; distance < device::kWarp; distance *= 2) {
          const float bound = __shfl_xor_sync(0xffffffffu, best, distance);
          const int block = __shfl_xor_sync(0xffffffffu, at, distance);
          keep_larger(best, at, bound, block);
        }
        const int head = 8 * n + 2 * (lane_ % 4) + h;
        if (lane_ < 4 && best > state.best[head]) {
          state.best[head] = best;
          state.best_block[head] = at;
        }
      }
    }
    if (lane_ == 0) state.attended |= heads;
    __syncwarp();
  }

  __device__ static void keep_larger(float& best, int& at, float bound, int block) {
    if (bound > best || (bound == best && block < at)) {
      best = bound;
      at = block;
    }
  }

  /// The team's last slot: what waited, blocks that are rescued, and the tail.
  __device__ void close(const OwnBlocks& own, bool rescues) {
    queue_.await_turn(turn_);
    Slot& slot = open_slot();
    int pieces = queue_.state.carried;
    __syncwarp();
    if (rescues) pieces = rescue(slot, pieces);
    if (own.has_tail && own.context > own.full << a_.block_log2) {
      if (lane_ == 0) slot.pieces[pieces] = {own.full << a_.block_log2, all_heads_};
      ++pieces;
    }
    const int unit_pieces = 1 << max(4 - a_.block_log2, 0);
    const int padded = (pieces + unit_pieces - 1) / unit_pieces * unit_pieces;
    if (lane_ < padded - pieces) slot.pieces[pieces + lane_] = {};
    __syncwarp();
    fill(slot, padded, true);
    queue_.end_turn(turn_);
  }

  /// Heads that attend to no block of the first chunk take the one of their largest bound there.
  __device__ int rescue(Slot& slot, int pieces) {
    const ScreeningState& state = queue_.state;
    const std::uint32_t missing = all_heads_ & ~state.attended;
    // Lane h: head h takes best_block[h], with all heads that take the same.
    const bool takes = lane_ < a_.group && (missing >> lane_ & 1) != 0;
    const int block = takes ? state.best_block[lane_] : -1 - lane_;
    const std::uint32_t same = __match_any_sync(0xffffffffu, block);
    const bool leads = takes && (same & ((1u << lane_) - 1)) == 0;
    const std::uint32_t leaders = __ballot_sync(0xffffffffu, leads);
    if (leads) {
      slot.pieces[pieces + __popc(leaders & ((1u << lane_) - 1))] = {block << a_.block_log2, same};
    }
    __syncwarp();
    return pieces + __popc(leaders);
  }

  const EtaArguments& a_;
  Queue& queue_;
  int warp_;
  int lane_;
  std::uint32_t tiles_;                // stages of centroids and spreads
  float* norms_;                       // [stages, 16]
  const __half* rows_from_ = nullptr;  // of the team, this lane's first chunk
  const float* norms_from_ = nullptr;
  std::uint32_t all_heads_;
  int turn_ = 0;  // turns before this run's
  ScreeningQueries<T, Shape::kDim, kHeads8> queries_;
};

}  // namespace kvsim::eta
