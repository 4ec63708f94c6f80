#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// What the released S²ANTA-prop kernels select for one head (SANTA repository, commit 2e5f861),
/// with their quirks: stash rounded to bfloat16 while tile sums are not, offsets by splitmix64 per
/// (head, tile) from one fixed seed, largest remainder through a sort that loses tiles, budgets
/// that a tile may exceed or miss by one. Float atomics and the batch fallback are not modelled.
struct ReleasedSelection {
  std::vector<std::int64_t> rows;  // ascending
  std::vector<float> counts;
  std::vector<std::uint32_t> budgets;  // S_t as computed, before rounding moves it by one
  std::int64_t draws = 0;
};

inline constexpr std::uint64_t kReleasedSeed = 1690;  // the released harness passes it everywhere

/// Offset of a (query head, tile) in [0, 1).
float released_offset(std::uint64_t seed, std::uint32_t head, std::uint32_t tile);

/// `scores` of one head, `head` its index among all query heads of the layer.
ReleasedSelection released_selection(std::span<const float> scores, int tile, std::uint32_t samples,
                                     std::uint32_t head);

}  // namespace kvsim
