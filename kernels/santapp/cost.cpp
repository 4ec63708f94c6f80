#include "kernels/santapp/cost.h"

#include <algorithm>
#include <cmath>

#include "kernels/santapp/table.h"
#include "kernels/split_plan.h"

namespace kvsim::santapp {
namespace {

/// Prompt tokens whose teams a CTA takes at once.
constexpr SplitUnit kUnit{256, 1};

/// A drawn team as launches hand it on: its number, φ, and what its weight is divided by.
constexpr double kDrawnBytes = 12;

/// What a step's statistics say of its teams, summed over the batch.
struct TeamCounts {
  double scored;    // by all heads of each group
  double drawn;     // by a head
  double in_union;  // by any head of a group
  bool all;         // every team is drawn, so none by chance

  TeamCounts(const Shape& shape, const Statistics& s)
      : scored(s.routing_vectors * shape.group()),
        drawn(s.head_tiles),
        in_union(s.group_tiles),
        all(s.head_tiles >= scored) {}
};

class Cost : public Implementation {
 public:
  explicit Cost(const Settings& settings) : settings_(settings) {}

  Work work(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const override {
    return settings_.published ? published(shape, s, limits) : ours(shape, s, limits);
  }

 private:
  Work ours(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const;
  Work published(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const;
  void count_draw(Stage& stage, const TeamCounts& teams) const;

  Settings settings_;
};

/// Once for all heads of a group (section 4).
void read_records(Stage& stage, const Shape& shape, const Statistics& s) {
  const auto record = static_cast<double>(record_bytes(shape.head_dim));
  stage.read(Tensor::kMetadata, record, s.routing_vectors, s.routing_vectors);
}

/// φ and its noise: ln n is kept with the team; a logarithm counts as an exponential.
void count_routing(Stage& stage, const Shape& shape, const TeamCounts& teams) {
  const double d = shape.head_dim;
  stage.count(Op::kMultiply, Phase::kScore, teams.scored * (d + 1));
  stage.count(Op::kAdd, Phase::kScore, teams.scored * (d - 1));
  stage.count(Op::kAdd, Phase::kSelect, teams.scored);
  if (teams.all) return;
  stage.count(Op::kRandomWord, Phase::kSelect, teams.scored);
  stage.count(Op::kExp, Phase::kSelect, 2 * teams.scored);
  stage.count(Op::kAdd, Phase::kSelect, teams.scored);
}

/// The K + 1 largest priorities, a comparison with the threshold for each, and ln c: φ - κ, two
/// exponentials and a logarithm. Guided, a word for each key that is drawn, and its share of the
/// parent.
void Cost::count_draw(Stage& stage, const TeamCounts& teams) const {
  if (settings_.guided > 0) {
    stage.count(Op::kRandomWord, Phase::kSelect, teams.drawn * settings_.guided);
    stage.count(Op::kAdd, Phase::kSelect, teams.drawn);
  }
  if (teams.all) return;
  stage.count(Op::kCompare, Phase::kSelect, teams.scored);
  stage.count(Op::kAdd, Phase::kSelect, teams.drawn);
  stage.count(Op::kExp, Phase::kSelect, 3 * teams.drawn);
}

/// Members lie team by team, so that a team is one run of bytes; the suffix is one run of rows.
void attend(Stage& stage, const Shape& shape, const Statistics& s, const TeamCounts& teams) {
  const double run = teams.in_union > 0 ? std::max(1.0, s.v_rows / teams.in_union) : 1;
  stage.read(Tensor::kK, run * shape.k_row_bytes(), s.k_rows / run, s.k_requests / run,
             RowSet::kKRows);
  stage.read(Tensor::kV, run * shape.v_row_bytes(), s.v_rows / run, s.v_requests / run,
             RowSet::kVRows);
  count_scores(stage, shape, s.k_requests);
  if (!teams.all) stage.count(Op::kAdd, Phase::kSoftmax, s.v_requests);  // - ln c
  count_weighted_values(stage, shape, s.v_requests);
}

/// One launch, planned: no kernel does it yet. CTAs score their own teams' leaders, tell each other
/// what the threshold depends on, and attend to those of their teams that are drawn.
Work Cost::ours(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const {
  const TeamCounts teams(shape, s);
  const SplitPlan plan = plan_splits(shape, limits, kUnit);
  Work work;
  Stage& route = work.add_stage("route", Boundary::kKernelLaunch);
  route.launch = plan.launch;
  route.imbalance = plan.imbalance;
  route.dependent_trips = 1;  // queries, then leaders
  read_query(route, shape);
  read_records(route, shape, s);
  count_routing(route, shape, teams);
  count_draw(route, teams);

  Stage& members = work.add_stage("attend", Boundary::kTeamExchange);
  members.boundaries = plan.waits;
  members.launch = plan.launch;
  attend(members, shape, s, teams);
  finish_output(work, shape, plan, {Boundary::kTeamExchange, exchanged_row_bytes(shape, true)});
  return work;
}

/// Five launches (appendix D): scores of leaders, top-K of parts, the merge of the parts with the
/// union over the group, attention to members, and the sum of its splits. The code is not public.
/// Assumed: grids as the split of our own kernels has them.
Work Cost::published(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const {
  const TeamCounts teams(shape, s);
  const SplitPlan plan = plan_splits(shape, limits, kUnit);
  Work work;
  const auto stage_of = [&](const char* name) -> Stage& {
    Stage& stage = work.add_stage(name, Boundary::kKernelLaunch);
    stage.launch = plan.launch;
    return stage;
  };
  Stage& route = stage_of("score_leaders");
  read_query(route, shape);
  read_records(route, shape, s);
  count_routing(route, shape, teams);
  route.write(Tensor::kStash, kScoreBytes, teams.scored);

  Stage& parts = stage_of("select_teams");
  parts.read(Tensor::kStash, kScoreBytes, teams.scored, teams.scored);
  parts.write(Tensor::kPartial, kDrawnBytes, teams.drawn);
  count_draw(parts, teams);

  Stage& merge = stage_of("merge_teams");
  merge.read(Tensor::kPartial, kDrawnBytes, teams.drawn, teams.drawn);
  merge.write(Tensor::kMetadata, kDrawnBytes, teams.drawn);

  Stage& members = stage_of("attend");
  members.imbalance = plan.imbalance;
  members.dependent_trips = 1;  // which teams, then their rows
  members.read(Tensor::kMetadata, kDrawnBytes, teams.drawn, teams.drawn);
  attend(members, shape, s, teams);
  finish_output(work, shape, plan, {Boundary::kKernelLaunch, partial_row_bytes(shape)});
  return work;
}

}  // namespace

std::unique_ptr<Implementation> make_cost(const Settings& settings) {
  return std::make_unique<Cost>(settings);
}

}  // namespace kvsim::santapp
