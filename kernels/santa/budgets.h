#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/santa/distribution.h"

namespace kvsim {

/// Samples per tile by the largest remainder of S * mass / total; ties go to the lower tile. Sums
/// to S.
std::vector<std::uint32_t> largest_remainder_budgets(const HeadDistribution& head,
                                                     std::uint32_t samples);

/// Samples per tile by systematic sampling over tile masses: the expected budget of a tile is
/// exactly S * mass / total, which makes prop unbiased. Sums to S.
std::vector<std::uint32_t> systematic_budgets(const HeadDistribution& head, std::uint32_t samples,
                                              std::uint32_t random24);

/// Samples per tile where no tile knows the others' masses (even_budget).
std::vector<std::uint32_t> even_budgets(int tiles, std::uint32_t samples);

/// Tiles that draw, ascending.
std::vector<std::int32_t> tiles_with(const std::vector<std::uint32_t>& budgets);

/// The released sort of remainders (SANTA repository, tile_budgets_kernel, read sequentially): an
/// in-place bitonic network over N >= T slots whose pads are never written back, so that real
/// entries which move to a pad slot are lost when T is no power of two. Returns tile numbers in the
/// order that the network leaves, -1 for a pad that moved into a real slot.
std::vector<int> released_remainder_order(std::span<const float> remainders);

}  // namespace kvsim
