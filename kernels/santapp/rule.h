#pragma once

#include <cstdint>

#include "core/exact_math.h"
#include "core/host_device.h"

// What SANTA++ decides (arXiv 2609.35629), for reference and kernels alike: only IEEE operations in
// a fixed order, so both draw the same teams given the same scores of their leaders.

namespace kvsim::santapp {

/// φ of a team of `size` keys (section 2.3): the logarithm of the mass it would have if all its
/// keys scored what routes to it does.
KVSIM_HD inline float team_weight(std::int32_t size, float logit) {
  return log_positive(static_cast<float>(size)) + logit;
}

/// Gumbel noise of a random word: -ln(-ln u), u = 1 - (word + ½) 2^-32. Large noise comes from
/// small words, so that what is drawn first is not coarse, however many teams there are.
KVSIM_HD inline float gumbel(std::uint32_t word) {
  constexpr float kUnit = 0x1p-32f;
  const float from_zero = (static_cast<float>(word) + 0.5f) * kUnit;
  const float from_one = (static_cast<float>(~word) + 0.5f) * kUnit;
  const float exponential = word < 0x80000000u ? -log1p_exact(-from_zero) : -log_positive(from_one);
  return -log_positive(exponential);
}

/// Whether a team is drawn before another one: larger priorities first, ties to the lower team.
KVSIM_HD inline bool goes_before(float a, std::int32_t team_a, float b, std::int32_t team_b) {
  return a > b || (a == b && team_a < team_b);
}

/// ln c of a drawn team (section 2.3, appendix A): c = 1 - exp(-exp(x)) is its chance to be drawn
/// given the noise of all others, x = φ - κ, κ the largest priority that was not drawn.
KVSIM_HD inline float log_inclusion(float x) {
  if (x < -20.0f) return x;  // c = e^x (1 - e^x / 2 …)
  if (x > 20.0f) return 0.0f;
  const float rate = x > 0.0f ? 1.0f / exp_nonpositive(-x) : exp_nonpositive(x);
  return log_positive(-expm1_nonpositive(-rate));
}

}  // namespace kvsim::santapp
