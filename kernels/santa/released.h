#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// What the released S²ANTA kernels select for one head (SANTA repository, commit 2e5f861),
/// with their quirks: stash rounded to bfloat16 while tile sums are not, offsets by splitmix64 per
/// (head, tile) from one fixed seed, budgets that a tile may exceed or miss by one. Float atomics
/// and the batch fallback are not modelled.
struct ReleasedSelection {
  std::vector<std::int64_t> rows;      // ascending, repeats kept
  std::vector<float> weights;          // of each of them (flash); empty: 1/S
  std::vector<std::uint32_t> budgets;  // S_t as computed, before rounding moves it by one
};

inline constexpr std::uint64_t kReleasedSeed = 1690;  // the released harness passes it everywhere

/// Offset of a (query head, tile) in [0, 1).
float released_offset(std::uint64_t seed, std::uint32_t head, std::uint32_t tile);

/// S²ANTA-prop: largest remainder through a sort that loses tiles. `scores` of one head, `head` its
/// index among all query heads of the layer.
ReleasedSelection released_prop(std::span<const float> scores, int tile, std::uint32_t samples,
                                std::uint32_t head);
/// S²ANTA-flash: every tile draws max(1, ⌊S/T⌋), weighed by the tile's mass afterwards.
ReleasedSelection released_flash(std::span<const float> scores, int tile, std::uint32_t samples,
                                 std::uint32_t head);

}  // namespace kvsim
