#include "kernels/santa/released_cost.h"

#include <algorithm>
#include <cmath>

namespace kvsim {
namespace {

// Cycles of one warp, from the machine code that nvcc 13.0 makes of the source for sm_90: the stall
// counts of its instructions; for those of no fixed length, a taken branch (5), a reconvergence
// (8) and lanes that part (18), what an H200 was measured to take
// (experiments/measured/h200/instruction_cycles.csv). Loads from memory are counted apart.
constexpr double kPass1Row = 348;        // a key: address, 4 dot products, sums over lanes, score
constexpr double kFlashRow = 358;        // the same
constexpr double kTileSums = 650;        // maximum and sum of a tile, without its exponentials
constexpr double kPass1Exp = 78;         // an exponential of a thread, unrolled by four
constexpr double kFlashExp = 152;        // not unrolled
constexpr double kCountChunk = 354;      // 32 scores to counts: prefix sum, carry, 3 roundings
constexpr double kPass2ListChunk = 480;  // 32 counts to a list of rows
constexpr double kFlashListChunk = 305;
constexpr double kPass2Begin = 509;   // division by the group, accumulators cleared
constexpr double kPass2Listed = 119;  // a row of the list, whether the head drew it or not
constexpr double kPass2Drawn = 94;    // one that it drew
constexpr double kFlashDraw = 356;    // division, splitmix64
constexpr double kFlashListed = 55;   // looked up four at a time
constexpr double kFlashDrawn = 68;    // but each waits for its loads in a branch of its own
constexpr double kFinalize = 2305;    // two trees over 256 threads and what is between
constexpr double kFinalizeTile = 15;
constexpr double kFinalizeAtOnce = 3.4;  // tiles under way: 16 loads in 4.7 trips
constexpr double kBudgets = 2831;        // of a thread's first tile, of which divisions 315
constexpr double kBudgetsTile = 799;     // of each further one
constexpr double kSortPass = 214;        // a compare-exchange and its barrier
constexpr double kSortPair = 132;        // a further pair of the same thread
constexpr double kSortLength = 53;       // once for each length of sorted runs
constexpr double kPart = 18;             // lanes of a warp that part and meet again

/// A float atomic on shared memory is a loop of load, add and compare-and-swap; of threads that add
/// to one word at once, one succeeds in each turn.
constexpr double kFloatAtomic = 82.5;
/// Floats that all CTAs together add to memory in a cycle, and cycles from CTA to CTA of a launch
/// (experiments/measured/h200/launch_us.csv, at 1980 MHz).
constexpr double kAddsPerCycle = 185;
constexpr double kCtaLaunch = 1.18;

/// What a stage wrote is still in the cache while less of others' bytes than this share of it have
/// been read since: 40 of an H200's 50 MiB (load_cycles.csv).
constexpr double kKept = 0.8;

constexpr double kLanes = 32;
constexpr double kUnrolled = 4;  // a strided loop's loads, if so many are left
/// Registers of a thread. 48 leave an SM room for 5 CTAs of the kernels of rows, one more than
/// their launch bounds ask for.
constexpr double kRowRegisters = 48;
constexpr double kOtherRegisters = 32;
constexpr double kRegistersPerSm = 65536;

double barrier(double threads) { return 12 + threads / 16; }

/// Until all CTAs of the first wave have begun.
double begin_wave(const LaunchShape& launch) {
  return kCtaLaunch * std::min(launch.ctas, launch.ctas_per_wave);
}

double waves(const LaunchShape& launch) { return std::ceil(launch.ctas / launch.ctas_per_wave); }

double log2_up(double n) { return std::ceil(std::log2(std::max(n, 1.0))); }

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

double ReleasedPace::resident(double threads, double registers) const {
  const double most = std::min<double>(limits_.threads_per_sm, kRegistersPerSm / registers);
  return std::max(1.0, std::floor(most / threads));
}

void ReleasedPace::launch(Stage& stage, double ctas, double threads, double registers) const {
  stage.launch = {ctas, resident(threads, registers) * limits_.sms};
  // On the mean over all waves.
  const double ctas_of_sm = std::max(1.0, ctas / (waves(stage.launch) * limits_.sms));
  stage.load_warps = ctas_of_sm * threads / kLanes;
}

double ReleasedPace::longest_tiles() const {
  const auto longest = *std::max_element(shape_.contexts.begin(), shape_.contexts.end());
  return std::ceil(static_cast<double>(longest) / tile_);
}

double ReleasedPace::key_bytes() const {
  double tokens = 0;
  for (const std::int64_t context : shape_.contexts) tokens += static_cast<double>(context);
  return tokens * shape_.kv_heads * shape_.k_row_bytes();
}

double ReleasedPace::evicted(double bytes) const {
  return std::max(0.0, 1 - kKept * static_cast<double>(limits_.l2_bytes) / bytes);
}

double ReleasedPace::score_tile(double warps, double exponential) const {
  const double each = std::ceil(tile_ * shape_.group() / (warps * kLanes));
  return kTileSums + each * exponential;
}

void ReleasedPace::pass1(Stage& stage) const {
  constexpr double kWarps = 8;
  // Load panel, barrier, 16 x 16 x 16 product, barrier; estimated, not from machine code.
  constexpr double kPanel = 160;
  const bool rows = is_row_by_row(shape_, tile_);
  const double threads = rows ? kWarps * kLanes : 2.0 * tile_;
  launch(stage, tiles_of_groups(), threads, rows ? kRowRegisters : kOtherRegisters);
  const double count = waves(stage.launch);
  stage.load_rounds = count * (rows ? tile_ / kWarps : shape_.head_dim / 16.0);
  stage.round_cycles = rows ? kPass1Row : kPanel;
  stage.chain_cycles = begin_wave(stage.launch) + count * score_tile(kWarps, kPass1Exp);
}

void ReleasedPace::flash_tile(Stage& stage, const Statistics& s) const {
  const double warps = tile_ == 256 ? 8 : 4;
  const double threads = warps * kLanes;
  launch(stage, tiles_of_groups(), threads, kRowRegisters);
  const double count = waves(stage.launch);
  const DrawnRows drawn(s);
  const double keys = tile_ / warps;
  stage.load_rounds = count * (keys + drawn.own);
  stage.round_cycles = (keys * kFlashRow + drawn.own * kFlashDrawn) / (keys + drawn.own);
  const double chunks = std::ceil(tile_ / kLanes);
  const double draw = kFlashDraw + chunks * (kCountChunk + kFlashListChunk) + 2 * barrier(threads);
  stage.chain_cycles = begin_wave(stage.launch) +
                       count * (score_tile(warps, kFlashExp) + draw + drawn.listed * kFlashListed);
}

void ReleasedPace::flash_finalize(Stage& stage, const Statistics& s) const {
  constexpr double kThreads = 256;
  const double tiles = longest_tiles();
  launch(stage, shape_.batch() * shape_.q_heads, kThreads, kOtherRegisters);
  const double count = waves(stage.launch);
  const double each = std::ceil(tiles / kThreads);
  stage.chain_cycles = count * (kFinalize + tiles * kFinalizeTile);
  const double outputs = count * tiles / kFinalizeAtOnce;
  stage.load_rounds = outputs * evicted(key_bytes() + s.v_rows * shape_.v_row_bytes());
  // Maxima come with the ramp; then maxima and sums, and the tiles' outputs.
  stage.cache_trips = 2 * count * each + outputs - stage.load_rounds - 1;
}

void ReleasedPace::tile_budgets(Stage& stage) const {
  constexpr double kThreads = 128;
  const double tiles = longest_tiles();
  const double each = std::ceil(tiles / kThreads);  // tiles of a thread
  launch(stage, shape_.batch() * shape_.q_heads, kThreads, kOtherRegisters);
  const double count = waves(stage.launch);
  const double lengths = log2_up(tiles);
  const double passes = lengths * (lengths + 1) / 2;
  const double distant = lengths > 5 ? (lengths - 5) * (lengths - 4) / 2 : 0;  // whole warps swap
  const double pairs = std::ceil(std::exp2(lengths) / kThreads);
  const double sort = passes * (kSortPass + (pairs - 1) * kSortPair) + (passes - distant) * kPart +
                      lengths * kSortLength;
  stage.chain_cycles =
      count * (kBudgets + (each - 1) * kBudgetsTile + kThreads * kFloatAtomic + sort);
  // Maxima come with the ramp; then sums, budgets that get one more, sums and budgets again.
  const double in_turn = std::floor(each / kUnrolled) + std::fmod(each, kUnrolled);
  stage.cache_trips = count * (2 * in_turn + 1 + each) - 1;
}

void ReleasedPace::pass2(Stage& stage, const Statistics& s) const {
  constexpr double kThreadsOfHead = 128;
  const double threads = kThreadsOfHead * shape_.group();
  launch(stage, tiles_of_groups(), threads, kOtherRegisters);
  const double count = waves(stage.launch);
  // Waves of CTAs that have samples; the others skip stash and rows. One CTA has, if any has.
  const double drawing = std::max(std::min(1.0, s.group_tiles),
                                  count * std::min(1.0, s.group_tiles / stage.launch.ctas));
  const DrawnRows drawn(s);
  const double chunks = std::ceil(tile_ / kLanes);
  const double list = kPass2Begin + chunks * (kCountChunk + kPass2ListChunk) + 2 * barrier(threads);
  const double adds = s.group_tiles * shape_.group() * shape_.v_head_dim;
  const double scores = drawing * chunks;  // loads of the stash
  const double from_memory = scores * evicted(key_bytes());
  stage.load_rounds = drawing * drawn.own + from_memory;
  stage.chain_cycles = begin_wave(stage.launch) + count * list +
                       drawing * (drawn.listed * kPass2Listed + drawn.own * kPass2Drawn) +
                       adds / std::max(drawing, 1.0) / kAddsPerCycle;  // the last wave's
  // Offsets, of which the first are in the ramp.
  stage.cache_trips = count - 1 + scores - from_memory;
}

}  // namespace kvsim
