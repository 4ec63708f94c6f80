#pragma once

#include <cmath>
#include <cstdint>

#include "core/exact_math.h"
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

/// The same in vectors of head_dim elements.
constexpr double record_vectors(int head_dim) { return 2 + 1.0 / head_dim; }

/// Bound of a block's logits (eq. 7): `dot` = q·μ, `deviation` = √(Σ q² σ²).
KVSIM_HD inline float block_bound(float dot, float deviation, float query_norm, float largest_norm,
                                  float z, float scale) {
  const float spread = std::fma(z, deviation, dot);
  const float sphere = query_norm * largest_norm;
  return scale * (spread < sphere ? spread : sphere);
}

/// Whether a head takes a block; `threshold` is τ - a (algorithm 4, lines 10 and 19).
KVSIM_HD inline bool passes(float bound, float threshold) { return bound >= threshold; }

/// The blocks that every head takes: the last `pinned` full ones.
KVSIM_HD inline bool is_pinned(std::int64_t block, std::int64_t full_blocks, int pinned) {
  return block >= full_blocks - pinned;
}

/// Whether chunk 1 has a block to rescue and no pinned one, which would do instead.
KVSIM_HD inline bool may_rescue(std::int64_t full_blocks, std::int64_t chunk, int pinned) {
  const std::int64_t last = (chunk < full_blocks ? chunk : full_blocks) - 1;  // of chunk 1
  return last >= 0 && !is_pinned(last, full_blocks, pinned);
}

/// Tokens that the envelope takes together; shorter blocks are one sub-block.
KVSIM_HD constexpr int sub_block(int block) { return block < kSubBlock ? block : kSubBlock; }

/// Mean of one coordinate (section 3.1). `key(t)` is that of the block's token t; `block` is a
/// power of two here and below, so that its inverse is exact.
template <typename Key>
KVSIM_HD inline float centroid(const Key& key, int block) {
  float sum = 0;
  for (int t = 0; t < block; ++t) sum += key(t);
  return sum * (1.0f / static_cast<float>(block));
}

/// Mean square of tokens [begin, begin + count) about the block's centroid, before its rounding.
template <typename Key>
KVSIM_HD inline float mean_square(const Key& key, int begin, int count, float mean) {
  float sum = 0;
  for (int t = begin; t < begin + count; ++t) {
    const float deviation = key(t) - mean;
    sum = std::fma(deviation, deviation, sum);
  }
  return sum * (1.0f / static_cast<float>(count));
}

/// Standard deviation of one coordinate (section 3.1).
template <typename Key>
KVSIM_HD inline float flat_spread(const Key& key, int block, float mean) {
  return std::sqrt(mean_square(key, 0, block, mean));
}

/// Largest of the sub-blocks' deviations from the block's centroid (eq. 22).
template <typename Key>
KVSIM_HD inline float envelope_spread(const Key& key, int block, float mean) {
  float largest = 0;
  for (int begin = 0; begin < block; begin += sub_block(block)) {
    const float square = mean_square(key, begin, sub_block(block), mean);
    largest = square > largest ? square : largest;
  }
  return std::sqrt(largest);
}

/// ‖x‖² of a vector padded with zeros to `padded` elements, a multiple of 32: 32 lanes side by
/// side, then halves are added until one is left, as all dot products are (kernels/lanes.h).
KVSIM_HD inline float norm_squared(const float* x, int padded) {
  constexpr int kSums = 32;
  float lane[kSums];
  for (int l = 0; l < kSums; ++l) lane[l] = x[l] * x[l];
  for (int i = kSums; i < padded; i += kSums) {
    for (int l = 0; l < kSums; ++l) lane[l] = std::fma(x[i + l], x[i + l], lane[l]);
  }
  for (int width = kSums / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
  }
  return lane[0];
}

/// What a record stores of the largest ‖k‖² of its keys.
KVSIM_HD inline float stored_norm(float largest_square) {
  return std::sqrt(largest_square) * kNormMargin;
}

enum class Gate { kMultiplicative, kAdditive, kNone };

/// 1 / (1 + e^-x) by IEEE operations.
KVSIM_HD inline float sigmoid(float x) {
  const float e = exp_nonpositive(x < 0.0f ? x : -x);
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/// A logit after the gate (eq. 2 and 3, appendix C); `threshold` is τ - a.
KVSIM_HD inline float gated_logit(float logit, float threshold, Gate gate) {
  if (gate == Gate::kNone) return logit;
  const float open = sigmoid(kGateSlope * (logit - threshold));
  return gate == Gate::kMultiplicative ? logit * open : std::fma(kAdditiveGate, open - 1.0f, logit);
}

}  // namespace kvsim::eta
