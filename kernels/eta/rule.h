#pragma once

#include <cmath>
#include <cstdint>

#include "core/host_device.h"

// What Elastic Threshold Attention decides (arXiv 2609.20888), for reference and kernels alike:
// only IEEE operations in a fixed order, so both take the same blocks given the same bounds.

namespace kvsim::eta {

/// Tokens of a sub-block of the envelope (eq. 22, appendix J.1).
inline constexpr int kSubBlock = 4;

/// Slope β of the gate after training, which is the one at inference (section 3.2).
inline constexpr float kGateSlope = 5;

/// What a closed additive gate takes off a logit (appendix C).
inline constexpr float kAdditiveGate = 100;

/// Stored norms are raised by it: whatever rounding does to norms and products, ‖q‖ M stays a bound
/// of q·k for head sizes up to 256.
inline constexpr float kNormMargin = 1.0f + 0x1p-18f;

/// Bytes of a block's record: centroid and spread in 16 bits, the largest norm in 32.
constexpr std::int64_t record_bytes(int head_dim) { return 2 * head_dim * 2 + 4; }

/// Bound of a block's logits (eq. 7): `dot` = q·μ, `variance` = Σ q² σ².
KVSIM_HD inline float block_bound(float dot, float variance, float query_norm, float largest_norm,
                                  float z, float scale) {
  const float spread = std::fma(z, std::sqrt(variance), dot);
  const float sphere = query_norm * largest_norm;
  return scale * (spread < sphere ? spread : sphere);
}

/// Whether a head takes a block; `threshold` is τ - a (algorithm 4, lines 10 and 19).
KVSIM_HD inline bool passes(float bound, float threshold) { return bound >= threshold; }

/// The blocks that every head takes: the last `pinned` full ones.
KVSIM_HD inline bool is_pinned(std::int64_t block, std::int64_t full_blocks, int pinned) {
  return block >= full_blocks - pinned;
}

}  // namespace kvsim::eta
