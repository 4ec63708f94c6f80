#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "kernels/device/geometry.h"

// Blocks of keys of the kernels that keep scores on chip (SANTA, top-k), and which of them stay
// there: one plan for the launch and for the cost model.

namespace kvsim {
namespace device {

inline constexpr int kBlockLog2 = 8;
inline constexpr int kBlockTokens = 1 << kBlockLog2;  // what a CTA takes at once: one or more tiles
inline constexpr int kStashRow = kBlockTokens + 4;    // words, padded against bank conflicts

/// Words of a block, [group, kStashRow] and padding: lanes that look into rows of different blocks
/// meet different banks.
constexpr int stash_words(int group) { return group * kStashRow + (group % 2 == 0 ? 4 : 0); }

/// Blocks beyond the resident ones take turns in a few more slots while they are scored; what they
/// become goes to global memory.
inline constexpr int kStagingBlocks = 3;

constexpr int stream_warps(bool large) { return large ? 8 : 4; }
/// That finish scores beside them.
constexpr int finish_warps(int streaming, bool large_group) {
  return streaming / 2 * (large_group ? 2 : 1);
}
constexpr int stream_stages(int dim) { return dim == 64 ? 4 : 2; }
/// The ring that keys are streamed through: 64 KB keep enough bytes under way (128 KB for heads of
/// 256), and half of it for small shared memories; what is left is for scores.
constexpr int stream_ring_bytes(int dim, bool large) {
  return stream_warps(large) * stream_stages(dim) * kUnitTokens * dim * 2;
}
/// Shared memory between the ring and the scores: two barriers of 8 bytes for each block.
KVSIM_HD constexpr int barrier_bytes(int blocks_per_cta) {
  return (2 * 8 * blocks_per_cta + 127) / 128 * 128;
}

/// log2 of the warps that share a head's rows when V is gathered.
constexpr int gather_parts_log2(int group, int warps) {
  int log2 = 0;
  while (group << (log2 + 1) <= warps) ++log2;
  return log2;
}

}  // namespace device

inline constexpr SplitUnit kBlockSplitUnit{device::kBlockTokens, 1};

/// Blocks that have room in shared memory beside `front_bytes` and what the blocks' barriers take.
constexpr std::int64_t slots_beside(std::int64_t blocks, int group, int front_bytes,
                                    std::int64_t shared_bytes_per_sm) {
  // The system's share, and as much to spare.
  const std::int64_t room = shared_bytes_per_sm - 2 * kSystemSharedBytes - front_bytes -
                            device::barrier_bytes(static_cast<int>(blocks));
  return room / (4 * device::stash_words(group));
}

/// How many of a CTA's `blocks` keep their scores in shared memory: all, or what is left beside
/// the ring (or what gathering needs in its place, if that is more) and the staging slots
/// (negative: not even these fit).
constexpr std::int64_t resident_blocks(std::int64_t blocks, int group, int ring_bytes,
                                       std::int64_t shared_bytes_per_sm) {
  const std::int64_t slots = slots_beside(blocks, group, ring_bytes, shared_bytes_per_sm);
  return slots >= blocks ? blocks : slots - device::kStagingBlocks;
}

}  // namespace kvsim
