#pragma once

#include <cstdint>

#include "kernels/device/geometry.h"

// Sizes of the ETA kernel that its launch and the cost model must agree on.

namespace kvsim::eta {

/// Tokens that a CTA takes at once: whole blocks of every size.
inline constexpr int kShareTokens = 256;
inline constexpr SplitUnit kSplitUnit{kShareTokens, 1};

/// Blocks that are screened at once: rows of a matrix product.
inline constexpr int kScreenedAtOnce = 16;

}  // namespace kvsim::eta
