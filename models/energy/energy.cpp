#include "models/energy/energy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "core/error.h"

// What a joule is charged to, once:
// - DRAM energy per bit is that of streaming, where an activation serves a whole row (row_bytes).
//   Activations beyond one per row_bytes moved are those of scattered rows: each pays activate_pj.
// - DRAM energy is what lies beyond the cache. Every byte also passes the cache and pays there, so
// a GPU
//   preset's DRAM figure is the measured DRAM read minus the measured L2 read.
// - An accelerator's SRAM is filled before it is read; a GPU's measured figures contain the fill.
// - Registers, clock and control: per lane cycle, what surrounds a score multiply-accumulate. An
// adder
//   in its place needs the same operands, cycles and control, so leaving out the multiplier saves
//   none of it. GPU operations have no lane cycles: their measured energies contain all this.
// - Static power, standby of the memory included, for as long as the time model says.

namespace kvsim {
namespace {

constexpr double kBitsPerByte = 8;
constexpr double kPjPerWattUs = 1e6;

/// Collects items and keeps both sums.
class Items {
 public:
  Items() {
    report_.total_pj = exactly(0, Source::kSpec);
    report_.datapath_pj = exactly(0, Source::kSpec);
  }

  void add(std::string item, const Estimate& pj, bool datapath = false) {
    KVSIM_CHECK(std::isfinite(pj.high) && pj.low >= 0 && pj.low <= pj.value && pj.value <= pj.high);
    report_.total_pj += pj;
    if (datapath) report_.datapath_pj += pj;
    report_.items.push_back({std::move(item), pj, datapath});
  }

  EnergyReport take() { return std::move(report_); }

 private:
  EnergyReport report_;
};

void add_dram(Items& items, const Traffic& traffic, const MemorySystem& memory) {
  double scattered = 0;  // activations that no whole row pays for
  for (const StageTraffic& stage : traffic.stages) {
    const double moved = stage.dram_read_bytes + stage.dram_write_bytes;
    scattered += std::max(0.0, stage.activations - moved / memory.row_bytes);
  }
  items.add("dram read", memory.read_pj_per_bit * (traffic.dram_read_bytes * kBitsPerByte));
  items.add("dram write", memory.write_pj_per_bit * (traffic.dram_write_bytes * kBitsPerByte));
  items.add("dram activate", memory.activate_pj * scattered);
}

void add_cache(Items& items, const Traffic& traffic, const Machine& machine) {
  double read = 0;
  double written = 0;
  for (const StageTraffic& stage : traffic.stages) {
    read += stage.cache_read_bytes;
    written += stage.cache_write_bytes + (machine.is_gpu ? 0 : stage.dram_read_bytes);
  }
  items.add("cache read", machine.cache_read_pj_per_bit * (read * kBitsPerByte));
  items.add("cache write", machine.cache_write_pj_per_bit * (written * kBitsPerByte));
}

/// Operations of one kind and phase over all stages.
struct OpSum {
  double count = 0;
  Estimate pj = exactly(0, Source::kSpec);
  double lane_cycles = 0;
};
using OpSums = std::array<std::array<OpSum, kPhases>, kOps>;

OpSums sum_operations(const Work& work, const Machine& machine) {
  OpSums sums{};
  for (const Stage& stage : work.stages) {
    for (const OpCount& item : stage.ops) {
      if (item.count <= 0) continue;
      const OpCost& cost = machine.op(stage, item);
      OpSum& sum = sums[static_cast<std::size_t>(item.op)][static_cast<std::size_t>(item.phase)];
      sum.count += item.count;
      sum.pj += cost.pj * item.count;
      sum.lane_cycles += cost.lane_cycles * item.count;
    }
  }
  return sums;
}

/// One item per operation and phase; returns the lane cycles they take.
double add_operations(Items& items, const OpSums& sums) {
  double cycles = 0;
  for (std::size_t p = 0; p < kPhases; ++p) {
    for (std::size_t o = 0; o < kOps; ++o) {
      const OpSum& sum = sums[o][p];
      if (sum.count <= 0) continue;
      items.add(fmt::format("{} {}", kPhaseNames[p], kOpNames[o]), sum.pj, true);
      cycles += sum.lane_cycles;
    }
  }
  return cycles;
}

/// `overhead_share` is the datapath's share of a score lane's energy, so the rest is 1 / share - 1.
void add_overhead(Items& items, double cycles, const Machine& machine) {
  const Estimate& share = machine.overhead_share;
  if (cycles <= 0 || share.low <= 0) return;
  const Estimate rest{1 / share.value - 1, 1 / share.high - 1, 1 / share.low - 1, share.source};
  const Estimate lane =
      machine.op(Op::kMultiply, Phase::kScore).pj + machine.op(Op::kAdd, Phase::kScore).pj;
  items.add("core overhead", lane * rest * cycles);
}

}  // namespace

EnergyReport energy(const Work& work, const Traffic& traffic, const TimeReport& time,
                    const Machine& machine) {
  Items items;
  add_dram(items, traffic, machine.memory);
  add_cache(items, traffic, machine);
  const double cycles = add_operations(items, sum_operations(work, machine));
  add_overhead(items, cycles, machine);
  items.add("static", machine.static_w * time.total_us * kPjPerWattUs);
  return items.take();
}

}  // namespace kvsim
