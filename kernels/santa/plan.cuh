#pragma once

#include <algorithm>

#include "kernels/device/launch.cuh"
#include "kernels/santa/arguments.cuh"

// Host side: how the keys are dealt out over CTAs, and which scores stay in shared memory.

namespace kvsim {

/// Everything of the arguments that streaming needs but pointers and rule. `teams`: whether they may
/// have CTAs of their own.
template <typename Shape>
device::SantaArguments plan_stream(const DeviceStep& step, const DeviceLimits& limits, int tile,
                                   bool teams) {
  using namespace device;
  constexpr int kReservedBytes = 2048;  // the system's share and static variables
  SantaArguments a;
  a.step = step;
  a.group = step.group();
  a.split = plan_teams(contexts_of(step), step.kv_heads, kBlockTokens, limits.sms, 1, teams);
  while ((1 << a.tile_log2) > tile) --a.tile_log2;
  while (step.group() << (a.parts_log2 + 1) <= Shape::kWarps) ++a.parts_log2;
  const std::span<const std::int32_t> contexts = contexts_of(step);
  const int longest = *std::max_element(contexts.begin(), contexts.end());
  const int team_blocks = (longest + kBlockTokens - 1) / kBlockTokens;
  a.tiles = (longest + tile - 1) / tile;
  const TeamSplit& split = a.split;
  a.blocks_per_cta = split.ctas_per_team > 0
                         ? (team_blocks + split.ctas_per_team - 1) / split.ctas_per_team
                         : static_cast<int>((split.total() + split.ctas - 1) / split.ctas);
  a.pairs = std::min(a.blocks_per_cta, team_blocks) * (kBlockTokens / tile) * step.group();
  const int row_bytes = 4 * a.group * kStashRow;
  const int room = static_cast<int>(limits.shared_bytes_per_sm) - kReservedBytes -
                   Shape::kRingBytes - SantaShared::barrier_bytes(a.blocks_per_cta);
  const int slots = room / row_bytes;
  a.resident_blocks = slots >= a.blocks_per_cta ? a.blocks_per_cta : slots - kStagingBlocks;
  return a;
}

/// Shared memory of a launch.
template <typename Shape>
int stream_shared_bytes(const device::SantaArguments& a) {
  // Blocks that have room in a CTA's shared memory.
  const int slots =
      a.resident_blocks + (a.resident_blocks < a.blocks_per_cta ? device::kStagingBlocks : 0);
  return Shape::kRingBytes + device::SantaShared::barrier_bytes(a.blocks_per_cta) +
         4 * slots * a.group * device::kStashRow;
}

/// Scores of blocks that shared memory lacks, if there are any.
inline void take_stash(device::SantaArguments& a, Carver& carver) {
  if (a.resident_blocks >= a.blocks_per_cta) return;
  a.stash = carver.take<std::uint32_t>(static_cast<std::size_t>(a.split.total()) *
                                       static_cast<std::size_t>(a.group * device::kStashRow));
}

}  // namespace kvsim
