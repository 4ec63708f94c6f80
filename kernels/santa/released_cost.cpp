#include "kernels/santa/released_cost.h"

#include <algorithm>
#include <cmath>

namespace kvsim {
namespace {

/// Cycles until the next instruction of a chain can go on, measured on an H200
/// (experiments/measured/h200/instruction_cycles.csv; a barrier of 256 threads); an instruction as
/// chains of kvsim's kernels take there (docs/design.md).
constexpr double kInstruction = 5.5;
constexpr double kSharedAccess = 29;
constexpr double kShuffle = 25;
constexpr double kBarrier = 28;
/// A float atomic on shared memory is a loop of load, add and compare-and-swap; of threads that add
/// to one word at once, one succeeds in each turn.
constexpr double kFloatAtomic = 82.5;
/// Between shuffles of one SM quarter: 32 lanes per cycle and SM.
constexpr double kShuffleSpacing = 4;

constexpr double kLanes = 32;
/// Loads that a loop of unknown length has under way, as nvcc unrolls it; one with shuffles, which
/// it must not repeat under a condition, has one.
constexpr double kUnrolled = 4;
/// CTAs of an SM that the kernels of rows keep registers free for.
constexpr double kLaunchBound = 4;
constexpr double kScanSteps = 5;  // log2 of the lanes

// Instructions of a chain, counted in the source.
constexpr double kExp = 6;        // subtract, scale, exponential, as __expf compiles
constexpr double kDivide = 12;    // float32, rounded
constexpr double kSplitmix = 44;  // 64-bit products and shifts, then double to float
constexpr double kCompareExchange = 8;

constexpr double instructions(double n) { return n * kInstruction; }

/// Sum or maximum over a warp of `values` values side by side.
constexpr double reduction(double values) {
  return kScanSteps * (kShuffle + (values - 1) * kShuffleSpacing + kInstruction);
}
/// Exclusive prefix sum over a warp: shuffle, add, select.
constexpr double scan() { return kScanSteps * (kShuffle + instructions(2)); }
/// What a chunk adds to the next: two shuffles and an add.
constexpr double carry() { return 2 * kShuffle + kInstruction; }

double waves(const LaunchShape& launch) { return std::ceil(launch.ctas / launch.ctas_per_wave); }

double log2_up(double n) { return std::ceil(std::log2(std::max(n, 1.0))); }

/// Convert, 4 dependent multiply-adds, sum over lanes, loop.
double score_row(double group) { return instructions(2 + 4) + reduction(group) + instructions(3); }

/// Rows of a tile in which something is drawn.
struct DrawnRows {
  double listed;  // of the group
  double own;     // of one head

  explicit DrawnRows(const Statistics& s)
      : listed(s.group_tiles > 0 ? s.v_rows / s.group_tiles : 0),
        own(s.head_tiles > 0 ? std::ceil(s.v_requests / s.head_tiles) : 0) {}
};

/// The kernel that pass 1 has for groups of 4, heads of 128 and tiles of 256; else it stages
/// panels of 16 columns of K for its matrix instructions.
bool is_row_by_row(const Shape& shape, int tile) {
  return shape.group() == 4 && shape.head_dim == 128 && tile == 256;
}

}  // namespace

ReleasedPace::ReleasedPace(const Shape& shape, int tile, const DeviceLimits& limits)
    : shape_(shape), limits_(limits), tile_(tile) {}

double ReleasedPace::tiles_of_groups() const {
  double tiles = 0;
  for (const std::int64_t context : shape_.contexts) {
    tiles += std::ceil(static_cast<double>(context) / tile_);
  }
  return tiles * shape_.kv_heads;
}

double ReleasedPace::resident(double threads_of_cta) const {
  return std::max(1.0, std::floor(limits_.threads_per_sm / threads_of_cta));
}

LaunchShape ReleasedPace::launch(double ctas, double ctas_of_sm) const {
  return {ctas, ctas_of_sm * limits_.sms};
}

double ReleasedPace::longest_tiles() const {
  const auto longest = *std::max_element(shape_.contexts.begin(), shape_.contexts.end());
  return std::ceil(static_cast<double>(longest) / tile_);
}

double ReleasedPace::score_tile(double warps) const {
  const double group = shape_.group();
  const double each = std::ceil(tile_ * group / (warps * kLanes));  // exponentials of a thread
  const double maximum = 2 * kBarrier + 3 * kSharedAccess + instructions(warps);
  const double exponentials = each * (2 * kSharedAccess + instructions(kExp + 4));
  const double sums = reduction(group) + kBarrier + 2 * kSharedAccess + instructions(warps);
  return maximum + exponentials + sums;
}

double ReleasedPace::count_rows() const {
  const double chunks = std::ceil(tile_ / kLanes);
  const double counts = chunks * (scan() + carry() + instructions(10));
  const double list = chunks * (scan() + carry() + kSharedAccess + instructions(8));
  const double barriers = 4 * (kBarrier + kSharedAccess);
  return counts + list + barriers;
}

void ReleasedPace::pass1(Stage& stage) const {
  constexpr double kWarps = 8;
  const bool rows = is_row_by_row(shape_, tile_);
  const double resident_ctas =
      rows ? std::min(kLaunchBound, resident(kWarps * kLanes)) : resident(2.0 * tile_);
  stage.launch = launch(tiles_of_groups(), resident_ctas);
  const double count = waves(stage.launch);
  // Load panel, barrier, 16 x 16 x 16 product, barrier.
  const double panel = 2 * kBarrier + 2 * kSharedAccess + instructions(8);
  stage.load_rounds = count * (rows ? tile_ / kWarps : shape_.head_dim / 16.0);
  stage.round_cycles = rows ? score_row(shape_.group()) : panel;
  stage.chain_cycles = count * score_tile(kWarps);
}

void ReleasedPace::flash_tile(Stage& stage, const Statistics& s) const {
  const double warps = tile_ == 256 ? 8 : 4;
  stage.launch = launch(tiles_of_groups(), std::min(kLaunchBound, resident(warps * kLanes)));
  const double count = waves(stage.launch);
  const DrawnRows drawn(s);
  const double keys = tile_ / warps;
  const double gathers = std::ceil(drawn.own / kUnrolled);
  stage.load_rounds = count * (keys + gathers);
  const double accumulate = instructions(2 + kUnrolled);
  stage.round_cycles = (keys * score_row(shape_.group()) + gathers * accumulate) / (keys + gathers);
  const double look = drawn.listed / kUnrolled * (2 * kSharedAccess + instructions(3 * kUnrolled));
  const double chunks = std::ceil(tile_ / kLanes);
  const double draw = instructions(kSplitmix + kDivide) + chunks * kSharedAccess + count_rows();
  stage.chain_cycles = count * (score_tile(warps) + draw + look);
}

void ReleasedPace::flash_finalize(Stage& stage) const {
  constexpr double kThreads = 256;
  const double heads = shape_.batch() * shape_.q_heads;
  const double tiles = longest_tiles();
  stage.launch = launch(heads, resident(kThreads));
  const double count = waves(stage.launch);
  // Two levels between barriers, then one warp in shared memory; maximum and sum.
  const double tree =
      2 * (kBarrier + 2 * kSharedAccess) + 6 * (2 * kSharedAccess + kInstruction) + 2 * kBarrier;
  const double each = std::ceil(tiles / kThreads);
  stage.chain_cycles = count * (2 * tree + each * instructions(kExp + 2) + instructions(kDivide));
  // Maxima come with the ramp; then maxima and sums, and the tiles' outputs.
  stage.cache_trips = count * (2 * each + std::ceil(tiles / kUnrolled)) - 1;
}

void ReleasedPace::tile_budgets(Stage& stage) const {
  constexpr double kThreads = 128;
  const double heads = shape_.batch() * shape_.q_heads;
  const double tiles = longest_tiles();
  const double each = std::ceil(tiles / kThreads);  // tiles of a thread
  stage.launch = launch(heads, resident(kThreads));
  const double count = waves(stage.launch);
  const double maximum = 2 * reduction(1) + 4 * kSharedAccess + 2 * kBarrier;
  const double mass =
      each * (2 * kSharedAccess + instructions(kExp + 2)) + kThreads * kFloatAtomic + 2 * kBarrier;
  const double share = each * (kSharedAccess + instructions(kDivide + kSplitmix + 6)) +
                       kSharedAccess + kLanes + 2 * kBarrier;  // integer atomics are native
  const double passes = log2_up(tiles);
  const double sort = passes * (passes + 1) / 2 * std::ceil(std::exp2(passes) / kThreads) *
                          (kSharedAccess + instructions(kCompareExchange)) +
                      passes * kBarrier;
  const double finish = each * instructions(kDivide + kSplitmix) + kSharedAccess + kBarrier;
  stage.chain_cycles = count * (maximum + mass + share + sort + finish);
  // Maxima come with the ramp; then sums, budgets that get one more, sums and budgets again.
  stage.cache_trips = count * each * 4 - 1;
}

void ReleasedPace::pass2(Stage& stage, const Statistics& s) const {
  constexpr double kThreadsOfHead = 128;
  stage.launch = launch(tiles_of_groups(), resident(kThreadsOfHead * shape_.group()));
  const double count = waves(stage.launch);
  // Waves of CTAs that have samples; the others skip stash and rows. One CTA has, if any has.
  const double drawing = std::max(std::min(1.0, s.group_tiles),
                                  count * std::min(1.0, s.group_tiles / stage.launch.ctas));
  const DrawnRows drawn(s);
  stage.load_rounds = drawing * drawn.own;
  stage.round_cycles = 2 * kSharedAccess + instructions(3);  // accumulators in shared memory
  const double look = drawn.listed * (2 * kSharedAccess + instructions(3));  // a loop in the loop
  stage.chain_cycles = count * count_rows() + drawing * look;
  const double chunks = std::ceil(tile_ / kLanes);
  stage.cache_trips = count + drawing * chunks - 1;  // offsets, of which the first are in the ramp
}

}  // namespace kvsim
