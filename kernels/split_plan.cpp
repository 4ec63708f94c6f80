#include "kernels/split_plan.h"

#include <algorithm>
#include <cmath>

namespace kvsim {

namespace {

constexpr double kUnsplitTokens = 256;  // below, a merge costs more than splitting saves

}  // namespace

SplitPlan plan_splits(const Shape& shape, const DeviceLimits& limits, int unit_tokens) {
  const double teams = shape.batch() * shape.kv_heads;
  const double sms = limits.sms;
  double units = 0;
  for (const std::int64_t context : shape.contexts) {
    units += std::ceil(static_cast<double>(context) / unit_tokens) * shape.kv_heads;
  }
  SplitPlan plan;
  if (teams >= sms) {
    plan.launch = {sms, sms};
    plan.imbalance = std::ceil(units / sms) / (units / sms);
    plan.partials = std::fmod(teams, sms) == 0 ? 0 : 2 * sms;
    return plan;
  }
  const double units_per_team = units / teams;
  const bool short_teams = units_per_team * unit_tokens <= kUnsplitTokens;
  const double splits =
      short_teams ? 1.0 : std::clamp(std::floor(sms / teams), 1.0, std::ceil(units_per_team));
  plan.launch = {teams * splits, sms};
  plan.imbalance = std::ceil(units_per_team / splits) / (units_per_team / splits);
  plan.partials = splits > 1 ? teams * splits : 0;
  return plan;
}

void read_query(Stage& stage, const Shape& shape) {
  stage.read(Tensor::kQuery, shape.query_bytes(), 1, 1);
}

void write_partials(Stage& stage, const Shape& shape, const SplitPlan& plan) {
  if (plan.partials > 0) {
    stage.write(Tensor::kPartial, partial_row_bytes(shape), plan.partials * shape.group());
  }
}

void finish_output(Work& work, const Shape& shape, const SplitPlan& plan) {
  if (plan.partials > 0) {
    const double rows = plan.partials * shape.group();
    Stage& merge = work.add_stage("merge", Boundary::kTicket);
    merge.read(Tensor::kPartial, partial_row_bytes(shape), rows, rows);
  }
  work.stages.back().write(Tensor::kOutput, shape.output_bytes(), 1);
}

double tiles_of(const Shape& shape, int tile) {
  double tiles = 0;
  for (const std::int64_t context : shape.contexts) {
    tiles += std::ceil(static_cast<double>(context) / tile);
  }
  return tiles;
}

void count_scores(Stage& stage, const Shape& shape, double rows) {
  stage.count(Op::kMultiply, Phase::kScore, rows * (shape.head_dim + 1));
  stage.count(Op::kAdd, Phase::kScore, rows * (shape.head_dim - 1));
}

void count_weighted_values(Stage& stage, const Shape& shape, double rows) {
  const double heads = query_heads(shape);
  stage.count(Op::kCompare, Phase::kSoftmax, rows - heads);
  stage.count(Op::kAdd, Phase::kSoftmax, 2 * rows - heads);  // subtract the maximum, sum
  stage.count(Op::kExp, Phase::kSoftmax, rows);
  stage.count(Op::kMultiply, Phase::kValue, rows * shape.v_head_dim);
  stage.count(Op::kAdd, Phase::kValue, (rows - heads) * shape.v_head_dim);
  stage.count(Op::kMultiply, Phase::kMerge, heads * (shape.v_head_dim + 1));  // times 1 / sum
}

}  // namespace kvsim
