#pragma once

#include <cstdint>

#include "kernels/device/geometry.h"

// Sizes of the ETA kernel that its launch and the cost model must agree on.

namespace kvsim::eta {

/// Tokens that a CTA takes at once: whole blocks of every size.
inline constexpr int kShareTokens = 256;
inline constexpr SplitUnit kSplitUnit{kShareTokens, 1};

/// CTAs to deal out over: as many as get whole teams of equal lengths, if few SMs are idle then. How
/// many blocks a part of a team takes varies, and parts have to be merged.
constexpr int most_ctas(int teams, int sms) {
  const int each = (teams + sms - 1) / sms;
  const int ctas = (teams + each - 1) / each;
  return teams > sms && ctas * 20 >= sms * 19 ? ctas : sms;
}

/// Blocks that are screened at once: rows of a matrix product.
inline constexpr int kScreenedAtOnce = 16;

}  // namespace kvsim::eta
