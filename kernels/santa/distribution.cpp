#include "kernels/santa/distribution.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/exact_math.h"

namespace kvsim {
namespace {

float largest(std::span<const float> values) {
  float result = values[0];
#pragma omp simd reduction(max : result)
  for (std::size_t i = 0; i < values.size(); ++i) result = std::max(result, values[i]);
  return result;
}

/// Inclusive prefix sums of a tile's token units.
void tile_prefix(std::span<const float> scores, float highest, std::uint32_t* prefix) {
#pragma omp simd
  for (std::size_t i = 0; i < scores.size(); ++i) {
    prefix[i] = token_mass(exp_nonpositive(scores[i] - highest));
  }
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) prefix[i] = sum += prefix[i];
}

}  // namespace

HeadDistribution::HeadDistribution(std::span<const float> scores, int tile)
    : tile_(tile), highest_(largest(scores)), prefix_(scores.size()) {
  if (!std::isfinite(highest_))
    fail<RuntimeError>("a score is {}, expected finite scores", highest_);
  const auto width = static_cast<std::size_t>(tile);
  const std::size_t tiles = (scores.size() + width - 1) / width;
  scale_.reserve(tiles);
  start_.reserve(tiles + 1);
  start_.push_back(0);
  for (std::size_t begin = 0; begin < scores.size(); begin += width) {
    const auto piece = scores.subspan(begin, std::min(width, scores.size() - begin));
    const float tile_highest = largest(piece);
    tile_prefix(piece, tile_highest, prefix_.data() + begin);
    scale_.push_back(tile_scale(exp_nonpositive(tile_highest - highest_)));
    start_.push_back(start_.back() + head_mass(prefix_[begin + piece.size() - 1], scale_.back()));
  }
  KVSIM_CHECK(total() > 0);
}

std::int64_t HeadDistribution::end_of(int t) const {
  return std::min(begin_of(t + 1), static_cast<std::int64_t>(prefix_.size()));
}

std::uint64_t HeadDistribution::row_mass(std::int64_t row) const {
  const auto t = static_cast<std::size_t>(row / tile_);
  const std::uint32_t before = row % tile_ == 0 ? 0 : prefix_[static_cast<std::size_t>(row - 1)];
  return head_mass(prefix_[static_cast<std::size_t>(row)], scale_[t]) -
         head_mass(before, scale_[t]);
}

std::int64_t HeadDistribution::find(std::uint64_t threshold) const {
  const auto after = std::upper_bound(start_.begin(), start_.end(), threshold);
  const auto t = static_cast<std::size_t>(after - start_.begin()) - 1;
  const std::uint64_t inside = threshold - start_[t];
  const auto first = prefix_.begin() + begin_of(static_cast<int>(t));
  const auto last = prefix_.begin() + end_of(static_cast<int>(t));
  const auto row = std::partition_point(
      first, last, [&](std::uint32_t units) { return head_mass(units, scale_[t]) <= inside; });
  return row - prefix_.begin();
}

std::int64_t HeadDistribution::find_in_tile(int t, std::uint32_t threshold) const {
  const auto first = prefix_.begin() + begin_of(t);
  return std::upper_bound(first, prefix_.begin() + end_of(t), threshold) - prefix_.begin();
}

}  // namespace kvsim
