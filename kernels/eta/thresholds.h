#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/method.h"

namespace kvsim::eta {

/// The model's own (eq. 1), of the group's heads: [group]. Throws RuntimeError where the trace has
/// none or has them in another shape.
std::vector<float> learned_thresholds(const StepView& view);

/// Whether a layer has learned ones, whole or not.
bool has_learned(const LearnedParameters* learned);

/// Scores of one head, each weighted by 1 / (tokens its query sees), in bins of a fixed width
/// (algorithm 1, lines 7 and 8).
class ScoreHistogram {
 public:
  ScoreHistogram();
  void add(std::span<const float> scores, double weight);

  /// Soft density under a threshold (line 14).
  double density(double threshold) const;
  /// The threshold of a density, by bisection (line 15).
  double threshold(double wanted) const;

 private:
  std::vector<double> bins_;
  std::size_t low_;       // first bin that is not empty
  std::size_t high_ = 0;  // one past the last
  double total_ = 0;
};

/// Last prompt queries of a head that calibration looks at.
inline constexpr std::int64_t kProbes = 256;

/// Constants of all heads (algorithm 1), from the prompt's last queries: [group].
std::vector<float> calibrated_thresholds(const CacheView& prompt, double density);

/// Thresholds with which a group loads a share of its full blocks: each head takes its m largest
/// bounds, and m is the least for which the union has ceil(density * blocks) blocks; equal bounds
/// may add more. A threshold lies halfway to the next bound, so that bounds which round otherwise
/// (a kernel's) take the same blocks. `bounds` [group, blocks]; without blocks -inf, an open gate.
std::vector<float> union_thresholds(std::span<const float> bounds, int group, std::int64_t blocks,
                                    double density);

/// Blocks that such a union has at least.
std::int64_t union_blocks(std::int64_t blocks, double density);

}  // namespace kvsim::eta
