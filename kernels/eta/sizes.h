#pragma once

#include <cstdint>

#include "kernels/device/geometry.h"

// Sizes of the ETA kernel that its launch and the cost model must agree on.

namespace kvsim::eta {

/// Tokens that a CTA takes at once: whole blocks of every size.
inline constexpr int kShareTokens = 256;
inline constexpr SplitUnit kSplitUnit{kShareTokens, 1};

/// Blocks that a screening warp takes at a turn: rows of a matrix product.
inline constexpr int kScreenedAtOnce = 16;

/// Of a CTA, for a class of head sizes (head_class) and groups in eights; `large`: an SM has
/// kLargeSharedBytes.
constexpr int screening_warps(int head_dim, int heads8, bool large) {
  if (head_dim == 64) return large ? 4 : 2;
  return head_dim == 128 && heads8 == 1 ? 2 : 1;
}

}  // namespace kvsim::eta
