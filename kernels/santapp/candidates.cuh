#pragma once

#include <cstdint>

#include "core/philox.h"
#include "kernels/device/ordered_key.cuh"
#include "kernels/santapp/arguments.cuh"
#include "kernels/santapp/rule.h"

// Priorities of a tile's teams, and the largest of them. A warp has a head's 256 in its lanes, 8
// each, in the order of the teams: lane 0 has the first 8.

namespace kvsim::santapp {

inline constexpr int kLaneTeams = kTileTeams / device::kWarp;
static_assert(kLaneTeams == 8);

/// Gumbel noise of this lane's teams.
__device__ inline void make_noise(float (&noise)[kLaneTeams], const TeamCta& cta, int tile_number,
                                  int head) {
  RandomStream random = cta.a.step.random;
  random.sequence += static_cast<std::uint32_t>(cta.team.sequence);
  random.head += static_cast<std::uint32_t>(cta.team.kv_head * cta.a.group + head);
  random.purpose = Purpose::kTeamNoise;
  const auto first = static_cast<std::uint32_t>(cta.team_of(tile_number, cta.lane * kLaneTeams));
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const RandomWords words = random.block(first / 4 + static_cast<std::uint32_t>(half));
#pragma unroll
    for (int i = 0; i < 4; ++i) noise[4 * half + i] = gumbel(words.word[i]);
  }
}

/// Priorities of this lane's teams as integers of the same order; 0 where there is no team.
__device__ inline void make_keys(std::uint32_t (&key)[kLaneTeams], const float* weights,
                                 const float (&noise)[kLaneTeams], int lane) {
  const auto* source = reinterpret_cast<const float4*>(weights + lane * kLaneTeams);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float4 four = source[half];
    const float weight[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      key[4 * half + i] =
          weight[i] == -INFINITY ? 0u : device::key_of(weight[i] + noise[4 * half + i]);
    }
  }
}

/// Over a warp's values: how many `holds` is true of.
template <int kCount, typename Holds>
__device__ inline int count_lanes(const std::uint32_t (&key)[kCount], const Holds& holds) {
  unsigned own = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) own += holds(key[i]) ? 1u : 0u;
  return static_cast<int>(__reduce_add_sync(0xffffffffu, own));
}

/// Searches, bit by bit, the largest threshold that at least `wanted` values reach: counts(t) says
/// how many do. `low` and `high`: the least and the largest value. Ends early where exactly
/// `wanted` reach it.
template <typename Counts>
__device__ inline std::uint32_t search_threshold(std::uint32_t low, std::uint32_t high, int wanted,
                                                 const Counts& counts) {
  const int differing = 32 - __clz(static_cast<int>(low ^ high));  // bits from the first on
  std::uint32_t threshold = differing == 32 ? 0u : high >> differing << differing;
#pragma unroll 1
  for (int bit = differing - 1; bit >= 0; --bit) {
    const std::uint32_t tried = threshold | 1u << bit;
    const int reached = counts(tried);
    if (reached < wanted) continue;
    threshold = tried;
    if (reached == wanted) break;
  }
  return threshold;
}

/// The `wanted` largest of a warp's keys, equal ones in their order, as bits of this lane's.
__device__ inline std::uint32_t largest_of(const std::uint32_t (&key)[kLaneTeams], int wanted,
                                           int lane) {
  if (wanted >= kTileTeams) return (1u << kLaneTeams) - 1;
  std::uint32_t low = key[0];
  std::uint32_t high = key[0];
#pragma unroll
  for (int i = 1; i < kLaneTeams; ++i) {
    low = min(low, key[i]);
    high = max(high, key[i]);
  }
  low = __reduce_min_sync(0xffffffffu, low);
  high = __reduce_max_sync(0xffffffffu, high);
  const std::uint32_t threshold = search_threshold(low, high, wanted, [&](std::uint32_t tried) {
    return count_lanes(key, [&](std::uint32_t k) { return k >= tried; });
  });
  std::uint32_t above = 0;
  std::uint32_t equal = 0;
#pragma unroll
  for (int i = 0; i < kLaneTeams; ++i) {
    above |= key[i] > threshold ? 1u << i : 0u;
    equal |= key[i] == threshold ? 1u << i : 0u;
  }
  const auto larger =
      static_cast<int>(__reduce_add_sync(0xffffffffu, static_cast<unsigned>(__popc(above))));
  int before = device::lanes_before(__popc(equal), lane);
  for (; equal != 0 && larger + before < wanted; equal &= equal - 1, ++before) {
    above |= equal & -equal;
  }
  return above;
}

}  // namespace kvsim::santapp
