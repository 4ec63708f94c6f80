#pragma once

#include "kernels/lanes.h"

namespace kvsim::santapp {

/// ‖a - b‖² of vectors padded with zeros to `padded` elements: the same bits whatever the vector
/// width.
inline float distance_squared(const float* a, const float* b, int padded) {
  alignas(64) float lane[kLanes];
#pragma omp simd
  for (int l = 0; l < kLanes; ++l) lane[l] = (a[l] - b[l]) * (a[l] - b[l]);
  for (int i = kLanes; i < padded; i += kLanes) {
#pragma omp simd
    for (int l = 0; l < kLanes; ++l) {
      const float difference = a[i + l] - b[i + l];
      lane[l] = std::fma(difference, difference, lane[l]);
    }
  }
  return sum_lanes(lane);
}

}  // namespace kvsim::santapp
