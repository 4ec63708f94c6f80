#pragma once

#include <cstdint>

#include "core/philox.h"
#include "kernels/device/ordered_key.cuh"
#include "kernels/santapp/arguments.cuh"
#include "kernels/santapp/rule.h"

// Priorities of teams, the largest of a tile's, and the first that is not drawn. A warp has a
// head's 256 of a tile in its lanes, 8 each, in the order of the teams: lane 0 has the first 8.

namespace kvsim::santapp {

inline constexpr int kLaneTeams = kTileTeams / device::kWarp;
static_assert(kLaneTeams == 8);

/// Gumbel noise of a head's teams `first` and on; `first` and `kCount` are multiples of 4.
template <int kCount>
__device__ inline void make_noise(float (&noise)[kCount], const DeviceStep& step, int group,
                                  const TeamSplit::Team& team, int head, int first) {
  RandomStream random = step.random;
  random.sequence += static_cast<std::uint32_t>(team.sequence);
  random.head += static_cast<std::uint32_t>(team.kv_head * group + head);
  random.purpose = Purpose::kTeamNoise;
#pragma unroll
  for (int four = 0; four < kCount / 4; ++four) {
    const RandomWords words = random.block(static_cast<std::uint32_t>(first / 4 + four));
#pragma unroll
    for (int i = 0; i < 4; ++i) noise[4 * four + i] = gumbel(words.word[i]);
  }
}

/// Priorities of teams as integers of the same order; 0 where there is no team. `weights`: of the
/// first of them, aligned.
template <int kCount>
__device__ inline void make_keys(std::uint32_t (&key)[kCount], const float* weights,
                                 const float (&noise)[kCount]) {
  const auto* source = reinterpret_cast<const float4*>(weights);
#pragma unroll
  for (int four = 0; four < kCount / 4; ++four) {
    const float4 values = source[four];
    const float weight[4] = {values.x, values.y, values.z, values.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      key[4 * four + i] =
          weight[i] == -INFINITY ? 0u : device::key_of(weight[i] + noise[4 * four + i]);
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

/// Whether a team is drawn.
__device__ inline bool is_above(std::uint32_t key, std::int32_t team, const HeadThreshold& t) {
  return key > t.key || (key == t.key && team < t.team);
}

/// Of `count` candidates with a key, the team that is number `place` (from 1) in order; by a warp.
template <typename KeyAt, typename TeamAt>
__device__ inline std::int32_t tied_team(int count, std::uint32_t key, int place, int lane,
                                         const KeyAt& key_at, const TeamAt& team_at) {
  std::int32_t team = -1;
#pragma unroll 1
  for (int i = 0; i < place; ++i) {
    auto next = static_cast<unsigned>(INT32_MAX);
#pragma unroll 1
    for (int at = lane; at < count; at += device::kWarp) {
      if (key_at(at) != key) continue;
      const std::int32_t own = team_at(at);
      if (own > team) next = min(next, static_cast<unsigned>(own));
    }
    team = static_cast<std::int32_t>(__reduce_min_sync(0xffffffffu, next));
  }
  return team;
}

/// Number `wanted` of `count` candidates, at least so many; by a warp, whose lanes keep kHeld keys
/// each. Open where fewer of them are teams, whose keys are not 0.
template <int kHeld, typename KeyAt, typename TeamAt>
__device__ inline HeadThreshold find_threshold(int count, int wanted, int lane, const KeyAt& key_at,
                                               const TeamAt& team_at) {
  std::uint32_t key[kHeld];
  std::uint32_t low = ~0u;
  std::uint32_t high = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = lane + i * device::kWarp;
    key[i] = at < count ? key_at(at) : 0u;
    low = min(low, key[i]);
    high = max(high, key[i]);
  }
#pragma unroll 1
  for (int at = lane + kHeld * device::kWarp; at < count; at += device::kWarp) {
    low = min(low, key_at(at));
    high = max(high, key_at(at));
  }
  low = __reduce_min_sync(0xffffffffu, low);
  high = __reduce_max_sync(0xffffffffu, high);
  const auto count_if = [&](const auto& holds) {
    unsigned own = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) own += holds(key[i]) ? 1u : 0u;
#pragma unroll 1
    for (int at = lane + kHeld * device::kWarp; at < count; at += device::kWarp) {
      own += holds(key_at(at)) ? 1u : 0u;
    }
    return static_cast<int>(__reduce_add_sync(0xffffffffu, own));
  };
  const std::uint32_t reached = search_threshold(low, high, wanted, [&](std::uint32_t tried) {
    return count_if([&](std::uint32_t k) { return k >= tried; });
  });
  // The least key that reaches it: the search may have ended early.
  std::uint32_t least = ~0u;
#pragma unroll 1
  for (int at = lane; at < count; at += device::kWarp) {
    if (key_at(at) >= reached) least = min(least, key_at(at));
  }
  least = __reduce_min_sync(0xffffffffu, least);
  if (least == 0) return {0, 0, 1, 0};
  const int above = count_if([&](std::uint32_t k) { return k > least; });
  return {least, tied_team(count, least, wanted - above, lane, key_at, team_at), 0, 0};
}

}  // namespace kvsim::santapp
