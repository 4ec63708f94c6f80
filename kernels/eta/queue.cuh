#pragma once

#include <cstdint>

#include "kernels/device/ptx.cuh"
#include "kernels/device/units.cuh"

// How screening warps tell attending warps what to read. They take groups of blocks in turn, and
// fill slots of a ring in the order of the blocks; units of 16 rows go to the attending warps in
// turn, so that sums do not depend on who was faster.

namespace kvsim::eta {

/// Rows of one block: at most 16, or, where blocks are longer, all of it.
struct alignas(8) Piece {
  std::int32_t token = -1;  // of its first row; -1: none
  std::uint32_t heads = 0;  // of the group, that attend to it
};

inline constexpr int kUnitPieces = 4;  // blocks of at least 4 tokens
/// What did not fill a unit before, the blocks of a turn, or those that are rescued and the tail.
inline constexpr int kSlotPieces = 16 + 2 * kUnitPieces;
inline constexpr int kSlots = 16;

struct alignas(16) Slot {
  std::int32_t first_unit;  // of all that the CTA attends to
  std::int32_t units;
  std::int32_t last;  // whether the team ends with it
  std::int32_t padding;
  Piece pieces[kSlotPieces];
};

/// A unit that an attending warp has under way.
struct alignas(16) StagedUnit {
  Piece pieces[kUnitPieces];
};

/// What the screening warps hand to each other from turn to turn.
struct ScreeningState {
  std::int32_t slot = 0;   // that is filled next
  std::int32_t units = 0;  // in those before
  std::int32_t carried = 0;
  // Of the first chunk, for each head: its largest bound, where, and whether it attends to any.
  std::uint32_t attended = 0;
  float best[16];
  std::int32_t best_block[16];
  Piece carry[kUnitPieces];
};

template <int kConsumers>
struct UnitQueue {
  // Barriers, each used again and again. All lanes that wrote or read arrive: of a screening warp
  // all, of an attending one the first kUnitPieces.
  std::uint64_t filled[kSlots];
  std::uint64_t emptied[kSlots];
  std::uint64_t turns[kSlots];  // of screening warps, that have ended
  Slot slots[kSlots];
  ScreeningState state;

  __device__ void init() {
    for (int i = 0; i < kSlots; ++i) {
      device::init_barrier(&filled[i], device::kWarp);
      device::init_barrier(&emptied[i], kConsumers * kUnitPieces);
      device::init_barrier(&turns[i], device::kWarp);
    }
    state.slot = state.units = state.carried = 0;
  }

  __device__ static int place(int number) { return number % kSlots; }
  __device__ static int parity(int number) { return number / kSlots & 1; }

  /// Waits until all turns before have ended: the state is the caller's now.
  __device__ void await_turn(int turn) {
    if (turn > 0) device::wait_for(&turns[place(turn - 1)], parity(turn - 1));
  }
  __device__ void end_turn(int turn) { device::arrive(&turns[place(turn)]); }

  /// Waits until slot number `slot` is filled, or, for who fills it, until all have left it.
  __device__ Slot& filled_slot(int slot) {
    device::wait_for(&filled[place(slot)], parity(slot));
    return slots[place(slot)];
  }
  __device__ Slot& empty_slot(int slot) {
    device::wait_for(&emptied[place(slot)], parity(slot) ^ 1);
    return slots[place(slot)];
  }
  __device__ bool is_filled(int slot) {
    return device::is_past(&filled[place(slot)], parity(slot));
  }
  __device__ void fill(int slot) { device::arrive(&filled[place(slot)]); }
  __device__ void leave(int slot) { device::arrive(&emptied[place(slot)]); }
};

}  // namespace kvsim::eta
