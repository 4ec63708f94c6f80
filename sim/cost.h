#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/method.h"
#include "models/energy/energy.h"
#include "models/machine.h"
#include "models/memory/traffic.h"
#include "models/time/latency.h"

namespace kvsim {

/// A machine to cost a method on, and how its memory holds K and V.
struct Target {
  Machine machine;
  KvFormat format;
  int activation_bytes = 2;  // an element of q and o
  CacheLayout layout;
  CacheState state = CacheState::kCold;
};

Target gpu_target(Machine machine, const KvFormat& format, const CacheLayout& layout,
                  CacheState state);
/// An accelerator stores elements of its own width, without scales.
Target accelerator_target(Machine machine, const CacheLayout& layout, CacheState state);

/// Head shape of one layer, whatever the context.
struct HeadShape {
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int v_head_dim = 0;
  bool latent = false;  // V is a part of the K row

  friend bool operator==(const HeadShape&, const HeadShape&) = default;
};

/// The shape of a step on a target; `contexts` must outlive it.
Shape shape_on(const Target& target, const HeadShape& heads, std::span<const std::int64_t> contexts,
               std::int64_t prompt_tokens);

/// Bytes of K and V that dense attention reads in one layer and step: the whole cache, once.
double dense_bytes(const Shape& shape, bool latent);

/// The work of one layer and step, page table included. In a latent cache, V rows of a stage that
/// reads their K rows too are not read again.
Work step_work(const Implementation& implementation, const Shape& shape,
               const Statistics& statistics, const Target& target);

/// What one layer and step costs on one target.
struct StepCost {
  std::array<double, kOps> ops{};
  Traffic traffic;
  TimeReport time;
  EnergyReport energy;
};

/// `exact` may be null: then footprints are expected from the row counts.
StepCost step_cost(const Work& work, const Shape& shape, const Target& target,
                   const SelectionFootprint* exact);

/// A sum of step costs that keeps what documents show: every term and item by name, in order of
/// first appearance.
struct CostSum {
  struct Term {
    std::string stage;
    Limit limit = Limit::kDram;
    Estimate us{};
  };

  double steps = 0;
  double dense_bytes = 0;
  double requested_bytes = 0;
  double sector_bytes = 0;
  double dram_read_bytes = 0;
  double dram_write_bytes = 0;
  std::array<double, kTensorNames.size()> dram_by_tensor{};
  std::array<double, kOps> ops{};
  Estimate us = exactly(0, Source::kSpec);
  Estimate total_pj = exactly(0, Source::kSpec);
  Estimate datapath_pj = exactly(0, Source::kSpec);
  std::vector<Term> terms;
  std::vector<EnergyItem> items;

  void add(const StepCost& cost, double dense_bytes_of_step);
  void add(const CostSum& other);
  double dram_bytes() const { return dram_read_bytes + dram_write_bytes; }
  /// The mean of something summed.
  double mean(double sum) const { return steps > 0 ? sum / steps : 0; }
  Estimate mean(const Estimate& sum) const { return sum * (steps > 0 ? 1 / steps : 0); }
};

}  // namespace kvsim
