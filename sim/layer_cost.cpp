#include "sim/layer_cost.h"

#include <algorithm>
#include <utility>

#include "core/parallel.h"

namespace kvsim {
namespace {

/// The unions of all KV heads, counted from token 0 of the cache.
struct CacheRows {
  std::vector<RowRanges> k;
  std::vector<RowRanges> k_features;
  std::vector<RowRanges> v;
};

RowRanges shifted(const RowRanges& rows, std::int64_t by) {
  if (by == 0) return rows;
  RowRanges result;
  for (const Range& range : rows.ranges()) result.append(range.begin + by, range.end + by);
  return result;
}

/// A step's part of a layer: everything costs depend on but the method.
struct CostStep {
  HeadShape heads;
  std::int64_t context = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t cache_tokens = 0;  // rows the cache holds
};

CostStep cost_step(const LayerJob& job, const LayerInfo& info, std::int64_t tokens,
                   std::int64_t step) {
  const Range visible = visible_rows(info, job.prompt_tokens, step);
  return {head_shape(info), visible.end - visible.begin, visible_prompt(info, job.prompt_tokens),
          tokens};
}

/// Whether K is read from a copy stored feature by feature.
bool reads_by_feature(const Work& work) {
  return std::any_of(work.stages.begin(), work.stages.end(), [](const Stage& stage) {
    return std::any_of(stage.accesses.begin(), stage.accesses.end(),
                       [](const Access& access) { return access.row_set == RowSet::kKFeatures; });
  });
}

struct TargetCost {
  StepCost cost;
  double dense_bytes = 0;
};

std::vector<TargetCost> cost_on_targets(const CostStep& step, const Method& method,
                                        const Statistics& statistics, const CacheRows& rows,
                                        std::span<const Target> targets) {
  std::vector<TargetCost> costs;
  for (const Target& target : targets) {
    const Shape shape = shape_on(target, step.heads, {&step.context, 1}, step.prompt_tokens);
    const MemorySystem& memory = target.machine.memory;
    const Work work = step_work(method.implementation(), shape, statistics, target);
    const KeyReads keys{rows.k, rows.k_features, step.cache_tokens, shape.head_dim,
                        shape.k_row_bytes()};
    SelectionFootprint exact;
    exact.k = reads_by_feature(work) ? exact_feature_footprint(keys, target.layout, memory)
                                     : exact_key_footprint(keys, target.layout, memory);
    exact.v = exact_footprint(rows.v, step.cache_tokens,
                              {shape.v_row_bytes(), shape.v_stride_bytes()}, target.layout, memory);
    costs.push_back(
        {step_cost(work, shape, target, &exact), dense_bytes(shape, step.heads.latent)});
  }
  return costs;
}

void add_costs(const std::vector<TargetCost>& costs, LayerCosts& sums) {
  sums.resize(costs.size());
  for (std::size_t i = 0; i < costs.size(); ++i) sums[i].add(costs[i].cost, costs[i].dense_bytes);
}

TargetFigures figures_of(const StepCost& cost) {
  return {cost.traffic.requested_bytes,  cost.traffic.sector_bytes, cost.traffic.dram_read_bytes,
          cost.traffic.dram_write_bytes, cost.time.total_us,        cost.energy.total_pj,
          cost.energy.datapath_pj};
}

/// One method, repeat and step: the record without its costs, and the rows that are to be costed.
StepRecord record_of(std::span<const GroupFigures> groups, std::int64_t first_row,
                     CacheRows& rows) {
  StepRecord record;
  for (const GroupFigures& group : groups) {
    record.heads.insert(record.heads.end(), group.heads.begin(), group.heads.end());
    record.unions.push_back({static_cast<double>(group.k_rows.size()),
                             static_cast<double>(group.k_features.size()),
                             static_cast<double>(group.v_rows.size())});
    record.statistics += group.statistics;
    rows.k.push_back(shifted(group.k_rows, first_row));
    rows.k_features.push_back(group.k_features);
    rows.v.push_back(shifted(group.v_rows, first_row));
  }
  return record;
}

struct CostedStep {
  StepRecord record;
  std::vector<TargetCost> costs;
};

CostedStep cost_replayed_step(const LayerJob& job, const LayerInfo& info, std::int64_t tokens,
                              std::span<const GroupFigures> groups, const Method& method,
                              std::int64_t step, std::span<const Target> targets) {
  CacheRows rows;
  const Range visible = visible_rows(info, job.prompt_tokens, step);
  CostedStep result;
  result.record = record_of(groups, visible.begin, rows);
  result.record.sequence = static_cast<int>(job.sequence);
  result.record.layer = info.layer;
  result.record.step = step;
  result.record.context = static_cast<double>(visible.end - visible.begin);
  result.record.head_dim = info.head_dim;
  result.record.latent = info.layout == KvLayout::kLatent;
  result.costs = cost_on_targets(cost_step(job, info, tokens, step), method,
                                 result.record.statistics, rows, targets);
  for (const TargetCost& cost : result.costs) {
    result.record.targets.push_back(figures_of(cost.cost));
  }
  return result;
}

}  // namespace

void cost_layer(const LayerJob& job, const LayerInfo& info, std::int64_t tokens,
                const LayerReplay& replayed, int threads, Replay& result) {
  const std::size_t steps = job.steps.size();
  const auto repeats = static_cast<std::size_t>(job.repeats);
  std::vector<CostedStep> slots(job.methods.size() * repeats * steps);
  parallel_for(static_cast<std::int64_t>(slots.size()), threads, [&](std::int64_t i) {
    const auto index = static_cast<std::size_t>(i);
    const std::size_t method = index / (repeats * steps);
    const std::size_t repeat = index / steps % repeats;
    const std::size_t step = index % steps;
    slots[index] = cost_replayed_step(job, info, tokens, replayed.groups(method, repeat, step),
                                      *job.methods[method].method, job.steps[step], result.targets);
    slots[index].record.seed = job.seed + repeat;
  });
  for (std::size_t i = 0; i < slots.size(); ++i) {
    MethodRun& run = result.runs[i / (repeats * steps)];
    add_costs(slots[i].costs, run.layers[info.layer]);
    run.records.push_back(std::move(slots[i].record));
  }
}

void cost_dense_layer(const LayerJob& job, const LayerInfo& info, std::int64_t tokens, int threads,
                      Replay& result) {
  std::vector<std::vector<TargetCost>> slots(job.steps.size());
  const Method& dense = *result.dense.method;
  parallel_for(static_cast<std::int64_t>(slots.size()), threads, [&](std::int64_t i) {
    const auto index = static_cast<std::size_t>(i);
    const CostStep step = cost_step(job, info, tokens, job.steps[index]);
    const Range visible = visible_rows(info, job.prompt_tokens, job.steps[index]);
    CacheRows rows;
    for (int head = 0; head < info.kv_heads; ++head) {
      rows.k.push_back(shifted(RowRanges::all(step.context), visible.begin));
    }
    rows.k_features.assign(rows.k.size(), RowRanges::all(info.head_dim));
    rows.v = rows.k;
    const Shape shape =
        shape_on(result.targets[0], step.heads, {&step.context, 1}, step.prompt_tokens);
    slots[index] = cost_on_targets(step, dense, dense.bounds(shape).high, rows, result.targets);
  });
  LayerCosts& sums = result.dense_layers[info.layer];
  for (const auto& costs : slots) add_costs(costs, sums);
}

}  // namespace kvsim
