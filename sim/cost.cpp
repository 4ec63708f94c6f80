#include "sim/cost.h"

#include <algorithm>
#include <utility>

namespace kvsim {
namespace {

constexpr int kGpuActivationBytes = 2;

bool reads(const Access& access, Tensor tensor) {
  return access.tensor == tensor && access.direction == Direction::kRead && access.rows > 0;
}

/// V of a latent cache is a part of the K row, so a stage that reads whole K rows has their V at
/// hand.
void share_latent_rows(Stage& stage, const Shape& shape) {
  const bool reads_k =
      std::any_of(stage.accesses.begin(), stage.accesses.end(), [&](const Access& access) {
        return reads(access, Tensor::kK) && access.row_set != RowSet::kKFeatures &&
               access.row_bytes >= shape.k_row_bytes();
      });
  if (!reads_k) return;
  for (Access& access : stage.accesses) {
    if (reads(access, Tensor::kV)) {
      access.rows = 0;
      access.requests = 0;
    }
  }
}

/// True if some stage still reads V rows by themselves.
bool reads_v(const Work& work) {
  for (const Stage& stage : work.stages) {
    for (const Access& access : stage.accesses) {
      if (reads(access, Tensor::kV)) return true;
    }
  }
  return false;
}

void add_term(std::vector<CostSum::Term>& terms, const std::string& stage, Limit limit,
              const Estimate& us) {
  const auto found = std::find_if(terms.begin(), terms.end(), [&](const CostSum::Term& term) {
    return term.limit == limit && term.stage == stage;
  });
  if (found == terms.end()) {
    terms.push_back({stage, limit, us});
  } else {
    found->us += us;
  }
}

void add_item(std::vector<EnergyItem>& items, const EnergyItem& item) {
  const auto found = std::find_if(items.begin(), items.end(),
                                  [&](const EnergyItem& other) { return other.item == item.item; });
  if (found == items.end()) {
    items.push_back(item);
  } else {
    found->pj += item.pj;
  }
}

}  // namespace

Target gpu_target(Machine machine, const KvFormat& format, const CacheLayout& layout,
                  CacheState state) {
  return {std::move(machine), format, kGpuActivationBytes, layout, state};
}

Target accelerator_target(Machine machine, const CacheLayout& layout, CacheState state) {
  const int bits = machine.element_bits;
  return {std::move(machine), KvFormat{bits, 0, 0}, std::max(1, bits / 8), layout, state};
}

Shape shape_on(const Target& target, const HeadShape& heads, std::span<const std::int64_t> contexts,
               std::int64_t prompt_tokens) {
  Shape shape;
  shape.contexts = contexts;
  shape.q_heads = heads.q_heads;
  shape.kv_heads = heads.kv_heads;
  shape.head_dim = heads.head_dim;
  shape.v_head_dim = heads.v_head_dim;
  shape.latent = heads.latent;
  shape.kv_format = target.format;
  shape.prompt_tokens = prompt_tokens;
  shape.activation_bytes = target.activation_bytes;
  return shape;
}

double dense_bytes(const Shape& shape, bool latent) {
  const double row = shape.k_row_bytes() + (latent ? 0 : shape.v_row_bytes());
  return shape.total_context() * shape.kv_heads * row;
}

Work step_work(const Implementation& implementation, const Shape& shape,
               const Statistics& statistics, const Target& target) {
  Work work = implementation.work(shape, statistics, target.machine.limits);
  if (shape.latent) {
    for (Stage& stage : work.stages) share_latent_rows(stage, shape);
  }
  add_page_table(work, shape, target.layout);
  return work;
}

StepCost step_cost(const Work& work, const Shape& shape, const Target& target,
                   const SelectionFootprint* exact) {
  StepCost cost;
  SelectionFootprint k_only;
  if (exact && !reads_v(work)) {
    k_only.k = exact->k;
    exact = &k_only;
  }
  cost.traffic = memory_traffic(work, shape, target.layout, target.state, target.machine, exact);
  cost.time = latency(work, cost.traffic, target.machine);
  cost.energy = energy(work, cost.traffic, cost.time, target.machine);
  for (std::size_t i = 0; i < kOps; ++i) cost.ops[i] = work.total(static_cast<Op>(i));
  return cost;
}

void CostSum::add(const StepCost& cost, double dense_bytes_of_step) {
  CostSum one;
  one.steps = 1;
  one.dense_bytes = dense_bytes_of_step;
  one.requested_bytes = cost.traffic.requested_bytes;
  one.sector_bytes = cost.traffic.sector_bytes;
  one.dram_read_bytes = cost.traffic.dram_read_bytes;
  one.dram_write_bytes = cost.traffic.dram_write_bytes;
  one.dram_by_tensor = cost.traffic.dram_by_tensor;
  one.ops = cost.ops;
  one.us = cost.time.total_us;
  one.total_pj = cost.energy.total_pj;
  one.datapath_pj = cost.energy.datapath_pj;
  for (const TimeTerm& term : cost.time.terms)
    one.terms.push_back({term.stage, term.limit, term.us});
  one.items = cost.energy.items;
  add(one);
}

void CostSum::add(const CostSum& other) {
  steps += other.steps;
  dense_bytes += other.dense_bytes;
  requested_bytes += other.requested_bytes;
  sector_bytes += other.sector_bytes;
  dram_read_bytes += other.dram_read_bytes;
  dram_write_bytes += other.dram_write_bytes;
  for (std::size_t i = 0; i < dram_by_tensor.size(); ++i) {
    dram_by_tensor[i] += other.dram_by_tensor[i];
  }
  for (std::size_t i = 0; i < ops.size(); ++i) ops[i] += other.ops[i];
  us += other.us;
  total_pj += other.total_pj;
  datapath_pj += other.datapath_pj;
  for (const Term& term : other.terms) add_term(terms, term.stage, term.limit, term.us);
  for (const EnergyItem& item : other.items) add_item(items, item);
}

}  // namespace kvsim
