#pragma once

namespace kvsim::bernoulli_cycles {

// Cycles of a CTA's threads before their first keys are asked for: clock readings of bernoulli-qk,
// 32k tokens, 4 heads of 128 a group, on an H200 (experiments/measured/h200/bernoulli_cycles.csv),
// in round numbers.
inline constexpr double kDraw = 2450;   // kDrawnAtOnce features of a thread
inline constexpr double kPlace = 1100;  // what they make, where products find it

}  // namespace kvsim::bernoulli_cycles
