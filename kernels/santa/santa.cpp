#include "kernels/santa/santa.h"

#include <algorithm>
#include <cmath>

#include "kernels/dense/softmax.h"

namespace kvsim {
namespace {

/// Ascending rows with repeats become distinct rows and counts.
HeadSelection count_rows(const std::vector<std::int64_t>& drawn) {
  HeadSelection head;
  for (std::size_t i = 0; i < drawn.size();) {
    std::size_t next = i;
    while (next < drawn.size() && drawn[next] == drawn[i]) ++next;
    head.v_rows.append(drawn[i], drawn[i] + 1);
    head.weights.push_back(static_cast<float>(next - i));
    i = next;
  }
  head.draws = static_cast<std::int64_t>(drawn.size());
  return head;
}

}  // namespace

SantaMethod::SantaMethod(SantaCostModel model, const KeyScoring& scoring) : model_(model) {
  model_.scoring = scoring;
  cost_ = make_santa_cost(model_);
}

Selection SantaMethod::select(const StepView& view, const Scores& scores, State*) const {
  Selection selection;
  for (int g = 0; g < view.group; ++g) {
    Draws draws = draw(view, scores.head(g), g);
    HeadSelection head = count_rows(draws.rows);
    head.k_rows = RowRanges::all(view.rows());
    head.scale = static_cast<float>(draws.mass_of_rows / samples());
    head.drawn_tiles = std::move(draws.drawn_tiles);
    selection.heads.push_back(std::move(head));
  }
  model_.scoring.note_features(view, selection.heads);
  selection.finish();
  return selection;
}

Method::Bounds SantaMethod::bounds(const Shape& shape) const {
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

std::vector<Parameter> santa_parameters() {
  std::vector<Parameter> parameters{
      {"samples", "128", "rows", "S, V rows drawn per query head, with repeats"},
      {"implementation", "ours", "ours|fallback|published",
       "ours: one launch; fallback: two, prefix sums in memory between them; published: the "
       "five of the released prop kernels"}};
  for (Parameter& parameter : scoring_parameters()) parameters.push_back(std::move(parameter));
  return parameters;
}

SantaCostModel::Launches launches_of(const Parameters& parameters) {
  using Launches = SantaCostModel::Launches;
  const std::string& name = parameters.choice("implementation");
  if (name == "fallback") return Launches::kFallback;
  return name == "published" ? Launches::kPublished : Launches::kOurs;
}

}  // namespace kvsim
