#pragma once

#include "kernels/device/geometry.h"
#include "kernels/device/step.h"

// Sizes of the Bernoulli kernels that their cost model must agree on; plain C++, as geometry.h is.

namespace kvsim {
namespace device {

/// Tokens of a feature that a warp reads at once: a block of the copy.
inline constexpr int kFeatureTokens = kFeatureBlock;

/// Features that a thread draws at a time.
inline constexpr int kDrawnAtOnce = 2;

/// Warps of a CTA of bernoulli-qk.
constexpr int bernoulli_warps(int head_dim, bool large) {
  return (head_class(head_dim) == 256 ? 4 : 8) / (large ? 1 : 2);
}

}  // namespace device

/// Dense values from Bernoulli scores: a unit per warp.
constexpr SplitUnit feature_split_unit(int head_dim) {
  return {device::kFeatureTokens, device::bernoulli_warps(head_dim, /*large=*/true)};
}

}  // namespace kvsim
