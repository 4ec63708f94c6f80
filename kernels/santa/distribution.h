#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/santa/rule.h"

namespace kvsim {

/// One head's softmax as integer masses (rule.h), in tiles of `tile` tokens.
class HeadDistribution {
 public:
  HeadDistribution(std::span<const float> scores, int tile);

  std::uint64_t total() const { return start_.back(); }
  int tiles() const { return static_cast<int>(scale_.size()); }
  std::uint64_t tile_mass(int t) const {
    return start_[static_cast<std::size_t>(t) + 1] - start_[static_cast<std::size_t>(t)];
  }
  /// Token units of a whole tile, relative to the tile's own largest weight.
  std::uint32_t tile_units(int t) const { return prefix_[static_cast<std::size_t>(end_of(t) - 1)]; }
  /// Mass of one row, for expectations and tests.
  std::uint64_t row_mass(std::int64_t row) const;
  /// The head's largest score, the reference of all masses.
  float highest() const { return highest_; }

  /// First row whose cumulative mass over the head exceeds `threshold` (< total).
  std::int64_t find(std::uint64_t threshold) const;
  /// First row of tile t whose cumulative units within the tile exceed `threshold` (< tile_units).
  std::int64_t find_in_tile(int t, std::uint32_t threshold) const;

 private:
  std::int64_t begin_of(int t) const { return std::int64_t{t} * tile_; }
  std::int64_t end_of(int t) const;

  int tile_;
  float highest_;
  std::vector<std::uint32_t> prefix_;  // [rows] inclusive, restarts in every tile
  std::vector<TileScale> scale_;       // [tiles]
  std::vector<std::uint64_t> start_;   // [tiles + 1] mass before each tile
};

}  // namespace kvsim
