#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "kernels/bernoulli/feature_arguments.cuh"
#include "kernels/santa/rule.h"

// What the two halves of the SANTA kernels share: prefix_sums.cuh (scores to tile records and
// prefix sums) and gather.cuh (records to samples to output). Fused in one launch, or one launch
// each.

namespace kvsim::device {

enum class SantaRule { kSystematic, kStratified, kIid, kLargestRemainder, kSystematicBudgets };

/// Samples are drawn from the head's whole mass, in no order.
KVSIM_HD constexpr bool is_independent(SantaRule rule) { return rule == SantaRule::kIid; }
/// Tiles get whole samples, then those with the largest remainders one more.
KVSIM_HD constexpr bool ranks_remainders(SantaRule rule) {
  return rule == SantaRule::kLargestRemainder;
}
/// Tiles know their number of samples before these are drawn.
KVSIM_HD constexpr bool is_budgeted(SantaRule rule) {
  return rule == SantaRule::kLargestRemainder || rule == SantaRule::kSystematicBudgets;
}
/// A tile's masses bound which samples may be its own.
KVSIM_HD constexpr bool is_bounded(SantaRule rule) {
  return rule == SantaRule::kSystematic || rule == SantaRule::kStratified;
}
/// Every sample has a random offset of its own, not all of a head one.
KVSIM_HD constexpr bool has_sample_offsets(SantaRule rule) {
  return rule == SantaRule::kStratified || rule == SantaRule::kIid;
}

/// A record is a tile's largest score and its units.
struct SantaArguments : FeatureArguments {
  SantaRule rule = SantaRule::kSystematic;
  std::uint32_t samples = 128;
  float per_sample = 0;         // 1 / samples
  std::int32_t slots_log2 = 0;  // log2 of the most partial sums of a head
  bool offset_per_tile = false;
  bool shared_offsets = false;  // a group's heads draw the same random words
};

}  // namespace kvsim::device
