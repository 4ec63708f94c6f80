#pragma once

#include <cstdint>

#include "kernels/santapp/candidates.cuh"
#include "kernels/santapp/lists.cuh"

// Routing: what routes to teams is scored for all heads of the group by one matrix product, and
// each tile names the candidates of each head, those with the largest priorities.

namespace kvsim::santapp {

template <typename T, typename Shape>
class Router {
 public:
  static constexpr int kDim = Shape::kDim;
  static constexpr int kHeads8 = Shape::kHeads8;
  using Tile = typename Shape::Tile;

  using Queries = device::QueryFragments<T, kDim, kHeads8>;

  __device__ Router(const TeamCta& cta, char* shared)
      : cta_(cta),
        a_(cta.a),
        reader_(a_.routes, a_.step.head_dim, cta.lane, device::evict_first_policy()),
        ring_(device::shared_address(shared) +
              static_cast<std::uint32_t>(cta.warp * Shape::kStages * Tile::kBytes)) {}

  /// By all threads; loads the queries. `launches`: as read from the counter.
  __device__ void run(Queries& queries, unsigned long long launches) {
#pragma unroll 1
    for (int i = 0; i < Shape::kStages; ++i) copy(i, i);
    queries.load(static_cast<const T*>(a_.step.q) + cta_.head_row(0) * a_.step.head_dim, a_.group,
                 a_.step.head_dim, cta_.lane);
    launch_ = device::LaunchCounter::number(launches);
    int stage = 0;
#pragma unroll 1
    for (int own = 0; own < a_.tiles_per_cta; ++own) {
      draw_noise(own);
#pragma unroll 1
      for (int i = 0; i < Shape::kWarpUnits; ++i) {
        score(queries, own, i, stage);
        stage = stage + 1 == Shape::kStages ? 0 : stage + 1;
      }
      device::sync_workers<Shape::kThreads>();
      if (!cta_.takes_all) name_candidates(own);
    }
    device::wait_copies<0>();
  }

 private:
  __device__ int slot_of(int i) const { return cta_.warp + i * Shape::kWarps; }

  /// The warp's unit number `index` of all tiles.
  __device__ void copy(int index, int stage) {
    const int own = index / Shape::kWarpUnits;
    const int unit = cta_.unit(cta_.tile_number(own), slot_of(index % Shape::kWarpUnits));
    if (own < a_.tiles_per_cta && unit < a_.table.teams / device::kUnitTokens) {
      reader_.seek(cta_.team.sequence, cta_.team.kv_head, unit * device::kUnitTokens);
      reader_.copy(ring_ + static_cast<std::uint32_t>(stage * Tile::kBytes), device::kUnitTokens);
    }
    device::commit_copies();
  }

  /// While the leaders are on their way.
  __device__ void draw_noise(int own) {
    if (cta_.takes_all) return;
#pragma unroll
    for (int h = 0; h < Shape::kWarpHeads; ++h) {
      const int head = cta_.warp + h * Shape::kWarps;
      if (head >= a_.group) continue;
      const int first = cta_.team_of(cta_.tile_number(own), cta_.lane * kLaneTeams);
      make_noise(noise_[h], a_.step, a_.group, cta_.team, head, first);
    }
  }

  /// φ of a unit's teams, and where their members are.
  __device__ void score(const Queries& queries, int own, int i, int stage) {
    const int slot = slot_of(i);
    const int unit = cta_.unit(cta_.tile_number(own), slot);
    const std::int32_t* starts = a_.table.starts(cta_.number);
    std::int32_t begin[2] = {};
    std::int32_t size[2] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int team = unit * device::kUnitTokens + cta_.lane / 4 + 8 * r;
      if (team >= a_.table.teams) continue;
      begin[r] = starts[team];
      size[r] = starts[team + 1] - begin[r];
    }
    float s[kHeads8][4];
    device::wait_copies<Shape::kStages - 1>();
    __syncwarp();
    device::score_unit<T, kDim, kHeads8>(
        s, ring_ + static_cast<std::uint32_t>(stage * Tile::kBytes), queries, cta_.lane);
    __syncwarp();
    copy(own * Shape::kWarpUnits + i + Shape::kStages, stage);
    store_members(own, slot, begin, size);
    store_weights(own, slot, s, size);
  }

  __device__ void store_members(int own, int slot, const std::int32_t (&begin)[2],
                                const std::int32_t (&size)[2]) const {
    if (cta_.lane % 4 != 0) return;
    const TileView tile = cta_.tile(own);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int index = slot * device::kUnitTokens + cta_.lane / 4 + 8 * r;
      tile.heads()[index] = 0;
      tile.begins()[index] = begin[r];
      tile.sizes()[index] = size[r];
    }
  }

  /// s as device::score_unit leaves it.
  __device__ void store_weights(int own, int slot, const float (&s)[kHeads8][4],
                                const std::int32_t (&size)[2]) const {
    const TileView tile = cta_.tile(own);
#pragma unroll
    for (int n = 0; n < kHeads8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int head = 8 * n + 2 * (cta_.lane % 4) + i % 2;
        if (head >= a_.group) continue;
        const int index = slot * device::kUnitTokens + cta_.lane / 4 + 8 * (i / 2);
        const float logit = device::capped(s[n][i] * a_.step.scale, a_.step.logit_cap);
        const bool exists = size[i / 2] > 0;
        tile.weights(head)[index] = exists ? team_weight(size[i / 2], logit) : -INFINITY;
        if (a_.step.bounds == nullptr || !exists) continue;
        const int team = cta_.team_of(cta_.tile_number(own), index);
        a_.step.bounds[cta_.head_row(head) * a_.step.bound_stride + team] = logit;
      }
    }
  }

  __device__ void name_candidates(int own) const {
    const TileView tile = cta_.tile(own);
    const int number = cta_.tile_number(own);
#pragma unroll
    for (int h = 0; h < Shape::kWarpHeads; ++h) {
      const int head = cta_.warp + h * Shape::kWarps;
      if (head >= a_.group) continue;
      std::uint32_t key[kLaneTeams];
      make_keys(key, tile.weights(head) + cta_.lane * kLaneTeams, noise_[h]);
      std::uint32_t named = largest_of(key, a_.list, cta_.lane);
      int place = device::lanes_before(__popc(named), cta_.lane);
      device::Tagged* list = list_of(a_, cta_.number, number, head);
#pragma unroll
      for (int i = 0; i < kLaneTeams; ++i) {
        if ((named >> i & 1) == 0) continue;
        publish_candidate(list + place++, key[i], cta_.lane * kLaneTeams + i, launch_);
      }
    }
  }

  TeamCta cta_;
  const SantappArguments& a_;
  device::UnitReader<T, kDim> reader_;
  std::uint32_t ring_;
  std::uint32_t launch_ = 0;
  float noise_[Shape::kWarpHeads][kLaneTeams];
};

}  // namespace kvsim::santapp
