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

// Of a finishing warp of santa-flash, for a block of one head: the stall counts of its machine code
// (nvcc 13.0, sm_90, bf16 heads of 128), with a shuffle at 25 cycles, a shared load at 29, a
// conversion at 19, a branch that is taken at 5 (instruction_cycles.csv); loads from memory apart.
inline constexpr double kBlockPrefixes = 1400;  // until the rows of the block before are added
inline constexpr double kBlockWeight = 150;
inline constexpr double kBlockDraws = 925;  // a row for each lane, queued
inline constexpr double kBlockRow = 89;     // loaded and added

// These two split one reading of santa-prop, whose ranks have become shorter since; they were
// chosen with its times in view.
inline constexpr double kWhole = 600;   // budgets of up to 128 tiles
inline constexpr double kCompare = 20;  // of a remainder with one of each of 32 others

}  // namespace kvsim::santa_cycles
