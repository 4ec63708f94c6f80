#pragma once

#include <cstdint>

#include "kernels/device/exchange.cuh"
#include "kernels/device/units.cuh"
#include "kernels/santapp/packed_teams.cuh"

// What the launches of implementation=published are told, and what they hand on in memory.

namespace kvsim::santapp {

/// A team that a head of the group draws, teams in their order.
struct UnionTeam {
  std::int32_t rows_before;  // of earlier teams of the union
  std::int32_t begin;        // of its members among all
};
/// Teams of the union, and their members.
struct UnionSize {
  std::int32_t teams;
  std::int32_t rows;
};
/// Softmax state of a head's partial sums, in log2.
struct PartialWeight {
  float highest;
  float sum;
};

/// Groups are (sequence, KV head); `heads`: those of a group; `width`: the same in eights.
struct PublishedArguments {
  DeviceStep step;
  PackedTeams table;
  KvTensor routes;              // the rows of it that route
  std::int32_t group = 1;       // heads
  std::int32_t width = 8;       // of a row of corrections
  std::int32_t draws = 1;       // K
  std::int32_t stride = 0;      // of teams, in weights and keys
  std::int32_t part = 0;        // teams of a part
  std::int32_t parts = 0;       // of a head
  std::int32_t list = 0;        // candidates of a part
  std::int32_t most_drawn = 0;  // of a head
  std::int32_t most_union = 0;  // of a group
  std::int32_t most_units = 0;  // of 16 rows of a union
  std::int32_t splits = 1;      // of a group's rows
  // From the first launch:
  float* weights = nullptr;       // φ: [groups, heads, stride]
  std::uint32_t* keys = nullptr;  // priorities in an order of integers; 0: no team
  // From the second; lists have places left where there are fewer teams, with keys of 0:
  std::uint32_t* part_keys = nullptr;  // [groups, heads, parts, list]
  std::int32_t* part_teams = nullptr;
  // From the third; `drawn` is its own:
  std::int32_t* drawn = nullptr;        // [groups, heads, most_drawn]
  UnionSize* union_sizes = nullptr;     // [groups]
  UnionTeam* union_teams = nullptr;     // [groups, most_union + 1]: behind the last all rows
  std::int32_t* union_units = nullptr;  // [groups, most_units]: which team each begins in
  float* corrections = nullptr;         // [groups, most_union, width]: ln c; ∞ if not drawn
  // From the fourth:
  float2* partial_values = nullptr;          // [groups, splits, heads, D / 2]
  PartialWeight* partial_weights = nullptr;  // [groups, splits, heads]
};

/// A CTA's place in a launch: its group is blockIdx.(y, z).
struct PublishedCta {
  using Arguments = PublishedArguments;

  const PublishedArguments& a;
  TeamSplit::Team team;  // as other kernels call a (sequence, KV head)
  std::int64_t number;   // of it
  int warp;
  int lane;
  int prompt;      // rows in teams
  bool takes_all;  // every team is drawn, so none by chance

  __device__ explicit PublishedCta(const PublishedArguments& arguments)
      : a(arguments),
        team{static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y), 0, 0},
        number(std::int64_t{team.sequence} * a.step.kv_heads + team.kv_head),
        warp(static_cast<int>(threadIdx.x) / device::kWarp),
        lane(static_cast<int>(threadIdx.x) % device::kWarp) {
    const PackedTeams::Header header = *a.table.header(number);
    prompt = header.rows;
    takes_all = a.draws >= header.teams;
  }

  /// In the whole batch.
  __device__ std::int64_t head_row(int head) const {
    return device::first_head(a.step, a.group, team) + head;
  }
};

}  // namespace kvsim::santapp
