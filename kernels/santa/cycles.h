#pragma once

namespace kvsim::santa_cycles {

// Cycles of the instructions of one warp between two steps of our kernels, memory left out: clock
// readings of santa-sys, 32k tokens, 4 heads a group, on an H200
// (experiments/measured/h200/santa_cycles.csv) less the 20 that a reading takes, in round numbers
// that keep their sum.
inline constexpr double kMasses = 700;   // of up to 128 tiles
inline constexpr double kStrata = 500;   // of a head
inline constexpr double kLineUp = 700;   // of up to 32 own tiles
inline constexpr double kDealOut = 550;  // of chunks, once
inline constexpr double kChunk = 1650;   // a row for each lane, queued
inline constexpr double kSums = 600;     // of a CTA's warps

// These two split one reading of santa-prop, whose ranks have become shorter since; they were
// chosen with its times in view.
inline constexpr double kWhole = 600;   // budgets of up to 128 tiles
inline constexpr double kCompare = 20;  // of a remainder with one of each of 32 others

}  // namespace kvsim::santa_cycles
