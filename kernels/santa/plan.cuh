#pragma once

#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/santa/arguments.cuh"

// Host side: how the keys are dealt out over CTAs, and which scores stay in shared memory.

namespace kvsim {

/// Everything of the arguments that streaming needs but pointers and rule. `teams`: whether they
/// may have CTAs of their own.
template <typename Shape>
device::SantaArguments plan_stream(const DeviceStep& step, const DeviceLimits& limits, int tile,
                                   bool teams) {
  using namespace device;
  SantaArguments a;
  a.step = step;
  a.group = step.group();
  a.split = plan_teams(contexts_of(step), step.kv_heads, kBlockSplitUnit, limits.sms, teams);
  while ((1 << a.tile_log2) > tile) --a.tile_log2;
  a.parts_log2 = gather_parts_log2(step.group(), Shape::kWarps);
  a.slots_log2 = gather_slots_log2(step.group(), Shape::kWarps);
  const std::span<const std::int32_t> contexts = contexts_of(step);
  const int longest = *std::max_element(contexts.begin(), contexts.end());
  const int team_blocks = (longest + kBlockTokens - 1) / kBlockTokens;
  a.tiles = (longest + tile - 1) / tile;
  a.blocks_per_cta = static_cast<int>(a.split.most_units_per_cta());
  a.pairs = std::min(a.blocks_per_cta, team_blocks) * (kBlockTokens / tile) * step.group();
  return a;
}

/// Deals shared memory out; gathering needs `gather_bytes` in place of the ring.
template <typename Shape>
void plan_shared(device::SantaArguments& a, const DeviceLimits& limits, int gather_bytes) {
  a.front_bytes = (std::max(Shape::kRingBytes, gather_bytes) + 127) / 128 * 128;
  a.resident_blocks = static_cast<int>(
      resident_blocks(a.blocks_per_cta, a.group, a.front_bytes, limits.shared_bytes_per_sm));
}

/// Shared memory of a launch.
inline int stream_shared_bytes(const device::SantaArguments& a) {
  // Blocks that have room in a CTA's shared memory.
  const int slots =
      a.resident_blocks + (a.resident_blocks < a.blocks_per_cta ? device::kStagingBlocks : 0);
  return a.front_bytes + device::barrier_bytes(a.blocks_per_cta) +
         4 * slots * a.group * device::kStashRow;
}

/// Scores of blocks that shared memory lacks, if there are any.
inline void take_stash(device::SantaArguments& a, Carver& carver) {
  if (a.resident_blocks >= a.blocks_per_cta) return;
  a.stash = carver.take<std::uint32_t>(static_cast<std::size_t>(a.split.total()) *
                                       static_cast<std::size_t>(a.group * device::kStashRow));
}

}  // namespace kvsim
