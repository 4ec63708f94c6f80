#pragma once

#include <cstdint>

#include "kernels/eta/arguments.cuh"
#include "kernels/eta/rule.h"

// Attending warps: dense attention's stream of units of 16 rows, where a queue says which.

namespace kvsim::eta {

/// A logit behind its gate (eq. 3, appendix C); for weights that no selection depends on.
__device__ inline float gated(float logit, float threshold, Gate gate) {
  if (gate == Gate::kNone) return logit;
  const float opens =
      __fdividef(1.0f, 1.0f + device::fast_exp2(kGateSlope * device::kLog2e * (threshold - logit)));
  return gate == Gate::kMultiplicative ? logit * opens : logit + kAdditiveGate * (opens - 1.0f);
}

/// Copies the rows of a staged unit, wherever its pieces lie.
template <typename T, int D>
class PieceReader {
 public:
  using Tile = device::UnitTile<D>;

  __device__ PieceReader(const KvTensor& tensor, const DeviceStep& step, int lane)
      : tensor_(tensor),
        whole_(tensor, step.head_dim, lane, device::evict_first_policy()),
        policy_(device::evict_first_policy()),
        lane_(lane),
        inside_(lane % Tile::kChunks * 8 < step.head_dim) {}

  __device__ void copy(const StagedUnit& unit, int block_log2, const TeamSplit::Team& team,
                       int context, std::uint32_t tile) {
    if (block_log2 < 4) return copy_pieces(unit, block_log2, team, context, tile);
    const int token = unit.pieces[0].token;
    whole_.seek(team.sequence, team.kv_head, token < context ? token : 0);
    whole_.copy(tile, context - token);
  }

 private:
  __device__ void copy_pieces(const StagedUnit& unit, int block_log2, const TeamSplit::Team& team,
                              int context, std::uint32_t tile) const {
#pragma unroll
    for (int i = 0; i < device::kUnitTokens / Tile::kRowsAtOnce; ++i) {
      const int row = lane_ / Tile::kChunks + i * Tile::kRowsAtOnce;
      const int first = unit.pieces[row >> block_log2].token;
      const int token = first + (row & ((1 << block_log2) - 1));
      const std::uint32_t target = tile + Tile::offset(row, lane_ % Tile::kChunks);
      if (first >= 0 && token < context && inside_) {
        const T* source = device::row_pointer<T>(tensor_, team.sequence, team.kv_head, token);
        device::copy_async16(target, source + lane_ % Tile::kChunks * 8, policy_);
      } else {
        device::copy_async16_or_zero(target, tensor_.data, false);
      }
    }
  }

  const KvTensor& tensor_;
  device::UnitReader<T, D> whole_;
  std::uint64_t policy_;
  int lane_;
  bool inside_;
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
        keys_(a.step.k, a.step, lane_),
        values_(a.step.v, a.step, lane_) {}

  __device__ void run(unsigned long long launches) {
    const device::UnitStream<kTeams> share = device::units_of_cta<kTeams>(a_.split);
    end_ = share.end;
    TeamSplit::Team team = share.team;
    const TeamSplit::Team first = team;
    ahead_ = team;
    load_queries(team);
#pragma unroll 1
    for (int s = 0; s < Shape::kStages; ++s) refill(s);
    const std::uint32_t launch = device::LaunchCounter::number(launches);
    int stage = 0;
    while (true) {
      const device::Sharing sharing = device::sharing_of<kTeams>(a_.split, a_.partials, team);
      sums_.clear(kNothingSeen);
      context_ = device::context_of<kTeams>(a_.step, team.sequence);
      while (staged_[stage].kind == StagedUnit::kUnit) {
        attend(team, stage);
        stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
      }
      refill(stage);
      stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
      device::sync_workers<Shape::kWorkers>();  // the team before may still be read
      merge_.merge_warps(sums_, team, sharing, launch);
      if (kTeams || team.end >= end_) break;
      team = a_.split.next(team);
      load_queries(team);
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
        thresholds_[n][h] = a_.step.thresholds[head + own];
      }
    }
  }

  __device__ void refill(int stage) {
    take(staged_[stage]);
    copy_keys(stage);
    copy_values(stage);
  }

  /// The warp's next unit, from the queue.
  __device__ void take(StagedUnit& unit) {
    __syncwarp();  // all have read what was there
    StagedUnit::Kind kind = StagedUnit::kNone;
    while (!exhausted_) {
      if (!in_slot_) enter();
      const Slot& slot = queue_.slots[turn_ % kSlots];
      if (next_ < slot.units) {
        const int pieces = 1 << max(4 - a_.block_log2, 0);
        const int piece_units_log2 = max(a_.block_log2 - 4, 0);
        if (lane_ < pieces) {
          Piece piece = slot.pieces[(next_ >> piece_units_log2) * pieces + lane_];
          piece.token += (next_ & ((1 << piece_units_log2) - 1)) * device::kUnitTokens;
          unit.pieces[lane_] = piece;
        }
        next_ += Shape::kWarps;
        kind = StagedUnit::kUnit;
        break;
      }
      const bool last = slot.last != 0;
      __syncwarp();
      if (lane_ == 0) queue_.leave(turn_);
      ++turn_;
      in_slot_ = false;
      if (!last) continue;
      kind = StagedUnit::kEnd;
      exhausted_ = kTeams || ahead_.end >= end_;
      if (!exhausted_) next_team_ = true;
      break;
    }
    if (lane_ == 0) unit.kind = kind;
    __syncwarp();
  }

  __device__ void enter() {
    const Slot& slot = queue_.filled_slot(turn_);
    next_ = (warp_ - slot.first_unit) & (Shape::kWarps - 1);
    in_slot_ = true;
    if (!next_team_) return;
    ahead_ = a_.split.next(ahead_);
    next_team_ = false;
  }

  __device__ void copy_keys(int stage) {
    if (staged_[stage].kind == StagedUnit::kUnit) {
      keys_.copy(staged_[stage], a_.block_log2, ahead_,
                 device::context_of<kTeams>(a_.step, ahead_.sequence), tile_of(stage));
    }
    device::commit_copies();
  }

  __device__ void copy_values(int stage) {
    if (staged_[stage].kind == StagedUnit::kUnit) {
      values_.copy(staged_[stage], a_.block_log2, ahead_,
                   device::context_of<kTeams>(a_.step, ahead_.sequence),
                   tile_of(stage) + Tile::kBytes);
    }
    device::commit_copies();
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
    const int log2 = min(a_.block_log2, 4);
    Rows rows;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane_ / 4 + 8 * i;
      const Piece piece = unit.pieces[row >> log2];
      const int token = piece.token + (row & ((1 << log2) - 1));
      rows.token[i] = piece.token >= 0 && token < context_ ? token : -1;
      rows.heads[i] = piece.heads;
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
    take(staged_[stage]);
    copy_keys(stage);
    weigh(s, rows, team);
    device::wait_copies<kGroupsAfter>();
    __syncwarp();
    sums_.template add<T>(s, tile + Tile::kBytes, lane_);
    __syncwarp();
    copy_values(stage);
  }

  /// Products become gated logits, in log2, of the heads that attend to a row.
  __device__ void weigh(float (&s)[kHeads8][4], const Rows& rows, const TeamSplit::Team& team) {
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int head = 8 * n + 2 * (lane_ % 4) + i % 2;
        const int token = rows.token[i / 2];
        float logit = s[n][i] * a_.step.scale;
        if (a_.step.logit_cap > 0) logit = device::capped(logit, a_.step.logit_cap);
        if (token < 0 || (rows.heads[i / 2] >> head & 1) == 0) {
          s[n][i] = -INFINITY;
          continue;
        }
        if (a_.step.scores != nullptr) dump(team, head, token, logit);
        // The current token bypasses the gate (eq. 3).
        if (token + 1 != context_) logit = gated(logit, thresholds_[n][i % 2], a_.gate);
        s[n][i] = logit * device::kLog2e;
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
  StagedUnit* staged_;  // [kStages]
  int end_ = 0;         // of the CTA's share
  int context_ = 0;
  TeamSplit::Team ahead_;  // of the units that are staged
  int turn_ = 0;           // slot that units are taken from
  int next_ = 0;           // unit of that slot
  bool in_slot_ = false;
  bool next_team_ = false;
  bool exhausted_ = false;
  PieceReader<T, kDim> keys_;
  PieceReader<T, kDim> values_;
  float thresholds_[kHeads8][2];
  device::QueryFragments<T, kDim, kHeads8> queries_;
  device::Accumulator<kDim, kHeads8> sums_;
};

}  // namespace kvsim::eta
