#pragma once

#include "kernels/device/geometry.h"
#include "kernels/device/step.h"

// Sizes of the Bernoulli kernels that their cost model must agree on; plain C++, as geometry.h is.

namespace kvsim {
namespace device {

/// Tokens of a feature that a warp reads at once: a block of the copy.
inline constexpr int kFeatureTokens = kFeatureBlock;

}  // namespace device

/// Dense values from Bernoulli scores: a unit per warp.
constexpr SplitUnit feature_split_unit(int head_dim) {
  return {device::kFeatureTokens, head_class(head_dim) == 256 ? 4 : 8};
}

}  // namespace kvsim
