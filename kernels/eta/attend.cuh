#pragma once

#include <cstdint>

#include "kernels/eta/arguments.cuh"
#include "kernels/eta/rule.h"

// Attending warps: dense attention's stream of units of 16 rows, where a queue says which.

namespace kvsim::eta {

/// A logit behind its gate (eq. 3, appendix C), in log2, as `slope`, β times the threshold; for
/// weights that no selection depends on.
__device__ inline float gated(float logit, float slope, Gate gate) {
  const float shut = device::fast_exp2(fmaf(-kGateSlope, logit, slope));
  const float open = device::fast_inverse(1.0f + shut);
  if (gate == Gate::kMultiplicative) return logit * open;
  return gate == Gate::kNone ? logit : fmaf(kAdditiveGate * device::kLog2e, open - 1.0f, logit);
}

/// Copies the rows of units, wherever their pieces lie.
template <typename T, int D>
class PieceReader {
 public:
  using Tile = device::UnitTile<D>;

  __device__ PieceReader(const KvTensor& tensor, const DeviceStep& step, int lane)
      : tensor_(tensor),
        whole_(tensor, step.head_dim, lane, device::evict_first_policy()),
        inside_(lane % Tile::kChunks * 8 < step.head_dim) {}

  __device__ void begin(const TeamSplit::Team& team) {
    team_ = team;
    first_row_ = static_cast<const T*>(tensor_.data) +
                 std::int64_t{team.sequence} * tensor_.sequence_stride +
                 team.kv_head * tensor_.head_stride;
  }

  /// A unit of 16 rows that follow each other, those before `context`.
  __device__ void copy(int token, int context, std::uint32_t tile) {
    if (tensor_.pages != nullptr) {
      whole_.seek(team_.sequence, team_.kv_head, token < context ? token : 0);
    } else {
      whole_.point_to(first_row_ + std::int64_t{token} * tensor_.token_stride);
    }
    whole_.copy(tile, context - token);
  }

  /// A unit of shorter pieces.
  __device__ void copy(const Piece* pieces, int block_log2, int context, std::uint32_t tile,
                       int lane) const {
    const std::uint64_t policy = device::evict_first_policy();
#pragma unroll
    for (int i = 0; i < device::kUnitTokens / Tile::kRowsAtOnce; ++i) {
      const int row = lane / Tile::kChunks + i * Tile::kRowsAtOnce;
      const int first = pieces[row >> block_log2].token;
      const int token = first + (row & ((1 << block_log2) - 1));
      const std::uint32_t target = tile + Tile::offset(row, lane % Tile::kChunks);
      if (first >= 0 && token < context && inside_) {
        const T* source = device::row_pointer<T>(tensor_, team_.sequence, team_.kv_head, token);
        device::copy_async16(target, source + lane % Tile::kChunks * 8, policy);
      } else {
        device::copy_async16_or_zero(target, tensor_.data, false);
      }
    }
  }

 private:
  const KvTensor& tensor_;
  device::UnitReader<T, D> whole_;
  bool inside_;
  TeamSplit::Team team_;
  const T* first_row_ = nullptr;
};

template <typename T, typename Shape, bool kTeams>
class Attender {
 public:
  static constexpr int kHeads8 = Shape::kHeads8;
  static constexpr int kDim = Shape::kDim;
  using Tile = typename Shape::Tile;
  using Queue = typename Shape::Queue;

  __device__ Attender(const EtaArguments& a, char* shared)
      : a_(a),
        queue_(*reinterpret_cast<Queue*>(shared + Shape::kQueue)),
        scratch_(reinterpret_cast<device::WeightedPair*>(shared)),
        merge_(a.partials, a.step, a.group, shared + Shape::kScratch, Shape::Merge::kWarpFloats,
               shared + Shape::kWeights),
        warp_(static_cast<int>(threadIdx.x) / device::kWarp),
        lane_(static_cast<int>(threadIdx.x) % device::kWarp),
        ring_(device::shared_address(shared) +
              static_cast<std::uint32_t>(warp_ * Shape::kStages * Shape::kStageBytes)),
        staged_(reinterpret_cast<StagedUnit*>(shared + Shape::kStaged) + warp_ * Shape::kStages),
        pieces_log2_(max(4 - a.block_log2, 0)),
        units_log2_(max(a.block_log2 - 4, 0)),
        plain_(a.gate == Gate::kMultiplicative && a.step.logit_cap <= 0 &&
               a.step.scores == nullptr),
        keys_(a.step.k, a.step, lane_),
        values_(a.step.v, a.step, lane_) {}

  __device__ void run(unsigned long long launches) {
    const device::UnitStream<kTeams> share = device::units_of_cta<kTeams>(a_.split);
    end_ = share.end;
    TeamSplit::Team team = share.team;
    const TeamSplit::Team first = team;
    begin_ahead(team);
    load_queries(team);
#pragma unroll 1
    for (int s = 0; s < Shape::kStages; ++s) refill(s);
    const std::uint32_t launch = device::LaunchCounter::number(launches);
    int stage = 0;
    while (true) {
      const device::Sharing sharing = device::sharing_of<kTeams>(a_.split, a_.partials, team);
      sums_.clear(kNothingSeen);
      context_ = device::context_of<kTeams>(a_.step, team.sequence);
      while (kind_of(stage) == kUnit) {
        attend(team, stage);
        stage = next_stage(stage);
      }
      refill(stage);
      stage = next_stage(stage);
      const bool more = !kTeams && team.end < end_;
      if (more) load_queries(a_.split.next(team));  // under way while the warps merge
      device::sync_workers<Shape::kWorkers>();      // the team before may still be read
      merge_.merge_warps(sums_, team, sharing, launch);
      if (!more) break;
      team = a_.split.next(team);
      ++merged_;
      stalled_ = false;
      for (int s = 0; s < Shape::kStages; ++s) {
        if (kind_of(stage) == kNone) refill(stage);
        stage = next_stage(stage);
      }
    }
    device::wait_copies<0>();
    device::sync_workers<Shape::kWorkers>();  // the ring becomes scratch
    merge_.template merge_cut_teams<kTeams>(a_.split, first, team, scratch_, launch);
    device::sync_workers<Shape::kWorkers>();
    if (threadIdx.x == 0) a_.partials.launches.leave(a_.split.ctas);
  }

 private:
  /// Below every score, so that a head may attend to none of a unit's rows.
  static constexpr float kNothingSeen = -1e30f;

  __device__ void load_queries(const TeamSplit::Team& team) {
    const std::int64_t head = device::first_head(a_.step, a_.group, team);
    queries_.load(static_cast<const T*>(a_.step.q) + head * a_.step.head_dim, a_.group,
                  a_.step.head_dim, lane_);
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int own = min(8 * n + 2 * (lane_ % 4) + h, a_.group - 1);
        slopes_[n][h] = kGateSlope * device::kLog2e * a_.step.thresholds[head + own];
      }
    }
  }

  __device__ static int next_stage(int stage) {
    return stage + 1 == Shape::kStages ? 0 : stage + 1;
  }

  /// What a stage holds. kEnd: no more units of its team; kNone: nothing yet, or no more at all.
  enum Kind : std::uint32_t { kUnit, kEnd, kNone };

  __device__ std::uint32_t kind_of(int stage) const { return kinds_ >> (2 * stage) & 3; }

  __device__ void refill(int stage) {
    take(stage);
    copy_keys(stage);
    copy_values(stage);
  }

  /// The warp's next unit, from the queue, for a stage.
  __device__ void take(int stage) {
    __syncwarp();  // all have read what was there
    std::uint32_t kind = kNone;
    while (!exhausted_ && !stalled_) {
      if (!in_slot_) {
        // A warp that waits for the others at a team's end may hold the slot that they would wait
        // for: nobody waits for a team before the last one is merged.
        // (All lanes must agree on what they saw.)
        stalled_ = !kTeams && ends_ > merged_ && !__all_sync(0xffffffffu, queue_.is_filled(turn_));
        if (stalled_) break;
        enter();
      }
      if (next_ < units_) {
        take_pieces(staged_[stage]);
        next_ += Shape::kWarps;
        kind = kUnit;
        break;
      }
      if (!leave()) continue;
      kind = kEnd;
      break;
    }
    kinds_ = (kinds_ & ~(3u << (2 * stage))) | kind << (2 * stage);
    __syncwarp();
  }

  __device__ void take_pieces(StagedUnit& unit) {
    const Piece* pieces = slot_->pieces + (next_ >> units_log2_ << pieces_log2_);
    Piece piece;
    if (lane_ >> pieces_log2_ == 0) {
      piece = pieces[lane_];
      piece.token += (next_ & ((1 << units_log2_) - 1)) * device::kUnitTokens;
      unit.pieces[lane_] = piece;
    }
    token_ = __shfl_sync(0xffffffffu, piece.token, 0);  // where there is one
  }

  __device__ void enter() {
    slot_ = &queue_.filled_slot(turn_);
    int4 head{};  // first unit, units, whether the team ends
    if (lane_ == 0) head = *reinterpret_cast<const int4*>(slot_);
    next_ = (warp_ - __shfl_sync(0xffffffffu, head.x, 0)) & (Shape::kWarps - 1);
    units_ = __shfl_sync(0xffffffffu, head.y, 0);
    last_ = __shfl_sync(0xffffffffu, head.z, 0) != 0;
    in_slot_ = true;
    if (kTeams || !next_team_) return;
    next_team_ = false;
    begin_ahead(a_.split.next(ahead_));
  }

  /// Goes on to the next slot; true if the team ends with this one.
  __device__ bool leave() {
    if (lane_ < kUnitPieces) queue_.leave(turn_);
    ++turn_;
    in_slot_ = false;
    if (!last_) return false;
    exhausted_ = kTeams || ahead_.end >= end_;
    next_team_ = true;
    ++ends_;
    return true;
  }

  __device__ void begin_ahead(const TeamSplit::Team& team) {
    ahead_ = team;
    ahead_context_ = device::context_of<kTeams>(a_.step, team.sequence);
    keys_.begin(team);
    values_.begin(team);
  }

  // A unit's keys and values are copied as groups of their own, each as soon as its place is free.

  __device__ void copy_keys(int stage) {
    if (kind_of(stage) == kUnit) copy(keys_, stage, tile_of(stage));
    device::commit_copies();
  }

  __device__ void copy_values(int stage) {
    if (kind_of(stage) == kUnit) copy(values_, stage, tile_of(stage) + Tile::kBytes);
    device::commit_copies();
  }

  __device__ void copy(PieceReader<T, kDim>& reader, int stage, std::uint32_t tile) {
    if (pieces_log2_ == 0) return reader.copy(token_, ahead_context_, tile);
    reader.copy(staged_[stage].pieces, a_.block_log2, ahead_context_, tile, lane_);
  }

  __device__ std::uint32_t tile_of(int stage) const {
    return ring_ + static_cast<std::uint32_t>(stage * Shape::kStageBytes);
  }

  /// Of this lane's rows of a unit, lane / 4 and lane / 4 + 8.
  struct Rows {
    int token[2];  // -1: none
    std::uint32_t heads[2];
  };

  __device__ Rows rows_of(const StagedUnit& unit) const {
    const int log2 = 4 - pieces_log2_;
    Rows rows;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane_ / 4 + 8 * i;
      const Piece piece = unit.pieces[row >> log2];
      const int token = piece.token + (row & ((1 << log2) - 1));
      rows.token[i] = piece.token >= 0 && token < context_ ? token : -1;
      rows.heads[i] = rows.token[i] < 0 ? 0 : piece.heads >> (2 * (lane_ % 4));
    }
    return rows;
  }

  __device__ void attend(const TeamSplit::Team& team, int stage) {
    constexpr int kGroupsAfter = 2 * Shape::kStages - 1;
    const std::uint32_t tile = tile_of(stage);
    const Rows rows = rows_of(staged_[stage]);
    float s[kHeads8][4];
    device::wait_copies<kGroupsAfter>();
    __syncwarp();
    device::score_unit<T, kDim, kHeads8>(s, tile, queries_, lane_);
    take(stage);
    copy_keys(stage);
    if (plain_) {
      weigh(s, rows);
    } else {
      weigh_any(s, rows, team);
    }
    device::wait_copies<kGroupsAfter>();
    __syncwarp();
    sums_.template add<T>(s, tile + Tile::kBytes, lane_);
    __syncwarp();
    copy_values(stage);
  }

  /// Products become gated logits, in log2, of the heads that attend to a row. The current token
  /// bypasses the gate (eq. 3).
  __device__ void weigh(float (&s)[kHeads8][4], const Rows& rows) const {
    const float scale = a_.step.scale * device::kLog2e;
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float logit = s[n][i] * scale;
        const float after = gated(logit, slopes_[n][i % 2], Gate::kMultiplicative);
        const bool attends = (rows.heads[i / 2] >> (8 * n + i % 2) & 1) != 0;
        const float weight = rows.token[i / 2] + 1 == context_ ? logit : after;
        s[n][i] = attends ? weight : -INFINITY;
      }
    }
  }

  /// The same for every gate, with a cap of logits, and with dumps.
  __device__ void weigh_any(float (&s)[kHeads8][4], const Rows& rows,
                            const TeamSplit::Team& team) const {
    const float scale = a_.step.scale * device::kLog2e;
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = rows.token[i / 2];
        const float product = s[n][i];
        s[n][i] = -INFINITY;
        if ((rows.heads[i / 2] >> (8 * n + i % 2) & 1) == 0) continue;
        const float capped = device::capped(product * a_.step.scale, a_.step.logit_cap);
        if (a_.step.scores != nullptr) dump(team, 8 * n + 2 * (lane_ % 4) + i % 2, token, capped);
        const float logit = a_.step.logit_cap > 0 ? capped * device::kLog2e : product * scale;
        s[n][i] = token + 1 == context_ ? logit : gated(logit, slopes_[n][i % 2], a_.gate);
      }
    }
  }

  __device__ void dump(const TeamSplit::Team& team, int head, int token, float logit) const {
    const std::int64_t at =
        (device::first_head(a_.step, a_.group, team) + head) * a_.step.dump_stride + token;
    a_.step.scores[at] = logit;
    a_.step.counts[at] += 1;
  }

  const EtaArguments& a_;
  Queue& queue_;
  device::WeightedPair* scratch_;  // the ring, when it is empty
  typename Shape::Merge merge_;
  int warp_;
  int lane_;
  std::uint32_t ring_;
  StagedUnit* staged_;       // [kStages]
  int pieces_log2_;          // of a unit
  int units_log2_;           // of a piece
  bool plain_;               // the gate of the method, no cap, no dumps
  std::uint32_t kinds_ = 0;  // of the stages, two bits each
  int end_ = 0;              // of the CTA's share
  int context_ = 0;
  TeamSplit::Team ahead_;  // of the unit that was taken last
  int ahead_context_ = 0;
  int turn_ = 0;  // slot that units are taken from
  const Slot* slot_ = nullptr;
  int units_ = 0;      // of that slot
  int next_ = 0;       // the warp's next one
  int token_ = 0;      // first row of the unit that was taken last, if it is of one piece
  bool last_ = false;  // of its team
  bool in_slot_ = false;
  bool next_team_ = false;
  bool stalled_ = false;
  bool exhausted_ = false;
  int ends_ = 0;    // of teams, that were taken
  int merged_ = 0;  // teams
  PieceReader<T, kDim> keys_;
  PieceReader<T, kDim> values_;
  float slopes_[kHeads8][2];  // β times the heads' thresholds, in log2
  device::QueryFragments<T, kDim, kHeads8> queries_;
  device::Accumulator<kDim, kHeads8> sums_;
};

}  // namespace kvsim::eta
