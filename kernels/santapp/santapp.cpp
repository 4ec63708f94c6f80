// SANTA++ (arXiv 2609.35629): keys lie in teams; each query head scores one key of each team, draws
// teams by that without replacement, scores their keys exactly, and divides by how likely each team
// was to be drawn.

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "kernels/dense/softmax.h"
#include "kernels/method.h"
#include "kernels/santapp/cost.h"
#include "kernels/santapp/draw.h"
#include "kernels/santapp/rule.h"
#include "kernels/santapp/settings.h"
#include "kernels/santapp/table.h"

namespace kvsim::santapp {
namespace {

/// Rows of one head, the logits that it weighs them by, and the teams that were drawn.
struct HeadRows {
  std::vector<std::int64_t> rows;
  std::vector<float> logits;
  std::vector<std::int32_t> teams;

  void add(std::int64_t row, float logit) {
    rows.push_back(row);
    logits.push_back(logit);
  }
  /// Into ascending rows.
  void sort() {
    std::vector<std::pair<std::int64_t, float>> pairs;
    for (std::size_t i = 0; i < rows.size(); ++i) pairs.emplace_back(rows[i], logits[i]);
    std::ranges::sort(pairs, {}, &std::pair<std::int64_t, float>::first);
    for (std::size_t i = 0; i < rows.size(); ++i) std::tie(rows[i], logits[i]) = pairs[i];
  }
};

class SantaPlusPlus : public Method {
 public:
  explicit SantaPlusPlus(const Parameters& parameters)
      : settings_(parameters), cost_(make_cost(settings_)) {}

  std::unique_ptr<State> prepare(const CacheView& prompt) const override {
    return std::make_unique<TeamTable>(prompt, settings_);
  }
  void append(State& state, const CacheView& grown) const override {
    static_cast<TeamTable&>(state).rows = grown.k.rows;
  }

  Selection select(const StepView& view, const Scores& scores, State* state) const override;
  std::vector<double> log_proposal(const StepView& view, int head, const Scores& scores,
                                   const State* state) const override {
    const auto& table = static_cast<const TeamTable&>(*state);
    return table.covers(view) ? table.log_proposal(view, head, scores) : std::vector<double>();
  }
  Bounds bounds(const Shape& shape) const override;
  const Implementation& implementation() const override { return *cost_; }

 private:
  void add_bounds(std::int64_t context, const Shape& shape, Bounds& bounds) const;
  void take_drawn(const StepView& view, int head, const Scores& scores, const TeamTable& table,
                  HeadRows& taken) const;
  HeadSelection take(const StepView& view, int head, const Scores& scores,
                     const TeamTable& table) const;

  Settings settings_;
  std::unique_ptr<Implementation> cost_;
};

/// The drawn keys of the prompt, with logits that divide their weights by how likely they were.
void SantaPlusPlus::take_drawn(const StepView& view, int head, const Scores& scores,
                               const TeamTable& table, HeadRows& taken) const {
  const std::span<const float> logits = scores.head(head);
  const Draw draw = draw_teams(table.weights(view, head, scores), settings_.draws(),
                               view.random_of(head, Purpose::kTeamNoise));
  const RandomStream words = view.random_of(head, Purpose::kMemberDraw);
  for (std::size_t i = 0; i < draw.teams.size(); ++i) {
    const std::span<const std::int32_t> members = table.members(draw.teams[i]);
    const auto all = static_cast<std::int64_t>(members.size());
    const std::int64_t some =
        settings_.guided > 0 ? std::min<std::int64_t>(settings_.guided, all) : all;
    float correction = draw.log_inclusion[i];
    if (some < all) correction += log_positive(static_cast<float>(some) / static_cast<float>(all));
    for (const std::int32_t key : draw_members(members, some, words, table.start(draw.teams[i]))) {
      taken.add(key, logits[static_cast<std::size_t>(key)] - correction);
    }
  }
  taken.sort();
  taken.teams = draw.teams;
}

HeadSelection SantaPlusPlus::take(const StepView& view, int head, const Scores& scores,
                                  const TeamTable& table) const {
  HeadRows taken;
  const bool draws = table.covers(view);
  if (draws) take_drawn(view, head, scores, table, taken);
  // The suffix is exact, and so is all of a window.
  for (std::int64_t row = draws ? table.prompt() : 0; row < view.rows(); ++row) {
    taken.add(row, scores.head(head)[static_cast<std::size_t>(row)]);
  }
  Softmax softmax = softmax_weights(taken.logits, sink_logit(view, head));
  HeadSelection selection;
  selection.k_rows = selection.v_rows = RowRanges::of(taken.rows);
  selection.k_features = RowRanges::all(view.k.dim);
  selection.weights = std::move(softmax.weights);
  selection.scale = softmax.inverse_sum;
  selection.draws = selection.v_rows.size();
  selection.drawn_tiles = std::move(taken.teams);
  return selection;
}

Selection SantaPlusPlus::select(const StepView& view, const Scores& scores, State* state) const {
  KVSIM_CHECK(state != nullptr);
  auto& table = static_cast<TeamTable&>(*state);
  table.windowed = table.windowed || !table.covers(view);
  Selection selection;
  for (int g = 0; g < view.group; ++g) {
    selection.heads.push_back(take(view, g, scores, table));
  }
  selection.finish();
  if (table.covers(view)) {
    selection.statistics.routing_vectors = table.teams();
    selection.statistics.state_bytes_read = static_cast<double>(table.bytes());
  }
  return selection;
}

/// Adds one sequence. How k-means deals keys out is not known beforehand.
void SantaPlusPlus::add_bounds(std::int64_t context, const Shape& shape, Bounds& bounds) const {
  const std::int64_t prompt =
      shape.prompt_tokens > 0 ? std::min(shape.prompt_tokens, context) : context;
  const auto suffix = static_cast<double>(context - prompt);
  const bool spans = settings_.teams.grouping == Grouping::kContiguous;
  const std::int64_t of_parent = settings_.teams.representatives;
  const std::int64_t parents = cluster_count(prompt, settings_.teams.parent);
  const std::int64_t in_spans = prompt / settings_.teams.parent * of_parent +
                                std::min(of_parent, prompt % settings_.teams.parent);
  const std::int64_t fewest = spans ? in_spans : std::min(prompt, of_parent);
  const std::int64_t most = spans ? in_spans : std::min(prompt, parents * of_parent);
  const std::int64_t longest = spans ? settings_.teams.parent - of_parent + 1 : prompt;  // team
  const std::int64_t of_team = settings_.guided > 0 ? settings_.guided : longest;
  const std::int64_t draws = settings_.draws();
  const int group = shape.group();
  const auto statistics = [&](std::int64_t teams, std::int64_t head_rows, std::int64_t group_rows,
                              std::int64_t group_teams) {
    Statistics s;
    s.head_tiles = static_cast<double>(std::min(draws, teams)) * shape.q_heads;
    s.group_tiles = static_cast<double>(group_teams) * shape.kv_heads;
    s.v_requests = s.k_requests = s.draws =
        (static_cast<double>(head_rows) + suffix) * shape.q_heads;
    s.v_rows = s.k_rows = (static_cast<double>(group_rows) + suffix) * shape.kv_heads;
    s.routing_vectors = static_cast<double>(teams) * shape.kv_heads;
    s.state_bytes_read = s.routing_vectors * static_cast<double>(record_bytes(shape.head_dim));
    return s;
  };
  const std::int64_t least_rows =
      draws >= most && settings_.guided == 0 ? prompt : std::min(draws, fewest);
  const std::int64_t most_rows = std::min(prompt, draws * of_team);
  bounds.low += statistics(fewest, least_rows, least_rows, std::min(draws, fewest));
  bounds.high += statistics(most, most_rows, std::min(prompt, group * most_rows),
                            std::min(most, group * draws));
}

Method::Bounds SantaPlusPlus::bounds(const Shape& shape) const {
  Bounds bounds{all_key_features(shape), all_key_features(shape)};
  for (const std::int64_t context : shape.contexts) add_bounds(context, shape, bounds);
  return bounds;
}

KVSIM_REGISTER_METHOD(
    "santapp",
    MethodInfo{
        .summary = "teams of keys, drawn by their leaders' scores, weighed by 1 / inclusion",
        .source = "SANTA++ (arXiv 2609.35629)",
        .parameters =
            {{"samples", "128", "rows",
              "a head nominally reads, parent / representatives of each team drawn"},
             {"parent", "16", "tokens", "of a parent, on average"},
             {"representatives", "4", "teams", "that a parent falls into, at most"},
             {"grouping", "keys", "keys|contiguous|probes",
              "keys: k-means of keys; contiguous: spans of tokens; probes: k-means of what the "
              "last prompt queries score keys"},
             {"routing", "leader", "leader|mean",
              "what a team is drawn by: a key of it or the mean"},
             {"guided", "0", "rows", "keys drawn of each parent drawn; 0: whole teams"},
             {"implementation", "ours", "ours|published", "ours: one launch; published: five"}},
        .make = [](const Parameters& p) { return std::make_unique<SantaPlusPlus>(p); }});

}  // namespace
}  // namespace kvsim::santapp
