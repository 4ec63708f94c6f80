#pragma once

#include <cstdint>

// Sizes that kernels, their host plans and the cost model must agree on; plain C++, so that builds
// without CUDA have them too.

namespace kvsim {

/// Head sizes are padded to classes, so that few instances are compiled.
constexpr int head_class(int head_dim) {
  return head_dim <= 64 ? 64 : (head_dim <= 128 ? 128 : 256);
}

/// Of an SM's shared memory, for the system, per CTA.
inline constexpr int kSystemSharedBytes = 1024;

/// An SM with so much shared memory runs the instances with large rings.
inline constexpr std::int64_t kLargeSharedBytes = 160 * 1024;

namespace device {
inline constexpr int kUnitTokens = 16;  // rows of one matrix product

/// Shared memory of the kernels begins on such a boundary, so that tile offsets can be flipped by
/// exclusive or.
inline constexpr int kSharedAlignment = 1024;
}  // namespace device

/// What a CTA takes at once, and of how many of those a CTA is not worth starting.
struct SplitUnit {
  int tokens = 1;
  int least = 1;
};

/// Dense attention: a unit per warp.
constexpr SplitUnit dense_split_unit(int head_dim) {
  return {device::kUnitTokens, head_class(head_dim) == 256 ? 4 : 8};
}

}  // namespace kvsim
