#include "kernels/santa/flash_cost.h"

#include <algorithm>
#include <cmath>

#include "kernels/device/blocks.h"
#include "kernels/device/stream_cost.h"
#include "kernels/santa/budgets.h"
#include "kernels/santa/cycles.h"
#include "kernels/santa/released_cost.h"
#include "kernels/santa/rule.h"
#include "kernels/santa/sizes.h"
#include "kernels/split_plan.h"

namespace kvsim {
namespace {

class FlashCost : public Implementation {
 public:
  explicit FlashCost(const FlashCostModel& model) : model_(model) {}

  Work work(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const override {
    return model_.published ? published(shape, s, limits) : ours(shape, s, limits);
  }

 private:
  Work ours(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const;
  Work published(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const;
  void count_draws(Stage& stage, const Shape& shape, const Statistics& s) const;

  FlashCostModel model_;
};

/// Scores, each tile's own softmax, and its samples.
void FlashCost::count_draws(Stage& stage, const Shape& shape, const Statistics& s) const {
  using RandomWords = FlashCostModel::RandomWords;
  const double heads = query_heads(shape);
  const int tile = tile_of(model_, shape);
  const double words = model_.random_words == RandomWords::kPerTile
                           ? s.head_tiles
                           : heads / (model_.random_words == RandomWords::kPerGroup
                                          ? static_cast<double>(shape.group())
                                          : 1.0);
  model_.scoring.count_operations(stage, shape, s);
  stage.count(Op::kCompare, Phase::kSoftmax, s.k_requests - s.head_tiles);
  stage.count(Op::kAdd, Phase::kSoftmax, s.k_requests);  // subtract the tile's maximum
  stage.count(Op::kExp, Phase::kSoftmax, s.k_requests);
  stage.count(Op::kRandomWord, Phase::kSelect, words);
  stage.count(Op::kMultiply, Phase::kSelect, s.head_tiles);  // the offset in the tile's units
  stage.count(Op::kAdd, Phase::kSelect, s.k_requests - s.head_tiles + s.draws);  // masses, strata
  stage.count(Op::kCompare, Phase::kSelect, s.draws * std::ceil(std::log2(tile)));
}

/// A tile's sum of rows needs no multiplication; adding tiles up takes one for each value.
void count_tile_sums(Stage& stage, const Shape& shape, const Statistics& s) {
  stage.count(Op::kAdd, Phase::kValue, (s.draws - s.head_tiles) * shape.v_head_dim);
}
void count_weighing(Stage& stage, const Shape& shape, const Statistics& s) {
  const double heads = query_heads(shape);
  stage.count(Op::kCompare, Phase::kMerge, s.head_tiles - heads);  // the head's maximum
  // Subtract it; sum masses; add up tiles.
  stage.count(Op::kAdd, Phase::kMerge,
              s.head_tiles + (s.head_tiles - heads) * (1 + shape.v_head_dim));
  stage.count(Op::kExp, Phase::kMerge, s.head_tiles);
  // Mass of a tile, of a sample, times the tile's sum; times 1 / sum.
  stage.count(Op::kMultiply, Phase::kMerge,
              s.head_tiles * (2 + shape.v_head_dim) + heads * (1 + shape.v_head_dim));
}

/// A finishing warp takes a head's blocks, or, in large groups, two heads of each.
Followers finishing_warps(const Shape& shape, const Statistics& s, const StreamPlan& plan) {
  constexpr double kLanes = 32;
  constexpr double kElementBytes = 2;  // of a ring, and of the rows beside it
  const int dim = head_class(static_cast<int>(shape.head_dim));
  const double group = shape.group();
  double sharers = 1;  // warps of a head
  while (2 * sharers * group <= device::kFinishWarps) sharers *= 2;
  const double heads = std::ceil(group / device::kFinishWarps);  // of a warp
  const double pairs = plan.split.units * group;                 // (block, head)
  const double drawn = s.draws / pairs;
  const double rows = std::min(drawn, s.v_requests / pairs);
  const double at_once = device::sampled_rows_at_once(dim, static_cast<int>(group));
  Followers f;
  f.blocks = std::ceil(plan.split.most_units() / sharers) * heads;
  f.hidden_cycles = santa_cycles::kBlockPrefixes;
  f.chain_cycles = f.hidden_cycles + santa_cycles::kBlockWeight +
                   std::ceil(drawn / kLanes) * santa_cycles::kBlockDraws +
                   rows * santa_cycles::kBlockRow * dim / 128;
  f.load_rounds = std::ceil(rows / at_once);
  const double row_bytes = kElementBytes * dim;
  f.first_bytes = plan.split.launch.ctas * device::kBlockTokens * row_bytes;
  f.bytes_under_way =
      plan.split.launch.ctas *
      (plan.ring_bytes + device::kFinishWarps * std::min(rows, at_once) * row_bytes);
  return f;
}

/// V rows are gathered in the shadow of the stream of keys, but for those of blocks that the
/// finishing warps are behind, at least the last: its rows are waited for, too.
Work FlashCost::ours(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const {
  const StreamPlan plan = plan_stream_cost(shape, limits);
  Work work;
  Stage& stream = work.add_stage("stream_k_gather_v", Boundary::kKernelLaunch);
  stream.launch = plan.split.launch;
  stream.imbalance = plan.split.imbalance;
  stream.heads_gather = true;
  stream.dependent_trips = 1;
  stream.chain_cycles = santa_cycles::kSums;
  stream.followers = finishing_warps(shape, s, plan);
  read_query(stream, shape);
  model_.scoring.read_keys(stream, shape, s);
  stream.read(Tensor::kV, shape.v_row_bytes(), s.v_rows, s.v_requests, RowSet::kVRows);
  count_draws(stream, shape, s);
  count_tile_sums(stream, shape, s);
  finish_output(work, shape, plan.split,
                {Boundary::kTeamExchange, exchanged_row_bytes(shape, true)});
  count_weighing(work.stages.back(), shape, s);
  return work;
}

// SANTA repository, commit 2e5f861: the fused tile kernel, finalize.
Work FlashCost::published(const Shape& shape, const Statistics& s,
                          const DeviceLimits& limits) const {
  constexpr double kStateBytes = 8;  // a tile's maximum and sum
  const ReleasedPace pace(shape, tile_of(model_, shape), limits);
  const double partial_bytes = 4.0 * shape.v_head_dim;
  Work work;
  Stage& fused = work.add_stage("fused_tile", Boundary::kKernelLaunch);
  pace.flash_tile(fused, s);
  fused.heads_gather = true;
  read_query(fused, shape);
  model_.scoring.read_keys(fused, shape, s);
  fused.read(Tensor::kV, shape.v_row_bytes(), s.v_rows, s.v_requests, RowSet::kVRows);
  fused.write(Tensor::kPartial, partial_bytes, s.head_tiles);
  fused.write(Tensor::kMetadata, kStateBytes, s.head_tiles);
  count_draws(fused, shape, s);
  fused.count(Op::kMultiply, Phase::kValue, s.v_requests * shape.v_head_dim);  // count * value
  count_tile_sums(fused, shape, s);

  Stage& finalize = work.add_stage("finalize", Boundary::kKernelLaunch);
  pace.flash_finalize(finalize, s);
  finalize.read(Tensor::kPartial, partial_bytes, s.head_tiles, s.head_tiles);
  finalize.read(Tensor::kMetadata, kStateBytes, s.head_tiles, s.head_tiles);
  finalize.write(Tensor::kOutput, shape.output_bytes(), 1);
  count_weighing(finalize, shape, s);
  return work;
}

}  // namespace

int tile_of(const FlashCostModel& model, const Shape& shape) {
  if (model.tile > 0) return model.tile;
  std::int64_t prompt = shape.prompt_tokens;
  if (prompt == 0) prompt = *std::max_element(shape.contexts.begin(), shape.contexts.end());
  return budget_tile(prompt);
}

double draws_of(const FlashCostModel& model, const Shape& shape, std::int64_t context) {
  const int tile = tile_of(model, shape);
  const std::int64_t tiles = (context + tile - 1) / tile;
  if (!model.even) return static_cast<double>(std::max<std::int64_t>(tiles, model.samples));
  return static_cast<double>(tiles * std::max<std::int64_t>(1, model.samples / tiles));
}

std::unique_ptr<Implementation> make_flash_cost(const FlashCostModel& model) {
  return std::make_unique<FlashCost>(model);
}

}  // namespace kvsim
