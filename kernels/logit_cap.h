#pragma once

#include <cmath>

#include "core/exact_math.h"

namespace kvsim {

/// tanh from IEEE operations alone, so that capped scores, and what is selected by them, are the
/// same bits on every machine, which a C library's tanh need not be. Relative error below 2^-22.
KVSIM_HD inline float exact_tanh(float x) {
  const float size = std::fabs(x);
  if (size < 0.625f) {  // Cephes tanhf: there 1 - e would cancel
    const float z = x * x;
    float p = -5.70498872745e-3f;
    p = std::fma(p, z, 2.06390887954e-2f);
    p = std::fma(p, z, -5.37397155531e-2f);
    p = std::fma(p, z, 1.33314422036e-1f);
    p = std::fma(p, z, -3.33332819422e-1f);
    return std::fma(p * z, x, x);
  }
  const float e = exp_nonpositive(-2.0f * size);
  return std::copysign((1.0f - e) / (1.0f + e), x);
}

/// cap * tanh(logit / cap).
KVSIM_HD inline float capped_logit(float logit, float cap) { return cap * exact_tanh(logit / cap); }

}  // namespace kvsim
