#include "kernels/santa/cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/device/blocks.h"
#include "kernels/device/stream_cost.h"
#include "kernels/santa/cycles.h"
#include "kernels/santa/released_cost.h"
#include "kernels/santa/rule.h"
#include "kernels/santa/sizes.h"

namespace kvsim {
namespace {

constexpr int kTileRecordBytes = 8;     // a tile's maximum and sum
constexpr int kTaggedRecordBytes = 16;  // the same, each with the launch's number

double tiles_in(std::int64_t context, int tile) {
  return std::ceil(static_cast<double>(context) / tile);
}

/// Compares of one binary search over `n` entries.
double search_steps(double n) { return std::ceil(std::log2(std::max(n, 1.0))); }

/// Compares of a bitonic sort of `n` keys.
double sort_compares(double n) {
  const double log = search_steps(n);
  return std::exp2(log) / 4 * log * (log + 1);
}

class SantaCost : public Implementation {
 public:
  explicit SantaCost(const SantaCostModel& model) : model_(model) {}

  Work work(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const override {
    return model_.launches == SantaCostModel::Launches::kPublished ? published(shape, s, limits)
                                                                   : ours(shape, s, limits);
  }

 private:
  /// Fused, and its form of two launches.
  Work ours(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const;
  Work published(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const;
  void count_softmax(Stage& stage, const Shape& shape, const Statistics& s) const;
  double random_streams(const Shape& shape) const;
  void count_budgets(Stage& stage, const Shape& shape) const;
  void count_draws(Stage& stage, const Shape& shape, const Statistics& s) const;

  SantaCostModel model_;
};

void SantaCost::count_softmax(Stage& stage, const Shape& shape, const Statistics& s) const {
  const double heads = query_heads(shape);
  model_.scoring.count_operations(stage, shape, s);
  stage.count(Op::kCompare, Phase::kSoftmax, s.k_requests - heads);
  stage.count(Op::kAdd, Phase::kSoftmax, s.k_requests);  // subtract the maximum
  stage.count(Op::kExp, Phase::kSoftmax, s.k_requests);
  stage.count(Op::kAdd, Phase::kSelect, s.k_requests - heads);  // cumulative masses
}

/// Dealing samples out to tiles.
void SantaCost::count_budgets(Stage& stage, const Shape& shape) const {
  using Budgets = SantaCostModel::Budgets;
  if (model_.budgets == Budgets::kNone) return;
  const double heads = query_heads(shape);
  if (model_.budgets == Budgets::kLargestRemainder) {
    double compares = 0;
    for (const std::int64_t context : shape.contexts) {
      compares += shape.q_heads * sort_compares(tiles_in(context, tile_of(model_, shape)));
    }
    stage.count(Op::kMultiply, Phase::kSelect,  // S * mass / total
                tiles_of(shape, tile_of(model_, shape)) * shape.q_heads);
    stage.count(Op::kCompare, Phase::kSelect, compares);
    return;
  }
  double compares = 0;
  for (const std::int64_t context : shape.contexts) {
    compares += shape.q_heads * static_cast<double>(model_.samples) *
                search_steps(tiles_in(context, tile_of(model_, shape)));
  }
  stage.count(Op::kRandomWord, Phase::kSelect, random_streams(shape));
  stage.count(Op::kMultiply, Phase::kSelect, heads);
  stage.count(Op::kAdd, Phase::kSelect, heads * static_cast<double>(model_.samples));
  stage.count(Op::kCompare, Phase::kSelect, compares);
}

/// Streams of random words: of every query head, or of every group.
double SantaCost::random_streams(const Shape& shape) const {
  return query_heads(shape) / (model_.shared_random_words ? shape.group() : 1);
}

/// Drawing rows, from the whole head or from each tile with a budget.
void SantaCost::count_draws(Stage& stage, const Shape& shape, const Statistics& s) const {
  const double heads = query_heads(shape);
  const double tiles = tiles_of(shape, tile_of(model_, shape)) * shape.q_heads;
  stage.count(
      Op::kRandomWord, Phase::kSelect,
      random_streams(shape) * model_.random_words_per_head + tiles * model_.random_words_per_tile);
  if (model_.budgets != SantaCostModel::Budgets::kNone) {
    stage.count(Op::kMultiply, Phase::kSelect, s.head_tiles);  // the offset in the tile's units
    stage.count(Op::kAdd, Phase::kSelect, s.draws);
    stage.count(Op::kCompare, Phase::kSelect, s.draws * search_steps(tile_of(model_, shape)));
    return;
  }
  double compares = 0;
  for (const std::int64_t context : shape.contexts) {
    compares += shape.q_heads * static_cast<double>(model_.samples) *
                search_steps(static_cast<double>(context));
  }
  stage.count(Op::kMultiply, Phase::kSelect, heads * model_.threshold_multiplies);
  stage.count(Op::kAdd, Phase::kSelect, heads * model_.threshold_adds);
  stage.count(Op::kCompare, Phase::kSelect, compares);
}

/// Gather and add, no multiplication: every draw adds its row (SANTA eq. 4); 1/S is a shift when S
/// is a power of two.
void count_gather_adds(Stage& stage, const Shape& shape, const Statistics& s,
                       std::uint32_t samples) {
  const double heads = query_heads(shape);
  stage.count(Op::kAdd, Phase::kValue, (s.draws - heads) * shape.v_head_dim);
  stage.count(std::has_single_bit(samples) ? Op::kShift : Op::kMultiply, Phase::kMerge,
              heads * shape.v_head_dim);
}

/// Tile records of the longest context's heads.
double records_of_head(const Shape& shape, int tile) {
  return tiles_in(*std::max_element(shape.contexts.begin(), shape.contexts.end()), tile);
}
/// Times that a CTA reads each record: more than fit a warp's registers are read twice.
double record_reads(const Shape& shape, int tile) {
  return records_of_head(shape, tile) > device::kTilesAtOnce ? 2 : 1;
}
/// How a CTA goes through its share: so many teams together, so many times.
struct GatherRounds {
  double parts;
  double rounds;

  explicit GatherRounds(const StreamPlan& plan)
      : parts(std::min<double>(plan.split.most_teams, device::kPartsAtOnce)),
        rounds(std::ceil(plan.split.most_teams / parts)) {}

  /// Of one warp in one round.
  double heads(const Shape& shape, const StreamPlan& plan) const {
    return std::ceil(parts * static_cast<double>(shape.group()) / plan.warps);
  }
};

/// Trips through the cache that a warp waits for while it reads its heads' records.
double record_trips(const Shape& shape, const StreamPlan& plan, int tile) {
  const GatherRounds gather(plan);
  return gather.rounds * gather.heads(shape, plan) * record_reads(shape, tile) *
         std::ceil(records_of_head(shape, tile) / device::kTilesAtOnce);
}

/// Rows of draws in spilled tiles: one prefix sum of each stretch, then those of one stretch.
void search_spilled(Stage& stage, const Shape& shape, const Statistics& s, const StreamPlan& plan,
                    int tile) {
  constexpr double kSectorBytes = 32;
  constexpr double kWordBytes = 4;
  constexpr double kAtOnce = device::kPrefixesAtOnce;
  if (plan.spilled_blocks <= 0) return;
  const double draws = s.draws * plan.spilled_blocks / plan.split.units;
  const double sectors = draws * (tile / kAtOnce - 1 + kAtOnce * kWordBytes / kSectorBytes);
  const double all =
      kWordBytes / kSectorBytes * device::kBlockTokens * plan.spilled_blocks * shape.group();
  stage.read(Tensor::kStash, kSectorBytes, std::min(sectors, all), sectors);
  stage.cache_trips += GatherRounds(plan).rounds * 2;
}

/// Cycles of the instructions between the last tile record and the CTA's sums, of one warp, carried
/// over to other shapes by how often a warp goes through each step.
double chain_cycles(const Shape& shape, const Statistics& s, const StreamPlan& plan,
                    const SantaCostModel& model, int tile) {
  namespace cycles = santa_cycles;
  constexpr double kLanes = 32;
  const double tiles = records_of_head(shape, tile);
  const double own =
      std::ceil(plan.split.most_units() * device::kBlockTokens / tile / plan.split.most_teams);
  const double batches = std::ceil(tiles / device::kTilesAtOnce);
  double head =
      batches * cycles::kMasses + cycles::kStrata + std::ceil(own / kLanes) * cycles::kLineUp;
  if (model.budgets == SantaCostModel::Budgets::kLargestRemainder) {
    head += batches * cycles::kWhole + own * tiles / kLanes * cycles::kCompare;
  }
  const double drawn =
      model.independent ? model.samples : plan.rows_of_cta(shape, s.draws) / shape.group();
  const GatherRounds gather(plan);
  const double heads = gather.parts * static_cast<double>(shape.group());
  const double narrow = heads * std::ceil(drawn / (kLanes / 2));
  const double chunks = narrow > plan.warps ? heads * std::ceil(drawn / kLanes) : narrow;
  return gather.rounds * (gather.heads(shape, plan) * head + cycles::kDealOut +
                          std::ceil(chunks / plan.warps) * cycles::kChunk + cycles::kSums);
}

/// Every CTA reads all records of its teams.
Work SantaCost::ours(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const {
  const int tile = tile_of(model_, shape);
  const double records = tiles_of(shape, tile) * shape.q_heads;
  // Bernoulli scores are a launch of their own.
  const bool fallback =
      model_.launches == SantaCostModel::Launches::kFallback || !model_.scoring.exact();
  const StreamPlan plan = plan_stream_cost(shape, limits, !fallback);
  Work work;
  Stage& stream = add_stream(work, shape, plan);
  if (!model_.scoring.exact()) {  // these CTAs need not be those that gather
    const SplitPlan scores = plan_splits(shape, limits, kBlockSplitUnit);
    stream.launch = scores.launch;
    stream.imbalance = scores.imbalance;
    const int finishing = device::finish_warps(plan.warps, shape.group() > 8);
    model_.scoring.wait_for_draws(stream, shape, scores.most_teams, 32 * (plan.warps + finishing),
                                  32 * finishing);
  }
  model_.scoring.read_keys(stream, shape, s);
  stream.write(Tensor::kMetadata, kTaggedRecordBytes, records);
  count_softmax(stream, shape, s);

  Stage& gather =
      work.add_stage("gather_v", fallback ? Boundary::kKernelLaunch : Boundary::kTeamExchange);
  const double trips = record_trips(shape, plan, tile);
  gather.launch = plan.split.launch;
  gather.boundaries = fallback ? 1 : plan.split.waits;
  // The first trip is the exchange.
  gather.cache_trips = trips - (fallback ? 0 : plan.split.waits);
  const int at_once = device::sampled_rows_at_once(static_cast<int>(shape.v_head_dim),
                                                   static_cast<int>(shape.group()));
  const GatherRounds teams(plan);
  gather.load_rounds =
      teams.rounds *
      std::ceil(teams.parts * plan.rows_of_cta(shape, s.v_requests) / (plan.warps * at_once));
  gather.chain_cycles = chain_cycles(shape, s, plan, model_, tile);
  gather.heads_gather = true;
  const double reads = plan.split.team_units / plan.split.units * record_reads(shape, tile);
  gather.read(Tensor::kMetadata, kTaggedRecordBytes, records, records * reads);
  search_spilled(gather, shape, s, plan, tile);
  gather.read(Tensor::kV, shape.v_row_bytes(), s.v_rows, s.v_requests, RowSet::kVRows);
  count_budgets(gather, shape);
  count_draws(gather, shape, s);
  count_gather_adds(gather, shape, s, model_.samples);
  finish_output(work, shape, plan.split,
                {Boundary::kTeamExchange, exchanged_row_bytes(shape, false)});
  return work;
}

// SANTA repository, commit 2e5f861: pass1, tile_budgets, memset, pass2, cast_scale.
Work SantaCost::published(const Shape& shape, const Statistics& s,
                          const DeviceLimits& limits) const {
  constexpr int kStashBytes = 2;    // exponentiated scores as bf16
  constexpr int kBudgetBytes = 12;  // S_t, 1/Δ_t and offset per (head, tile)
  const double heads = query_heads(shape);
  const double records = tiles_of(shape, tile_of(model_, shape)) * shape.q_heads;
  const double accumulator_bytes = 4.0 * shape.v_head_dim;
  const ReleasedPace pace(shape, tile_of(model_, shape), limits);
  Work work;
  Stage& pass1 = work.add_stage("pass1", Boundary::kKernelLaunch);
  pace.pass1(pass1);
  read_query(pass1, shape);
  model_.scoring.read_keys(pass1, shape, s);
  pass1.write(Tensor::kStash, kStashBytes, s.k_requests);
  pass1.write(Tensor::kMetadata, kTileRecordBytes, records);
  count_softmax(pass1, shape, s);

  Stage& budgets = work.add_stage("tile_budgets", Boundary::kKernelLaunch);
  budgets.read(Tensor::kMetadata, kTileRecordBytes, records, records);
  budgets.write(Tensor::kMetadata, kBudgetBytes, records);
  pace.tile_budgets(budgets);
  count_budgets(budgets, shape);

  Stage& clear = work.add_stage("memset", Boundary::kKernelLaunch);
  clear.write(Tensor::kPartial, accumulator_bytes, heads);

  Stage& pass2 = work.add_stage("pass2", Boundary::kKernelLaunch);
  pace.pass2(pass2, s);
  pass2.heads_gather = true;
  pass2.read(Tensor::kMetadata, kBudgetBytes, records, records);
  const double stashed =
      s.head_tiles * tile_of(model_, shape);  // heads without a budget skip the tile's stash
  pass2.read(Tensor::kStash, kStashBytes, std::min(stashed, s.k_requests), stashed);
  pass2.read(Tensor::kV, shape.v_row_bytes(), s.v_rows, s.v_requests, RowSet::kVRows);
  // Float atomics: every CTA with a draw adds all heads of its group to the accumulators.
  pass2.read(Tensor::kPartial, accumulator_bytes, s.group_tiles * shape.group(),
             s.group_tiles * shape.group());
  pass2.write(Tensor::kPartial, accumulator_bytes, s.group_tiles * shape.group());
  count_draws(pass2, shape, s);
  pass2.count(Op::kMultiply, Phase::kValue, s.v_requests * shape.v_head_dim);  // count * value
  pass2.count(Op::kAdd, Phase::kValue,
              (s.v_requests + s.group_tiles * shape.group()) * shape.v_head_dim);

  Stage& cast = work.add_stage("cast_scale", Boundary::kKernelLaunch);
  cast.read(Tensor::kPartial, accumulator_bytes, heads, heads);
  cast.write(Tensor::kOutput, shape.output_bytes(), 1);
  cast.count(Op::kMultiply, Phase::kMerge, heads * shape.v_head_dim);
  return work;
}

}  // namespace

int tile_of(const SantaCostModel& model, const Shape& shape) {
  if (model.tile > 0) return model.tile;
  std::int64_t prompt = shape.prompt_tokens;
  if (prompt == 0) prompt = *std::max_element(shape.contexts.begin(), shape.contexts.end());
  return budget_tile(prompt);
}

std::unique_ptr<Implementation> make_santa_cost(const SantaCostModel& model) {
  return std::make_unique<SantaCost>(model);
}

}  // namespace kvsim
