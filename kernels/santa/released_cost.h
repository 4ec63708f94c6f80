#pragma once

#include "core/device_limits.h"
#include "kernels/shape.h"
#include "kernels/statistics.h"
#include "kernels/work.h"

namespace kvsim {

/// What the released SANTA kernels (repository OPUSLab/SANTA) wait for, counted in their source at
/// commit 11c6ef8; that the timed 2e5f861 has the same kernels was not checked. Loads of a warp
/// that follow each other, trips through the cache, instructions in chains, as many waves of CTAs
/// as an SM holds. None of it is fitted to a time.
class ReleasedPace {
 public:
  ReleasedPace(const Shape& shape, int tile, const DeviceLimits& limits);

  /// One CTA for each (tile, KV head) scores its keys: a warp loads one row, and the next only when
  /// it has summed the products of the first over its lanes.
  void pass1(Stage& stage) const;
  /// One CTA of 128 threads for each query head: two sums by atomics, a bitonic sort.
  void tile_budgets(Stage& stage) const;
  /// One CTA for each (tile, KV head): one warp of each head turns the stash into counts, one warp
  /// lists the rows, then every head goes over them one after the other.
  void pass2(Stage& stage, const Statistics& s) const;
  /// Flash: pass1's scores, and in the same CTA counts, list and rows of pass2, from shared memory.
  void flash_tile(Stage& stage, const Statistics& s) const;
  /// One CTA for each query head: a thread for each output element goes over all tiles.
  void flash_finalize(Stage& stage) const;

 private:
  double tiles_of_groups() const;                // (sequence, tile, KV head)
  double resident(double threads_of_cta) const;  // CTAs of an SM, as far as threads limit them
  LaunchShape launch(double ctas, double ctas_of_sm) const;
  double longest_tiles() const;  // of one head
  double count_rows() const;     // cycles: scores of a tile into counts, counts into a list
  double score_tile(double warps) const;  // cycles after the last score: maximum, sums

  Shape shape_;
  DeviceLimits limits_;
  int tile_;
};

}  // namespace kvsim
