#pragma once

namespace kvsim::santapp_cycles {

// Cycles of the instructions of one warp of the SANTA++ kernel that wait for each other, memory
// left out. Counted from the source for heads of 128, not measured: 5.5 a step of arithmetic, 25 a
// shuffle or a warp's sum, 30 a barrier or what is read of shared memory, 33 a matrix product or
// its load (the costs that eta_cycles.h and santa_cycles.h give); round numbers. Noise alone is
// bound by issue slots, which two warps of a scheduler share.
inline constexpr double kNoise = 1900;  // a head's 256 teams: for each lane 2 Philox blocks, 160
                                        // slots, and 24 logarithms with what is around, 800; twice
inline constexpr double kScore = 500;   // a unit of 16 teams: 8 products, 300; a logarithm, stores
inline constexpr double kName = 700;    // a head's candidates of a tile, apart from the search
inline constexpr double kStep = 110;    // of a search: 8 comparisons, a warp's sum, a branch
inline constexpr double kFind = 1200;  // a head's threshold, apart from the search: least key, ties
inline constexpr double kMore = 40;    // of a step, for every 32 candidates beyond 256
inline constexpr double kMark = 600;   // 32 own candidates: two exponentials and a logarithm
inline constexpr double kList = 300;   // members of a team for each thread: two barriers, a scan
inline constexpr double kExact = 50;   // a row for each thread that is read for certain
inline constexpr double kAttend = 850;  // a unit of 16 rows: two products, a softmax's state

/// Steps of a search: sign, exponent, and what tells one of the largest priorities from the next
/// one, 1 / rank apart on average.
inline constexpr double kSearchSteps = 16;

}  // namespace kvsim::santapp_cycles
