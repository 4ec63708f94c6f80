#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "core/philox.h"
#include "kernels/santapp/panels.h"

namespace kvsim::santapp {

/// A number from 0 to `count` - 1.
inline std::int64_t draw_below(const RandomStream& stream, std::uint32_t index,
                               std::int64_t count) {
  return static_cast<std::int64_t>(
      (std::uint64_t{stream.word(index)} * static_cast<std::uint64_t>(count)) >> 32);
}

/// Threads for a loop over independent points of so many multiplications: one where others run in
/// parallel already, and for what takes no longer than threads take to meet.
int threads_for(std::int64_t multiplications);

/// Points that compete to be the next centre.
inline int seeding_trials(std::int64_t centres) {
  return 2 + static_cast<int>(std::log(static_cast<double>(centres)));
}

/// Greedy k-means++ (Arthur and Vassilvitskii): each next centre is one of the sampled points,
/// drawn with probability in proportion to the squared distance to the nearest centre so far; of
/// 2 + ⌊ln centres⌋ draws the one that leaves the least sum of these distances is taken.
/// [centres, dim].
std::vector<float> seed_centres(const Points& points, std::span<const std::int32_t> sample,
                                std::int64_t centres, const RandomStream& stream);

}  // namespace kvsim::santapp
