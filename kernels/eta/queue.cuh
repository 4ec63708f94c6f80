#pragma once

#include <cstdint>

#include "kernels/device/ptx.cuh"
#include "kernels/device/units.cuh"

// How screening warps tell attending warps what to read. What becomes of a group of blocks is a
// slot of a ring; slots follow each other in the order of the blocks, and units of 16 rows go to
// the attending warps in turn, so that sums do not depend on who was faster.

namespace kvsim::eta {

/// Rows of one block: at most 16, or, where blocks are longer, all of it.
struct alignas(8) Piece {
  std::int32_t token = -1;  // of its first row; -1: none
  std::uint32_t heads = 0;  // of the group, that attend to it
};

inline constexpr int kUnitPieces = 4;  // blocks of at least 4 tokens
/// A group's blocks, or those that are rescued and the tail, and what did not fill a unit before.
inline constexpr int kSlotPieces = 24;
inline constexpr int kSlots = 16;

struct Slot {
  std::int32_t first_unit;  // of all that the CTA attends to
  std::int32_t units;
  std::int32_t last;  // whether the team ends with it
  std::int32_t pieces_used;
  Piece pieces[kSlotPieces];
};

/// A unit that an attending warp has under way.
struct alignas(16) StagedUnit {
  Piece pieces[kUnitPieces];
};

/// What the screening warps hand to each other from slot to slot.
struct ScreeningState {
  std::int32_t units = 0;
  std::int32_t carried = 0;
  Piece carry[kUnitPieces];
  // Of the first chunk, for each head: its largest bound, where, and whether it attends to any.
  float best[16];
  std::int32_t best_block[16];
  std::uint32_t attended = 0;
  std::int32_t padding[5];
};

template <int kConsumers>
struct UnitQueue {
  std::uint64_t filled[kSlots];   // barriers
  std::uint64_t emptied[kSlots];  // barriers
  Slot slots[kSlots];
  ScreeningState state;

  __device__ void init() {
    for (int i = 0; i < kSlots; ++i) {
      device::init_barrier(&filled[i], 1);
      device::init_barrier(&emptied[i], kConsumers);
    }
    state.units = state.carried = 0;
  }

  /// Waits until slot number `turn` is filled, or, for who fills it, until all have left it.
  __device__ Slot& filled_slot(int turn) {
    device::wait_for(&filled[turn % kSlots], turn / kSlots & 1);
    return slots[turn % kSlots];
  }
  __device__ bool is_filled(int turn) {
    return device::is_past(&filled[turn % kSlots], turn / kSlots & 1);
  }
  __device__ void empty_slot(int turn) {
    device::wait_for(&emptied[turn % kSlots], turn / kSlots & 1 ^ 1);
  }
  __device__ Slot& slot(int turn) { return slots[turn % kSlots]; }
  __device__ void fill(int turn) { device::arrive(&filled[turn % kSlots]); }
  __device__ void leave(int turn) { device::arrive(&emptied[turn % kSlots]); }
};

}  // namespace kvsim::eta
