#pragma once

#include "core/device_limits.h"
#include "kernels/shape.h"
#include "kernels/statistics.h"
#include "kernels/work.h"

namespace kvsim {

/// What the released SANTA kernels (repository OPUSLab/SANTA) wait for, counted in their source and
/// in what nvcc makes of it: loads of a warp that follow each other, trips through the cache,
/// instructions in chains, as many waves of CTAs as an SM holds. None of it is fitted to a time of
/// theirs. Counted at commits 5cfa55b and 11c6ef8, whose kernels differ in comments only; 2e5f861,
/// which was timed, could not be read.
class ReleasedPace {
 public:
  ReleasedPace(const Shape& shape, int tile, const DeviceLimits& limits);

  /// One CTA for each (tile, KV head) scores its keys: a warp loads one row, and the next only when
  /// it has summed the products of the first over its lanes.
  void pass1(Stage& stage) const;
  /// One CTA of 128 threads for each query head: two sums by atomics, a bitonic sort with a barrier
  /// after each pass.
  void tile_budgets(Stage& stage) const;
  /// One CTA for each (tile, KV head): one warp of each head turns the stash into counts, one warp
  /// lists the rows, then every head goes over them one after the other.
  void pass2(Stage& stage, const Statistics& s) const;
  /// Flash: pass1's scores, and in the same CTA counts, list and rows of pass2, from shared memory.
  void flash_tile(Stage& stage, const Statistics& s) const;
  /// One CTA for each query head: a thread for each output element goes over all tiles.
  void flash_finalize(Stage& stage, const Statistics& s) const;

 private:
  double tiles_of_groups() const;  // (sequence, tile, KV head)
  /// CTAs of an SM, as far as threads and their registers limit them.
  double resident(double threads, double registers) const;
  void launch(Stage& stage, double ctas, double threads, double registers) const;
  double longest_tiles() const;  // of one head
  double key_bytes() const;
  /// Of what a stage wrote little by little while it read so many bytes, the share that has left
  /// the cache when the next stage reads it.
  double evicted(double bytes) const;
  /// Cycles after the last score: maximum, exponentials, sums.
  double score_tile(double warps, double exponential) const;

  Shape shape_;
  DeviceLimits limits_;
  int tile_;
};

}  // namespace kvsim
