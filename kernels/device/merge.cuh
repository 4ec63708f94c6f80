#pragma once

#include <cstdint>

#include "kernels/device/step.h"
#include "kernels/device/team_split.h"
#include "kernels/device/units.cuh"

// Partial results of the CTAs of a team and their merge, in the order of the split: no float
// atomics, so equal launches give equal bytes.

namespace kvsim::device {

/// Partial results wait in global memory: two slots per CTA, for the first and the last team of its
/// share (a team in between is the CTA's alone).
struct Partials {
  float* values = nullptr;            // [2 * ctas, group, head_dim]
  float2* weights = nullptr;          // [2 * ctas, group]: reference exponent (log2) and sum
  std::uint32_t* tickets = nullptr;   // [teams], zero between launches
};

__device__ inline int slot_of(const TeamSplit& split, const TeamSplit::Team& team, int cta) {
  const bool first = split.ctas_per_team > 0 || split.share_begin(cta) >= team.begin;
  return 2 * cta + (first ? 0 : 1);
}

/// True in all threads of the CTA that arrives last of the team's `count`. Everything the others
/// wrote before they arrived is visible then.
__device__ inline bool arrives_last(std::uint32_t* ticket, int count, int* flag) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    const auto most = static_cast<std::uint32_t>(count - 1);
    *flag = atomicInc(ticket, most) == most;  // wraps to zero for the next launch
    __threadfence();
  }
  __syncthreads();
  return *flag != 0;
}

/// 2^(a - b), zero if a is -infinity (nothing was seen).
__device__ inline float rescale(float a, float b) {
  return a == -INFINITY ? 0.0f : fast_exp2(a - b);
}

}  // namespace kvsim::device
