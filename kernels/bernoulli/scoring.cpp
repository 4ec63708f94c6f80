#include "kernels/bernoulli/scoring.h"

#include <cmath>

#include "core/error.h"
#include "kernels/attention.h"
#include "kernels/bernoulli/cycles.h"
#include "kernels/bernoulli/drawn_query.h"
#include "kernels/bernoulli/sizes.h"
#include "kernels/device/geometry.h"
#include "kernels/split_plan.h"

namespace kvsim {
namespace {

double kv_heads_of(const Shape& shape) { return shape.batch() * shape.kv_heads; }

}  // namespace

Scores KeyScoring::score(const StepView& view) const {
  if (exact_) return exact_scores(view);
  const WeightedQueries own = queries(view);
  return scores_of(view, own.values, own.scales);
}

WeightedQueries KeyScoring::queries(const StepView& view) const {
  WeightedQueries result;
  for (const DrawnQuery& drawn : draw_queries(view, query_)) {
    result.values.insert(result.values.end(), drawn.weights.begin(), drawn.weights.end());
    result.scales.push_back(view.scale * drawn.factor);
  }
  return result;
}

void KeyScoring::note_features(const StepView& view, std::vector<HeadSelection>& heads) const {
  if (exact_) {
    for (HeadSelection& head : heads) head.k_features = RowRanges::all(view.k.dim);
    return;
  }
  std::vector<DrawnQuery> drawn = draw_queries(view, query_);
  for (std::size_t g = 0; g < heads.size(); ++g) {
    heads[g].k_features = std::move(drawn[g].features);
    heads[g].feature_counts = std::move(drawn[g].counts);
    heads[g].query_hits = drawn[g].hits;
  }
}

void KeyScoring::add_bounds(const Shape& shape, Method::Bounds& bounds) const {
  const Statistics all = all_key_features(shape);
  if (exact_) bounds.low += all;
  bounds.high += all;
  if (!exact_) bounds.high.query_hits += all.k_feature_requests * query_.draws;
}

void KeyScoring::read_keys(Stage& stage, const Shape& shape, const Statistics& s) const {
  if (exact_) {
    stage.read(Tensor::kK, shape.k_row_bytes(), s.k_rows, s.k_requests, RowSet::kKRows);
  } else if (layout_ == KeyLayout::kTokenMajor) {
    read_token_major(stage, shape, s);
  } else {
    const double tokens = s.k_rows / kv_heads_of(shape);
    stage.read(Tensor::kK, tokens * shape.k_row_bytes() / shape.head_dim, s.k_features,
               s.k_feature_requests, RowSet::kKFeatures);
  }
}

/// Rows of the mean size that groups read of them. What heads ask for one by one is less than that
/// per row, so requests count rows of this size too.
void KeyScoring::read_token_major(Stage& stage, const Shape& shape, const Statistics& s) const {
  const Statistics all = all_key_features(shape);
  const double group_share = s.k_features / all.k_features;
  const double head_share = s.k_feature_requests / all.k_feature_requests;
  const double requests = group_share > 0 ? s.k_requests * head_share / group_share : 0;
  stage.read(Tensor::kK, group_share * shape.k_row_bytes(), s.k_rows, requests, RowSet::kKRows);
  stage.accesses.back().chunk_share = s.k_chunks / all.k_chunks;
}

void KeyScoring::wait_for_draws(Stage& stage, const Shape& shape, double teams, double threads,
                                double later_threads) const {
  if (exact_) return;
  namespace cycles = bernoulli_cycles;
  const double features = static_cast<double>(shape.group() * head_class(shape.head_dim));
  const auto rounds = [&](double drawers) {
    return std::ceil(features / (device::kDrawnAtOnce * drawers));
  };
  stage.dependent_trips += teams;
  stage.chain_cycles +=
      (rounds(threads) + (teams - 1) * rounds(later_threads)) * (cycles::kDraw + cycles::kPlace);
}

void KeyScoring::count_operations(Stage& stage, const Shape& shape, const Statistics& s) const {
  if (exact_) return count_scores(stage, shape, s.k_requests);
  count_draws(stage, shape, s);
  const double tokens = s.k_requests / query_heads(shape);
  if (query_.group_mean) {  // a product with c q / m for each element
    stage.count(Op::kMultiply, Phase::kScore, tokens * s.k_feature_requests + s.k_requests);
    stage.count(Op::kAdd, Phase::kScore, tokens * s.k_feature_requests);
  } else {  // an addition for each hit; norm / B times the scale is one factor
    stage.count(Op::kMultiply, Phase::kScore, s.k_requests);
    stage.count(Op::kAdd, Phase::kScore, tokens * s.query_hits);
  }
}

/// Once for each query head or group: the largest magnitude, p of every feature, B words and
/// compares for each, and the factor of the scores.
void KeyScoring::count_draws(Stage& stage, const Shape& shape, const Statistics& s) const {
  const double queries = query_.group_mean ? kv_heads_of(shape) : query_heads(shape);
  const double features = queries * shape.head_dim;
  double multiplies = features + queries;
  if (query_.group_mean) {
    stage.count(Op::kAdd, Phase::kSelect, features * (shape.group() - 1));  // m
    multiplies += 2 * s.k_feature_requests;                                 // c q / m
  }
  stage.count(Op::kMultiply, Phase::kSelect, multiplies);
  stage.count(Op::kCompare, Phase::kSelect, features - queries + features * query_.draws);
  stage.count(Op::kRandomWord, Phase::kSelect, features * query_.draws);
}

std::vector<Parameter> bernoulli_parameters() {
  return {{"draws", "4", "draws", "B, ternary queries added up for each score"},
          {"drawn", "stratified", "stratified|iid",
           "stratified: every feature B p times, rounded down or up; iid: independent draws"},
          {"query", "head", "head|mean",
           "head: each query head draws for itself; mean: one draw for the group, from its mean "
           "magnitudes"},
          {"k_layout", "token", "token|feature",
           "K as stored, token by token, or a copy feature by feature, where skipped features save "
           "their bytes"}};
}

QueryDraws query_draws(const Parameters& parameters) {
  QueryDraws query;
  query.draws = static_cast<std::uint32_t>(parameters.integer("draws", 1, kMaxQueryDraws));
  query.stratified = parameters.choice("drawn") == "stratified";
  query.group_mean = parameters.choice("query") == "mean";
  return query;
}

std::string token_major_refusal() {
  return "k_layout=token, expected feature: K as stored saves nothing";
}

KeyLayout key_layout(const Parameters& parameters) {
  return parameters.choice("k_layout") == "feature" ? KeyLayout::kFeatureMajor
                                                    : KeyLayout::kTokenMajor;
}

KeyScoring bernoulli_scoring(const Parameters& parameters) {
  return {query_draws(parameters), key_layout(parameters)};
}

std::vector<Parameter> scoring_parameters() {
  std::vector<Parameter> parameters = bernoulli_parameters();
  parameters.insert(parameters.begin(),
                    {"scores", "exact", "exact|bernoulli",
                     "exact: q.k; bernoulli: estimated from drawn query features"});
  return parameters;
}

KeyScoring scoring_of(const Parameters& parameters) {
  if (parameters.choice("scores") != "exact") return bernoulli_scoring(parameters);
  for (const Parameter& parameter : bernoulli_parameters()) {
    const std::string& value = parameters.values().at(parameter.name);
    if (value == parameter.default_value) continue;
    fail<UsageError>("method '{}': {}={} with scores=exact, expected scores=bernoulli with it",
                     parameters.method(), parameter.name, value);
  }
  return {};
}

}  // namespace kvsim
