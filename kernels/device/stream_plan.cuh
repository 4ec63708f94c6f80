#pragma once

#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/device/stream.cuh"

// Host side: how the keys are dealt out over CTAs, and which scores stay in shared memory.

namespace kvsim {

/// Everything of the arguments but pointers and shared memory. `teams`: whether they
/// may have CTAs of their own.
inline device::StreamArguments plan_stream(const DeviceStep& step, const DeviceLimits& limits,
                                           int tile, bool teams) {
  using namespace device;
  StreamArguments a;
  a.step = step;
  a.group = step.group();
  a.split = plan_teams(contexts_of(step), step.kv_heads, kBlockSplitUnit, limits.sms, teams);
  while ((1 << a.tile_log2) > tile) --a.tile_log2;
  const std::span<const std::int32_t> contexts = contexts_of(step);
  a.tiles = (*std::max_element(contexts.begin(), contexts.end()) + tile - 1) / tile;
  a.blocks_per_cta = static_cast<int>(a.split.most_units_per_cta());
  return a;
}

/// Deals shared memory out; gathering needs `gather_bytes` in place of the ring.
template <typename Shape>
void plan_shared(device::StreamArguments& a, const DeviceLimits& limits, int gather_bytes) {
  a.front_bytes = (std::max(Shape::kRingBytes, gather_bytes) + 127) / 128 * 128;
  a.resident_blocks = static_cast<int>(
      resident_blocks(a.blocks_per_cta, a.group, a.front_bytes, limits.shared_bytes_per_sm));
}

/// Shared memory of a launch.
inline int stream_shared_bytes(const device::StreamArguments& a) {
  // Blocks that have room in a CTA's shared memory.
  const int slots =
      a.resident_blocks + (a.resident_blocks < a.blocks_per_cta ? a.staging_blocks : 0);
  return a.front_bytes + device::barrier_bytes(a.blocks_per_cta) +
         4 * slots * device::stash_words(a.group);
}

/// Scores of blocks that shared memory lacks, if there are any.
inline void take_stash(device::StreamArguments& a, Carver& carver) {
  if (a.resident_blocks >= a.blocks_per_cta) return;
  a.stash = carver.take<std::uint32_t>(static_cast<std::size_t>(a.split.total()) *
                                       static_cast<std::size_t>(device::stash_words(a.group)));
}

}  // namespace kvsim
