#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "core/fixed_vector.h"

namespace kvsim {

/// What is moved. The words of `by_tensor` in the output.
enum class Tensor { kQuery, kK, kV, kMetadata, kStash, kPartial, kOutput, kPageTable };
inline constexpr std::array<std::string_view, 8> kTensorNames{
    "query", "k", "v", "metadata", "stash", "partial", "output", "page_table"};
constexpr std::string_view to_string(Tensor t) { return kTensorNames[static_cast<std::size_t>(t)]; }

enum class Direction { kRead, kWrite };

/// Which rows of a cache an access touches; with a selection at hand the memory model counts their
/// sectors exactly, without one it expects them. kKFeatures are those of a copy of K whose rows are
/// features, of all tokens each.
enum class RowSet { kNone, kAll, kKRows, kVRows, kKFeatures };

/// One stream of bytes. `rows` are distinct rows over the whole batch and all KV heads; `requests`
/// is what the heads ask for one by one, so requests / rows is the GQA amplification.
struct Access {
  Tensor tensor = Tensor::kK;
  Direction direction = Direction::kRead;
  RowSet row_set = RowSet::kNone;
  double row_bytes = 0;
  double rows = 0;
  double requests = 0;
  double chunk_share = 1;  // of a K row's chunks (kChunkFeatures), those with a feature read

  double bytes() const { return row_bytes * rows; }
};

enum class Op { kMultiply, kAdd, kExp, kCompare, kShift, kRandomWord };
inline constexpr std::array<std::string_view, 6> kOpNames{"multiply", "add",   "exp",
                                                          "compare",  "shift", "random_word"};
constexpr std::string_view to_string(Op op) { return kOpNames[static_cast<std::size_t>(op)]; }

/// What part of attention an operation belongs to: decides its precision on an accelerator and
/// whether a GPU runs it on tensor cores.
enum class Phase { kScore, kSoftmax, kSelect, kValue, kMerge };
inline constexpr std::array<std::string_view, 5> kPhaseNames{"score", "softmax", "select", "value",
                                                             "merge"};
constexpr std::string_view to_string(Phase p) { return kPhaseNames[static_cast<std::size_t>(p)]; }

struct OpCount {
  Op op = Op::kAdd;
  Phase phase = Phase::kScore;
  double count = 0;
};

/// What separates a stage from the one before it.
enum class Boundary { kKernelLaunch, kGridBarrier, kTeamExchange, kTicket };
inline constexpr std::array<std::string_view, 4> kBoundaryNames{"kernel_launch", "grid_barrier",
                                                                "team_exchange", "ticket"};
constexpr std::string_view to_string(Boundary b) {
  return kBoundaryNames[static_cast<std::size_t>(b)];
}

/// How a stage is launched; `ctas` > `ctas_per_wave` means several waves.
struct LaunchShape {
  double ctas = 0;
  double ctas_per_wave = 0;
};

/// Warps that take up blocks of a stage's bytes as they come, and load rows for each. A block's
/// last rows are under way while the next one's first instructions run (`hidden_cycles` of
/// `chain_cycles`). As long as the stage streams, rows queue behind all bytes under way.
struct Followers {
  double blocks = 0;  // that one warp takes, one after the other; 0: the stage has no such warps
  double chain_cycles = 0;   // of one block
  double hidden_cycles = 0;  // of these
  double load_rounds = 0;    // of one block
  double first_bytes = 0;    // of all CTAs, until their first blocks are there
  double bytes_under_way = 0;
};

/// What lies between two launches or barriers. `imbalance` is the longest CTA's share of bytes over
/// the mean; `dependent_trips` counts memory round trips that wait for each other (an index before
/// its row), `cache_trips` those that the cache serves (a step of a search). `load_rounds` are the
/// loads of one warp that follow each other because it has only so many under way: they go on
/// beside the other warps' bytes, but no stage is shorter. `load_warps` are the warps of an SM that
/// wait so, with a row each or, if fewer, as many rows as that. `round_cycles` are those of the
/// instructions that one round's next loads wait for. `chain_cycles` are the cycles of a warp's
/// instructions that depend on each other and that nothing hides.
struct Stage {
  std::string_view name;
  Boundary before = Boundary::kKernelLaunch;
  double boundaries = 1;  // how often the stage waits for `before`
  LaunchShape launch;
  double imbalance = 1;
  double dependent_trips = 0;
  double cache_trips = 0;
  double load_rounds = 0;
  double load_warps = 32;
  double round_cycles = 0;
  double chain_cycles = 0;
  Followers followers;
  bool heads_gather = false;  // every head sums V rows of its own: no matrix product
  FixedVector<Access, 10> accesses;
  FixedVector<OpCount, 20> ops;

  void read(Tensor tensor, double row_bytes, double rows, double requests,
            RowSet row_set = RowSet::kNone) {
    accesses.push_back({tensor, Direction::kRead, row_set, row_bytes, rows, requests, 1});
  }
  void write(Tensor tensor, double row_bytes, double rows) {
    accesses.push_back({tensor, Direction::kWrite, RowSet::kNone, row_bytes, rows, rows, 1});
  }
  void count(Op op, Phase phase, double n) { ops.push_back({op, phase, n}); }
};

/// The work of one layer's attention in one decode step, whole batch.
struct Work {
  FixedVector<Stage, 8> stages;

  Stage& add_stage(std::string_view name, Boundary before) {
    stages.push_back({});
    stages.back().name = name;
    stages.back().before = before;
    return stages.back();
  }
  double total(Op op) const {
    double sum = 0;
    for (const Stage& stage : stages) {
      for (const OpCount& item : stage.ops) sum += item.op == op ? item.count : 0;
    }
    return sum;
  }
};

}  // namespace kvsim
