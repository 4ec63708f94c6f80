#pragma once

#include <array>
#include <cstdint>

#include "tests/emulator/thread.h"

namespace kvsim::emulator {

/// Waits for the lanes of `mask`, which must come to the same operation with the same mask; the
/// last of them does it for all. `brought` is what the operation reads and changes.
void meet(const WarpOperation& operation, std::uint32_t mask, void* brought);

struct Shuffle {
  std::uint64_t value;  // becomes that of the lane `source`
  int source;
};
void shuffle(std::uint32_t mask, Shuffle& lane);

/// `value` becomes what the function makes of all lanes' values.
struct Vote {
  std::uint32_t value;
};
void sync_warp(std::uint32_t mask);
std::uint32_t ballot(std::uint32_t mask, bool value);
std::uint32_t sum_of_lanes(std::uint32_t mask, std::uint32_t value);
std::uint32_t or_of_lanes(std::uint32_t mask, std::uint32_t value);
std::uint32_t max_of_lanes(std::uint32_t mask, std::uint32_t value);
/// The lanes that brought the same value.
std::uint32_t equal_lanes(std::uint32_t mask, std::uint32_t value);

}  // namespace kvsim::emulator
