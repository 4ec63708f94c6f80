#pragma once

#include <cstdint>

#include "core/exact_math.h"
#include "kernels/device/stream.cuh"
#include "kernels/santa/rule.h"

// What the two halves of the SANTA kernels share: prefix_sums.cuh (scores to tile records and
// prefix sums) and gather.cuh (records to samples to output). Fused in one launch, or one launch
// each.

namespace kvsim::device {

enum class SantaRule { kSystematic, kStratified, kIid, kLargestRemainder, kSystematicBudgets };

/// A record is a tile's largest score and its units.
struct SantaArguments : StreamArguments {
  SantaRule rule = SantaRule::kSystematic;
  std::uint32_t samples = 128;
  float per_sample = 0;         // 1 / samples
  std::int32_t pairs = 0;       // most (head, tile) pairs of a CTA in one team
  std::int32_t slots_log2 = 0;  // warps that may share a head's samples
  bool offset_per_tile = false;
};

}  // namespace kvsim::device
