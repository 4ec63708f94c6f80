#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvsim::synth {

/// Raw scores g (normal, variance about 1) of the tokens that one query sees. Logits are
///   tau * g + sink (first tokens) + recency * feature (last tokens).
struct Profile {
  static constexpr int kBins = 4096;
  static constexpr double kRange = 10;  // bins span [-kRange, kRange]

  std::vector<double> sinks;
  std::vector<double> tail;           // the last tokens, in order
  std::vector<double> tail_features;  // in [0, 1]
  std::size_t window_begin = 0;       // index in `tail` of the first token of the window
  std::vector<double> counts = std::vector<double>(kBins);  // all other tokens, by score

  static double centre(int bin) { return (bin + 0.5) * (2 * kRange / kBins) - kRange; }
  static int bin_of(double score);
};

struct Target {
  double entropy_nats = 0;
  double sink_mass = 0;  // 0: not asked
  double recency = 0;    // 0: not asked
};

struct Coefficients {
  double tau = 0;
  double sink = 0;
  double recency = 0;
  double entropy_nats = 0;  // what they give
};

/// The coefficients that give the masses exactly and the entropy as nearly as it can be had.
Coefficients calibrate(const Profile& profile, const Target& target);

/// What the scores of `others` tokens besides sinks and tail look like if they are exactly normal.
std::vector<double> normal_counts(double others);

}  // namespace kvsim::synth
