#pragma once

namespace kvsim::eta_cycles {

// Cycles of the instructions of one warp of the ETA kernel that wait for each other, memory left
// out: the stall counts of its machine code and its waits for shared memory (29; a matrix load 33),
// shuffles (25), roots and inverses (23), constants (30) and barriers (30), along the path that a
// step takes; nvcc 13.0, sm_90a, bf16 heads of 64 or 128 in groups of up to 8, round numbers.
// Counted as if a warp had its issue slots for itself and its instructions at hand.
inline constexpr double kQueries = 1200;  // from a group's queries to the first copies of records
inline constexpr double kBounds =
    1600;  // from 16 records to the heads that take each, the next
           // copies started: half of what two in a row take, 3100 at 64
inline constexpr double kTurnOver = 150;  // from the turn before to the next one
inline constexpr double kQueue = 700;     // more where a turn fills a slot: 600 to 750
inline constexpr double kTrack = 1000;    // more in the first chunk
inline constexpr double kClose = 1000;    // a team's last slot: the rescue and the tail
inline constexpr double kTake = 900;      // from a filled slot to the copies of a unit's rows

}  // namespace kvsim::eta_cycles
