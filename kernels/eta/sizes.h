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

/// Heads that an instance pads a group to, in eights.
constexpr int heads8_of(int group) { return group > 8 ? 2 : 1; }

/// Shared memory of an SM that holds two CTAs of heads of 64 in groups of up to 8.
inline constexpr std::int64_t kTwoCtasSharedBytes = 208 * 1024;

/// CTAs of an SM, for a class of head sizes (head_class) and groups in eights. Of two, one streams
/// while the other adds up a team.
constexpr int ctas_per_sm(int head_dim, int heads8, std::int64_t shared_bytes_per_sm) {
  return head_dim == 64 && heads8 == 1 && shared_bytes_per_sm >= kTwoCtasSharedBytes ? 2 : 1;
}

/// Of a CTA, likewise; `large`: an SM has kLargeSharedBytes.
constexpr int screening_warps(int head_dim, int heads8, bool large) {
  if (head_dim == 64) return large && heads8 == 2 ? 4 : 2;
  return head_dim == 128 && heads8 == 1 ? 2 : 1;
}

}  // namespace kvsim::eta
