#pragma once

#include <cstdint>

#include "kernels/santapp/candidates.cuh"
#include "kernels/santapp/published.cuh"
#include "kernels/santapp/published_sizes.h"

// The first launch: what routes to teams is scored for all heads of the group by one matrix
// product; φ and its priority go to memory.

namespace kvsim::santapp {

template <int D, int kHeads8Value>
struct ScoreShape {
  static constexpr int kDim = D;
  static constexpr int kHeads8 = kHeads8Value;
  using Tile = device::UnitTile<D>;

  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * device::kWarp;
  static constexpr int kWarpUnits = kScoredTeams / (kWarps * device::kUnitTokens);
  static constexpr int kWarpHeads = 8 * kHeads8 / kWarps;          // whose priorities a warp finds
  static constexpr int kLaneTeams = kScoredTeams / device::kWarp;  // of a head
  static constexpr int kRow = kScoredTeams + 4;                    // padded against bank conflicts
  static constexpr int kWeights = kWarps * kWarpUnits * Tile::kBytes;
  static constexpr int kSharedBytes = kWeights + 4 * 8 * kHeads8 * kRow;
};

template <typename T, typename Shape>
class LeaderScores {
 public:
  static constexpr int kDim = Shape::kDim;
  static constexpr int kHeads8 = Shape::kHeads8;
  using Tile = typename Shape::Tile;

  __device__ LeaderScores(const PublishedCta& cta, char* shared)
      : cta_(cta),
        a_(cta.a),
        first_(static_cast<int>(blockIdx.x) * kScoredTeams),
        tiles_(device::shared_address(shared) +
               static_cast<std::uint32_t>(cta.warp * Shape::kWarpUnits * Tile::kBytes)),
        weights_(reinterpret_cast<float*>(shared + Shape::kWeights)) {}

  /// By all threads.
  __device__ void run() {
    copy_units();
    queries_.load(static_cast<const T*>(a_.step.q) + cta_.head_row(0) * a_.step.head_dim, a_.group,
                  a_.step.head_dim, cta_.lane);
    load_sizes();
    draw_noise();
    device::wait_copies<0>();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < Shape::kWarpUnits; ++i) score(i);
    device::sync_workers<Shape::kThreads>();
    if (!cta_.takes_all) write_priorities();
  }

 private:
  __device__ int unit_team(int i) const {
    return (cta_.warp * Shape::kWarpUnits + i) * device::kUnitTokens;
  }

  __device__ void copy_units() const {
    device::UnitReader<T, kDim> reader(a_.routes, a_.step.head_dim, cta_.lane,
                                       device::evict_first_policy());
#pragma unroll
    for (int i = 0; i < Shape::kWarpUnits; ++i) {
      const int team = first_ + unit_team(i);
      if (team >= a_.table.teams) continue;
      reader.seek(cta_.team.sequence, cta_.team.kv_head, team);
      reader.copy(tiles_ + static_cast<std::uint32_t>(i * Tile::kBytes), device::kUnitTokens);
    }
    device::commit_copies();
  }

  __device__ void load_sizes() {
    const std::int32_t* starts = a_.table.starts(cta_.number);
#pragma unroll
    for (int i = 0; i < 2 * Shape::kWarpUnits; ++i) {
      const int team = first_ + unit_team(i / 2) + cta_.lane / 4 + 8 * (i % 2);
      size_[i] = team < a_.table.teams ? starts[team + 1] - starts[team] : 0;
    }
  }

  /// While the leaders are on their way.
  __device__ void draw_noise() {
    if (cta_.takes_all) return;
#pragma unroll
    for (int h = 0; h < Shape::kWarpHeads; ++h) {
      const int head = cta_.warp + h * Shape::kWarps;
      if (head >= a_.group) continue;
      make_noise(noise_[h], a_.step, a_.group, cta_.team, head,
                 first_ + cta_.lane * Shape::kLaneTeams);
    }
  }

  /// φ of a unit's teams.
  __device__ void score(int unit) const {
    float s[kHeads8][4];
    device::score_unit<T, kDim, kHeads8>(
        s, tiles_ + static_cast<std::uint32_t>(unit * Tile::kBytes), queries_, cta_.lane);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int index = unit_team(unit) + cta_.lane / 4 + 8 * r;
      const int team = first_ + index;
      const std::int32_t size = size_[2 * unit + r];
#pragma unroll
      for (int i = 0; i < 2 * kHeads8; ++i) {
        const int head = 8 * (i / 2) + 2 * (cta_.lane % 4) + i % 2;
        if (head >= a_.group) continue;
        const float product = s[i / 2][2 * r + i % 2];
        const float logit = device::capped(product * a_.step.scale, a_.step.logit_cap);
        weights_[head * Shape::kRow + index] = size > 0 ? team_weight(size, logit) : -INFINITY;
        if (a_.step.bounds == nullptr || size == 0) continue;
        a_.step.bounds[cta_.head_row(head) * a_.step.bound_stride + team] = logit;
      }
    }
  }

  __device__ void write_priorities() const {
#pragma unroll
    for (int h = 0; h < Shape::kWarpHeads; ++h) {
      const int head = cta_.warp + h * Shape::kWarps;
      if (head >= a_.group) continue;
      const float* weights = weights_ + head * Shape::kRow + cta_.lane * Shape::kLaneTeams;
      std::uint32_t key[Shape::kLaneTeams];
      make_keys(key, weights, noise_[h]);
      const std::int64_t at =
          (cta_.number * a_.group + head) * a_.stride + first_ + cta_.lane * Shape::kLaneTeams;
      *reinterpret_cast<float4*>(a_.weights + at) = *reinterpret_cast<const float4*>(weights);
      *reinterpret_cast<uint4*>(a_.keys + at) = {key[0], key[1], key[2], key[3]};
    }
  }

  PublishedCta cta_;
  const PublishedArguments& a_;
  int first_;  // team
  std::uint32_t tiles_;
  float* weights_;  // [heads, kRow]
  device::QueryFragments<T, kDim, kHeads8> queries_;
  std::int32_t size_[2 * Shape::kWarpUnits];  // of teams in the lane's rows
  float noise_[Shape::kWarpHeads][Shape::kLaneTeams];
  static_assert(Shape::kLaneTeams == 4);
};

}  // namespace kvsim::santapp
