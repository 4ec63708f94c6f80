#include "kernels/santa/santa.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/dense/softmax.h"

namespace kvsim {
namespace {

/// Ascending rows with repeats become distinct rows, counts, and weights: `weights` of one draw of
/// each, or 1 if there are none.
HeadSelection count_rows(const std::vector<std::int64_t>& drawn,
                         const std::vector<float>& weights) {
  HeadSelection head;
  for (std::size_t i = 0; i < drawn.size();) {
    std::size_t next = i;
    while (next < drawn.size() && drawn[next] == drawn[i]) ++next;
    const auto count = static_cast<std::uint32_t>(next - i);
    head.v_rows.append(drawn[i], drawn[i] + 1);
    head.counts.push_back(count);
    head.weights.push_back(static_cast<float>(count) * (weights.empty() ? 1.0f : weights[i]));
    i = next;
  }
  head.draws = static_cast<std::int64_t>(drawn.size());
  return head;
}

}  // namespace

SantaMethod::SantaMethod(std::uint32_t samples, Offsets offsets, const KeyScoring& scoring,
                         std::unique_ptr<Implementation> cost)
    : samples_(samples), offsets_(offsets), scoring_(scoring), cost_(std::move(cost)) {}

Selection SantaMethod::select(const StepView& view, const Scores& scores, State*) const {
  Selection selection;
  for (int g = 0; g < view.group; ++g) {
    Draws draws = draw(view, scores.head(g), g);
    HeadSelection head = count_rows(draws.rows, draws.weights);
    head.k_rows = RowRanges::all(view.rows());
    head.scale = static_cast<float>(draws.weights.empty() ? draws.mass_of_rows / samples()
                                                          : draws.mass_of_rows);
    head.drawn_tiles = std::move(draws.drawn_tiles);
    selection.heads.push_back(std::move(head));
  }
  scoring_.note_features(view, selection.heads);
  selection.finish();
  return selection;
}

std::vector<std::uint32_t> SantaMethod::tile_offsets(const StepView& view, int g, int tiles) const {
  const RandomStream random = random_of(view, g, Purpose::kSampleOffset);
  std::vector<std::uint32_t> offsets(offsets_ == Offsets::kPerTile ? static_cast<std::size_t>(tiles)
                                                                   : 1);
  for (std::uint32_t t = 0; t < offsets.size(); ++t) offsets[t] = random.threshold24(t);
  return offsets;
}

WholeHeadSanta::WholeHeadSanta(const SantaCostModel& model, Offsets offsets)
    : SantaMethod(model.samples, offsets, model.scoring, make_santa_cost(model)), model_(model) {}

Method::Bounds WholeHeadSanta::bounds(const Shape& shape) const {
  const double samples = model_.samples;
  Bounds bounds;
  for (const std::int64_t context : shape.contexts) {
    const auto n = static_cast<double>(context);
    Statistics low;
    low.k_rows = n * shape.kv_heads;
    low.k_requests = n * shape.q_heads;
    low.v_rows = shape.kv_heads;  // all heads of a group draw one and the same row
    low.v_requests = shape.q_heads;
    low.draws = samples * shape.q_heads;
    low.head_tiles = shape.q_heads;
    low.group_tiles = shape.kv_heads;
    Statistics high = low;
    high.v_rows = std::min(n, samples * shape.group()) * shape.kv_heads;
    high.v_requests = std::min(n, samples) * shape.q_heads;
    const double tiles = std::ceil(n / tile_of(model_, shape));
    high.head_tiles = std::min(tiles, samples) * shape.q_heads;
    high.group_tiles = std::min(tiles, samples * shape.group()) * shape.kv_heads;
    bounds.low += low;
    bounds.high += high;
  }
  model_.scoring.add_bounds(shape, bounds);
  return bounds;
}

double mass_of_rows(const StepView& view, const HeadDistribution& head, int g) {
  const float sink = sink_logit(view, g);
  if (sink == kNoSink) return 1;
  const double rows = static_cast<double>(head.total()) * 0x1p-40;
  return rows / (rows + std::exp(static_cast<double>(sink) - head.highest()));
}

std::vector<Parameter> santa_parameters(bool per_tile) {
  std::vector<Parameter> parameters{
      {"samples", "128", "rows", "S, V rows drawn per query head, with repeats"},
      {"implementation", "ours", "ours|fallback|published",
       "ours: one launch, with Bernoulli scores two; fallback: two, prefix sums in memory between "
       "them; published: the "
       "five of the released prop kernels"},
      offsets_parameter(per_tile)};
  for (Parameter& parameter : scoring_parameters()) parameters.push_back(std::move(parameter));
  return parameters;
}

Parameter offsets_parameter(bool per_tile) {
  if (!per_tile) {
    return {"offsets", "per-head", "per-head|shared",
            "random numbers of a query head, or of its whole group"};
  }
  return {"offsets", "per-head", "per-head|shared|per-tile",
          "random numbers of a query head, of its whole group, or of a head and tile"};
}

Offsets offsets_of(const Parameters& parameters) {
  const std::string& name = parameters.choice("offsets");
  if (name == "shared") return Offsets::kShared;
  return name == "per-tile" ? Offsets::kPerTile : Offsets::kPerHead;
}

SantaCostModel::Launches launches_of(const Parameters& parameters) {
  using Launches = SantaCostModel::Launches;
  const std::string& name = parameters.choice("implementation");
  if (name == "fallback") return Launches::kFallback;
  return name == "published" ? Launches::kPublished : Launches::kOurs;
}

}  // namespace kvsim
