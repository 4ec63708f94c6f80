#pragma once

#include "kernels/device/geometry.h"

// Sizes of the Bernoulli kernels that their cost model must agree on; plain C++, as geometry.h is.

namespace kvsim {
namespace device {

/// Tokens of a feature that a warp reads at once: a line of 128 bytes. With half of it the L2 is
/// busy before the memory is.
inline constexpr int kFeatureTokens = 64;

}  // namespace device

/// Dense values from Bernoulli scores: a unit per warp.
constexpr SplitUnit feature_split_unit(int head_dim) {
  return {device::kFeatureTokens, head_class(head_dim) == 256 ? 4 : 8};
}

}  // namespace kvsim
