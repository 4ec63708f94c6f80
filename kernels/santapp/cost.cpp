#include "kernels/santapp/cost.h"

#include <algorithm>
#include <cmath>

#include "kernels/santapp/cycles.h"
#include "kernels/santapp/preparation.h"
#include "kernels/santapp/table.h"
#include "kernels/santapp/team_plan.h"
#include "kernels/split_plan.h"

namespace kvsim::santapp {
namespace {

/// `published`: prompt tokens whose teams a CTA takes at once, as is assumed.
constexpr SplitUnit kUnit{256, 1};

/// A candidate as CTAs tell it to each other (lists.cuh).
constexpr double kCandidateBytes = 8;

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
  std::optional<Preparation> preparation(const Shape& shape,
                                         const DeviceLimits& limits) const override {
    return prepare_teams(shape, settings_, limits);
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

/// Members lie team by team, so that a team is one run of bytes; all teams are one run of each
/// (sequence, KV head). The suffix is one run of the cache's rows.
void attend(Stage& stage, const Shape& shape, const Statistics& s, const TeamCounts& teams,
            double suffix) {
  const double groups = shape.batch() * shape.kv_heads;
  const double runs = teams.all ? groups : std::max(1.0, teams.in_union);
  const auto read = [&](Tensor tensor, double row_bytes, double rows, double requests) {
    const double drawn = std::max(0.0, rows - suffix);
    const double run = std::max(1.0, std::round(drawn / runs));  // whole rows, as packed
    const double exact = (rows - drawn) * shape.group();
    stage.read(tensor, run * row_bytes, drawn / run, (requests - exact) / run);
    const double tail = std::max(1.0, std::round(suffix / groups));
    stage.read(tensor, tail * row_bytes, (rows - drawn) / tail, exact / tail);
  };
  read(Tensor::kK, shape.k_row_bytes(), s.k_rows, s.k_requests);
  read(Tensor::kV, shape.v_row_bytes(), s.v_rows, s.v_requests);
  count_scores(stage, shape, s.k_requests);
  if (!teams.all) stage.count(Op::kAdd, Phase::kSoftmax, s.v_requests);  // - ln c
  count_weighted_values(stage, shape, s.v_requests);
}

namespace cycles = santapp_cycles;

/// A head's search among `candidates`, 256 of which a warp has in registers.
double search_cycles(double candidates) {
  const double more = std::max(0.0, std::ceil(candidates / 32) - 8);
  return cycles::kSearchSteps * (cycles::kStep + cycles::kMore * more);
}

/// Leaders, until the CTA has named its last tile's candidates. Where its members begin is loaded
/// unit by unit. The first tile's noise is drawn while its leaders come.
void pace_routing(Stage& stage, const TeamPlan& plan, bool all) {
  const double name = all ? 0 : plan.heads_of_warp * (cycles::kName + search_cycles(0));
  const double noise = all ? 0 : plan.heads_of_warp * cycles::kNoise;
  const double scores = cycles::kScore * kTileUnits / plan.cta.warps;
  stage.load_rounds = plan.units_of_warp();
  stage.load_warps = plan.cta.warps;
  const auto before = static_cast<double>(plan.tiles.tiles_per_cta - 1);
  stage.round_cycles =
      (before * (noise + scores + name) + scores - cycles::kScore) / stage.load_rounds;
  stage.chain_cycles = cycles::kScore + name;
}

/// Every CTA reads all candidates of its heads, some heads at a time, then finds thresholds and
/// marks what its own tiles have of the drawn teams.
void pace_thresholds(Stage& stage, const Shape& shape, const TeamPlan& plan) {
  const double count = plan.candidates();
  const double at_once = std::max(
      1.0, std::min<double>(shape.group(), std::floor(plan.cta.front_bytes / (8 * count))));
  const double passes = std::ceil(shape.group() / at_once);
  const double trips = passes * std::ceil(at_once * count / 2 / plan.threads());
  stage.cache_trips = std::max(0.0, trips - stage.boundaries);  // the exchange is the first
  const double own = static_cast<double>(plan.tiles.tiles_per_cta * plan.list);
  const double head = cycles::kFind + search_cycles(count) + std::ceil(own / 32) * cycles::kMark;
  stage.chain_cycles += passes * std::ceil(at_once / plan.cta.warps) * head;
}

/// Rows of the CTA with the most: all rows are dealt out in turn; drawn teams stay where they were
/// scored, as if each of the union had fallen on a CTA at random, of which the one with the most
/// has about m + sqrt(2 m ln n), m on average. Its loads are few, and wait for latency.
void pace_members(Stage& stage, const Statistics& s, const TeamCounts& teams,
                  const TeamPlan& plan) {
  const double ctas = plan.ctas();
  const double mean = teams.in_union / ctas;
  const double most =
      std::min(teams.in_union, mean + std::sqrt(2 * mean * std::log(std::max(1.0, ctas))));
  const double drawn = std::max(0.0, s.v_rows - plan.suffix_rows);
  const double rows = teams.all ? drawn / ctas : most * drawn / std::max(1.0, teams.in_union);
  const double exact = std::ceil(plan.suffix_rows / ctas);
  const double units =
      std::ceil(rows / device::kUnitTokens) + std::ceil(exact / device::kUnitTokens);
  const double own = std::max(1.0, std::ceil(units / plan.cta.warps));  // of a warp
  const double listed = std::max(1.0, std::ceil(units * device::kUnitTokens / kRowsListed));
  const int pairs = plan.cta.stages / 2;  // of K and V
  stage.load_rounds = std::ceil(own / pairs);
  stage.load_warps = plan.cta.warps;
  stage.round_cycles = cycles::kAttend * (own - 1) / stage.load_rounds;
  const double scans =
      teams.all
          ? 0
          : std::ceil(static_cast<double>(plan.tiles.tiles_per_cta) * kTileTeams / plan.threads());
  stage.chain_cycles += cycles::kAttend + listed * (scans * cycles::kList +
                                                    kRowsListed / plan.threads() * cycles::kExact);
}

/// What CTAs keep of their tiles, if it has no room in shared memory: weights are read again to
/// name candidates, the rest to list rows.
void keep_stash(Stage& route, Stage& members, const Shape& shape, const TeamPlan& plan) {
  if (plan.stash_on_chip) return;
  const double teams = plan.ctas() * static_cast<double>(plan.tiles.tiles_per_cta) * kTileTeams;
  route.write(Tensor::kStash, 4, teams * (shape.group() + 3));
  route.read(Tensor::kStash, 4, teams * shape.group(), teams * shape.group());
  members.read(Tensor::kStash, 4, teams * (shape.group() + 3), teams * (shape.group() + 3));
}

/// One launch (kernel.cu), cooperative where a (sequence, KV head) has several CTAs. Left out: the
/// digits' rounds where a tile named too few candidates.
Work Cost::ours(const Shape& shape, const Statistics& s, const DeviceLimits& limits) const {
  const TeamCounts teams(shape, s);
  const TeamPlan plan(shape, settings_, limits);
  Work work;
  Stage& route = work.add_stage("route", Boundary::kKernelLaunch);
  route.launch = plan.split.launch;
  route.imbalance = plan.split.imbalance;
  read_query(route, shape);
  read_records(route, shape, s);
  count_routing(route, shape, teams);
  count_draw(route, teams);
  pace_routing(route, plan, teams.all);

  Stage& members = work.add_stage("attend", Boundary::kTeamExchange);
  members.boundaries = teams.all ? 0 : plan.split.waits;
  members.launch = plan.split.launch;
  keep_stash(route, members, shape, plan);
  if (!teams.all) {
    const double named = plan.candidates() * query_heads(shape);
    route.write(Tensor::kStash, kCandidateBytes, named);
    members.read(Tensor::kStash, kCandidateBytes, named, named * plan.split.ctas_per_team);
    pace_thresholds(members, shape, plan);
  }
  pace_members(members, s, teams, plan);
  attend(members, shape, s, teams, plan.suffix_rows);
  finish_output(work, shape, plan.split,
                {Boundary::kTeamExchange, exchanged_row_bytes(shape, true)});
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
  attend(members, shape, s, teams, TeamPlan(shape, settings_, limits).suffix_rows);
  finish_output(work, shape, plan, {Boundary::kKernelLaunch, partial_row_bytes(shape)});
  return work;
}

}  // namespace

std::unique_ptr<Implementation> make_cost(const Settings& settings) {
  return std::make_unique<Cost>(settings);
}

}  // namespace kvsim::santapp
