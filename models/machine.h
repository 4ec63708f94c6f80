#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "core/device_limits.h"
#include "core/estimate.h"
#include "kernels/work.h"

namespace kvsim {

inline constexpr std::size_t kOps = kOpNames.size();
inline constexpr std::size_t kPhases = kPhaseNames.size();
inline constexpr std::size_t kBoundaries = kBoundaryNames.size();

/// Time to move bytes through the whole device: ramp + bytes / rate, which is what a cold read of a
/// few MB to a few GB measures (docs/timing.md).
struct Transfer {
  Estimate ramp_us;
  Estimate gb_per_s;
};

struct MemorySystem {
  std::string name;           // "HBM3e"
  double capacity_bytes = 0;  // 0 = not known
  double peak_gb_per_s = 0;   // datasheet
  int sector_bytes = 32;      // what the cache asks for
  int atom_bytes = 64;        // what DRAM delivers
  int row_bytes = 1024;       // bytes one activation opens
  Transfer stream;            // sequential reads of an attention kernel
  Estimate read_ramp_us;      // of a kernel that only reads, which `stream` would start too late
  /// Random row gathers: the share of `stream.gb_per_s` reached with rows of that many bytes,
  /// interpolated between the points; runs at least as long as the last point are a stream. Empty:
  /// scattered rows cost no bandwidth. Ramp: the longer of `gather_ramp_us` and the stream's.
  std::vector<double> gather_row_bytes;
  std::vector<Estimate> gather_share;
  Estimate gather_ramp_us;
  Estimate read_pj_per_bit;  // dynamic, streaming, activations included
  Estimate write_pj_per_bit;
  Estimate activate_pj;  // one row activation; paid again for every scattered row
};

/// What joins the GPUs of one host: an all-reduce over n of them takes
/// all_reduce_us + 2 (n - 1) step_us and moves 2 (n - 1) / n of its bytes through every GPU's link.
struct Link {
  Estimate all_reduce_us;
  Estimate step_us;
  Estimate gb_per_s;  // one direction
};

/// Energy of one operation, and how many the whole device does in a microsecond (0 = not a limit).
struct OpCost {
  Estimate pj;
  Estimate per_us;
  std::string what;  // "int8 gather-add, 24-bit accumulator", for itemised output
  /// Operations with the same unit take turns on it, so their times add up; different units work
  /// side by side. Below 0: a unit of its own.
  int unit = -1;
  /// Cycles of an accelerator's lane that one operation takes, each at the price of the registers,
  /// clock and control around a score multiply-accumulate (`overhead_share`). 0: in another's
  /// cycle, or, on a GPU, measured with the operation.
  double lane_cycles = 0;
};

/// Everything the models know of a device, GPU or accelerator. Presets of both kinds become this
/// one struct (models/presets.h), so traffic, latency and energy do not ask which it is.
struct Machine {
  std::string name;
  std::string title;
  bool is_gpu = true;
  DeviceLimits limits;
  MemorySystem memory;
  double cache_bytes = 0;          // L2 of a GPU, SRAM of an accelerator
  Transfer cache;                  // its bandwidth
  Estimate cache_read_pj_per_bit;  // dynamic; wires and registers on the way included
  Estimate cache_write_pj_per_bit;
  std::array<Estimate, kBoundaries> boundary_us;
  Estimate round_trip_us;  // one dependent memory access
  /// One of Stage::load_rounds by the warps of an SM that wait so; 0 where rows are fetched ahead.
  std::vector<double> load_warps;
  std::vector<Estimate> load_round_us;
  Estimate cache_trip_us;  // one of Stage::cache_trips
  Estimate cycle_us;       // one of Stage::chain_cycles; 0 where hardware selects
  std::array<std::array<OpCost, kPhases>, kOps> ops;  // ops[op][phase]
  /// Of the value phase where every head sums rows of its own (Stage::heads_gather).
  std::array<OpCost, kOps> gather_ops;
  Estimate overhead_share;   // datapath share of core energy (registers, clocks, control): 0..1
  Estimate static_w;         // drawn whatever is done
  std::optional<Link> link;  // none: no time for tensor parallelism
  Estimate area_mm2;         // 0 for a GPU preset
  double node_nm = 0;
  int element_bits = 16;  // what K and V elements are on this machine (accelerators: 8)

  const OpCost& op(Op o, Phase p) const {
    return ops[static_cast<std::size_t>(o)][static_cast<std::size_t>(p)];
  }
  /// What one operation counted in a stage costs.
  const OpCost& op(const Stage& stage, const OpCount& item) const {
    return stage.heads_gather && item.phase == Phase::kValue
               ? gather_ops[static_cast<std::size_t>(item.op)]
               : op(item.op, item.phase);
  }
  const Estimate& boundary(Boundary b) const { return boundary_us[static_cast<std::size_t>(b)]; }
};

}  // namespace kvsim
