#pragma once

// Sizes of the radix select over a team, for the kernel and the cost model.

namespace kvsim::device {

inline constexpr int kRounds = 4;
inline constexpr int kDigitBits = 8;
inline constexpr int kBins = 1 << kDigitBits;
inline constexpr int kSelectedRowsAtOnce = 8;  // V rows that a warp has under way

}  // namespace kvsim::device
