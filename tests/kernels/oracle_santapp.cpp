// SANTA++ from its formulas, with contiguous parents.

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/oracle_parts.h"

namespace kvsim::testing {
namespace {

struct Team {
  std::vector<double> leader;
  std::vector<std::int64_t> members;
};

double distance(const StepView& view, std::int64_t row, const std::vector<double>& to) {
  double sum = 0;
  for (int c = 0; c < view.k.dim; ++c) {
    sum += std::pow(element(view.k, row, c) - to[static_cast<std::size_t>(c)], 2);
  }
  return sum;
}

std::vector<double> key_of(const StepView& view, std::int64_t row) {
  std::vector<double> key;
  for (int c = 0; c < view.k.dim; ++c) key.push_back(element(view.k, row, c));
  return key;
}

std::vector<double> mean_of(const StepView& view, const std::vector<std::int64_t>& rows) {
  std::vector<double> mean(static_cast<std::size_t>(view.k.dim));
  for (const std::int64_t row : rows) {
    for (int c = 0; c < view.k.dim; ++c) {
      mean[static_cast<std::size_t>(c)] +=
          element(view.k, row, c) / static_cast<double>(rows.size());
    }
  }
  return mean;
}

double in_bfloat16(double x) { return bf16_to_float(float_to_bf16(static_cast<float>(x))); }

/// The parent of rows [begin, end) in teams: leaders by farthest point.
std::vector<Team> teams_of_parent(const StepView& view, std::int64_t begin, std::int64_t end,
                                  const TeamRule& rule) {
  std::vector<std::int64_t> rows;
  for (std::int64_t row = begin; row < end; ++row) rows.push_back(row);
  std::vector<std::int64_t> leaders;
  const std::vector<double> mean = mean_of(view, rows);
  leaders.push_back(*std::ranges::min_element(
      rows, {}, [&](std::int64_t row) { return distance(view, row, mean); }));
  const auto nearest = [&](std::int64_t row) {
    std::size_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t l = 0; l < leaders.size(); ++l) {
      const double d = distance(view, row, key_of(view, leaders[l]));
      if (d < least) {
        least = d;
        best = l;
      }
    }
    return std::pair(least, best);
  };
  while (leaders.size() <
         std::min<std::size_t>(static_cast<std::size_t>(rule.representatives), rows.size())) {
    leaders.push_back(
        *std::ranges::max_element(rows, {}, [&](std::int64_t row) { return nearest(row).first; }));
  }
  std::vector<Team> teams(leaders.size());
  for (const std::int64_t row : rows) teams[nearest(row).second].members.push_back(row);
  for (std::size_t l = 0; l < leaders.size(); ++l) {
    teams[l].leader = rule.mean ? mean_of(view, teams[l].members) : key_of(view, leaders[l]);
    if (rule.mean) std::ranges::transform(teams[l].leader, teams[l].leader.begin(), in_bfloat16);
  }
  return teams;
}

Counted dot(const StepView& view, int g, const std::vector<double>& key) {
  Counted sum = Counted(key[0]) * Counted(view.query(g)[0]);
  for (std::size_t i = 1; i < key.size(); ++i) {
    sum = sum + Counted(key[i]) * Counted(view.query(g)[i]);
  }
  return sum * Counted(view.scale);
}

Counted logarithm(double x) {  // counts as an exponential
  OpTally::note(Op::kExp);
  return Counted(std::log(x));
}

/// φ of all teams; ln n is part of a team's record.
std::vector<Counted> weights_of(const StepView& view, int g, const std::vector<Team>& teams) {
  std::vector<Counted> weights;
  for (const Team& team : teams) {
    enter(Phase::kScore);
    const Counted score = dot(view, g, team.leader);
    enter(Phase::kSelect);
    weights.push_back(Counted(std::log(static_cast<double>(team.members.size()))) + score);
  }
  return weights;
}

/// The K-th and the next largest of φ and noise decide; returns κ and who is above it.
std::pair<double, std::vector<bool>> draw(const StepView& view, int g, std::int64_t draws,
                                          const std::vector<Counted>& weights) {
  const RandomStream noise = view.random_of(g, Purpose::kTeamNoise);
  std::vector<Counted> priorities;
  for (std::size_t t = 0; t < weights.size(); ++t) {
    OpTally::note(Op::kRandomWord);
    const double u = 1 - (noise.word(static_cast<std::uint32_t>(t)) + 0.5) * 0x1p-32;
    priorities.push_back(weights[t] - logarithm(-logarithm(u).value()));
  }
  std::vector<double> sorted;
  for (const Counted p : priorities) sorted.push_back(p.value());
  std::ranges::sort(sorted, std::greater{});
  const double threshold = sorted[static_cast<std::size_t>(draws)];
  std::vector<bool> above;
  for (const Counted p : priorities) above.push_back(Counted(threshold) < p);
  return {threshold, above};
}

/// ln (1 - exp(-exp(φ - κ))).
double log_chance(Counted weight, double threshold) {
  const Counted rate = Counted::exp(weight - Counted(threshold));
  OpTally::note(Op::kExp);
  const double chance = -std::expm1(-rate.value());
  return logarithm(chance).value();
}

}  // namespace

OracleHead oracle_santapp(const StepView& view, int g, const TeamRule& rule) {
  std::vector<Team> teams;
  for (std::int64_t begin = 0; begin < view.prompt_tokens; begin += rule.parent) {
    const std::int64_t end = std::min(view.prompt_tokens, begin + rule.parent);
    for (Team& team : teams_of_parent(view, begin, end, rule)) teams.push_back(std::move(team));
  }
  const std::vector<Counted> weights = weights_of(view, g, teams);
  enter(Phase::kSelect);
  const bool all = rule.draws >= static_cast<std::int64_t>(teams.size());
  double threshold = 0;
  std::vector<bool> drawn(teams.size(), true);
  if (!all) std::tie(threshold, drawn) = draw(view, g, rule.draws, weights);
  std::map<std::int64_t, double> corrections;
  for (std::size_t t = 0; t < teams.size(); ++t) {
    if (!drawn[t]) continue;
    const double correction = all ? 0 : log_chance(weights[t], threshold);
    for (const std::int64_t row : teams[t].members) corrections[row] = correction;
  }
  for (std::int64_t row = view.prompt_tokens; row < view.rows(); ++row) corrections[row] = 0;
  std::vector<std::int64_t> rows;
  for (const auto& [row, correction] : corrections) rows.push_back(row);
  std::vector<Counted> scores = exact_row_scores(view, g, rows);
  enter(Phase::kSoftmax);
  for (std::size_t i = 0; i < rows.size() && !all; ++i) {
    scores[i] = scores[i] - Counted(corrections[rows[i]]);
  }
  return softmax_head(view, scores, rows);
}

}  // namespace kvsim::testing
