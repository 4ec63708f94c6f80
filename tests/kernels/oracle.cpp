#include "tests/kernels/oracle.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/kernels/oracle_parts.h"

namespace kvsim::testing {
namespace {

double uniform24(const RandomStream& random, std::uint32_t index) {
  OpTally::note(Op::kRandomWord);
  return random.threshold24(index) * 0x1p-24;
}

/// The magnitudes that features are drawn by: the head's own, or their sum over the group (the
/// mean's 1/G cancels).
std::vector<Counted> magnitudes(const StepView& view, int g, const ScoreRule& rule) {
  std::vector<Counted> result;
  for (std::size_t i = 0; i < static_cast<std::size_t>(view.k.dim); ++i) {
    Counted sum(std::abs(view.query(rule.group_mean ? 0 : g)[i]));
    for (int other = 1; rule.group_mean && other < view.group; ++other) {
      sum = sum + Counted(std::abs(view.query(other)[i]));
    }
    result.push_back(sum);
  }
  return result;
}

struct DrawnFeatures {
  std::vector<Counted> magnitudes;
  std::vector<int> counts;
  Counted factor;  // norm / B * scale
};

/// All B draws of every feature as the definition has them, though most are decided beforehand.
DrawnFeatures draw_features(const StepView& view, int g, const ScoreRule& rule) {
  enter(Phase::kSelect);
  DrawnFeatures drawn;
  drawn.magnitudes = magnitudes(view, g, rule);
  const Counted norm = largest(drawn.magnitudes);
  const RandomStream random = view.random_of(rule.group_mean ? 0 : g, Purpose::kQueryDraw);
  std::uint32_t word = 0;
  for (const Counted m : drawn.magnitudes) {
    const Counted p = m * Counted(1 / norm.value());
    int count = 0;
    for (int n = 0; n < rule.draws; ++n) {
      const double u = uniform24(random, word++);
      count += Counted(rule.stratified ? (n + u) / rule.draws : u) < p ? 1 : 0;
    }
    drawn.counts.push_back(count);
  }
  drawn.factor = norm * Counted(static_cast<double>(view.scale) / rule.draws);
  return drawn;
}

std::vector<Counted> bernoulli_scores(const StepView& view, int g, const ScoreRule& rule) {
  // One draw serves the group: only its first head's is counted.
  const OpTally before = OpTally::current();
  const DrawnFeatures drawn = draw_features(view, g, rule);
  if (rule.group_mean && g > 0) OpTally::current() = before;
  std::vector<Counted> weights;
  for (std::size_t i = 0; i < drawn.counts.size(); ++i) {
    const double q = view.query(g)[i];
    weights.emplace_back(q < 0 ? -1 : 1);
    if (!rule.group_mean || drawn.counts[i] == 0) continue;
    enter(Phase::kSelect);
    weights[i] = Counted(q) * Counted(1 / drawn.magnitudes[i].value());
    weights[i] = weights[i] * Counted(drawn.counts[i]);
  }
  enter(Phase::kScore);
  std::vector<Counted> result;
  for (std::int64_t row = 0; row < view.rows(); ++row) {
    Counted sum;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const Counted key(element(view.k, row, static_cast<int>(i)));
      if (rule.group_mean) {
        if (drawn.counts[i] > 0) sum = sum + key * weights[i];
        continue;
      }
      for (int n = 0; n < drawn.counts[i]; ++n) {
        sum = weights[i].value() < 0 ? sum - key : sum + key;
      }
    }
    result.push_back(sum * drawn.factor);
  }
  return result;
}

std::vector<Counted> scores(const StepView& view, int g, const ScoreRule& rule = {}) {
  return rule.draws > 0 ? bernoulli_scores(view, g, rule)
                        : exact_row_scores(view, g, all_rows(view));
}

std::vector<Counted> prefix_sums(const std::vector<Counted>& values) {
  enter(Phase::kSelect);
  std::vector<Counted> result{values[0]};
  for (std::size_t i = 1; i < values.size(); ++i) result.push_back(result.back() + values[i]);
  return result;
}

/// First entry above `threshold`, by a binary search of exactly ceil(log2(size)) compares.
std::size_t search(std::span<const Counted> cumulative, Counted threshold) {
  std::size_t size = 1;
  int steps = 0;
  while (size < cumulative.size()) {
    size *= 2;
    ++steps;
  }
  std::size_t first = 0;
  for (; steps > 0; --steps) {
    size /= 2;
    const std::size_t probe = std::min(first + size - 1, cumulative.size() - 1);
    if (!(threshold < cumulative[probe])) first = std::min(first + size, cumulative.size() - 1);
  }
  return first;
}

/// Adds each drawn row, no multiplication; weights are counts.
void gathered_rows(const StepView& view, const std::vector<std::int64_t>& drawn, OracleHead& head) {
  enter(Phase::kValue);
  std::vector<Counted> output(static_cast<std::size_t>(view.v.dim));
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    head.weights[drawn[i]] += 1;
    for (int c = 0; c < view.v.dim; ++c) {
      const Counted value(element(view.v, drawn[i], c));
      Counted& out = output[static_cast<std::size_t>(c)];
      out = i == 0 ? value : out + value;
    }
  }
  for (const Counted out : output) head.output.push_back(out.value());
}

/// The same, with 1/S at the end.
void gathered_output(const StepView& view, const std::vector<std::int64_t>& drawn,
                     std::uint32_t samples, OracleHead& head) {
  gathered_rows(view, drawn, head);
  enter(Phase::kMerge);
  const bool power_of_two = (samples & (samples - 1)) == 0;
  for (double& out : head.output) {
    const Counted scaled = power_of_two ? Counted::shift(Counted(out), 1.0 / samples)
                                        : Counted(out) * Counted(1.0 / samples);
    out = scaled.value();
  }
}

/// Thresholds in units of the head's unnormalised mass.
std::vector<Counted> thresholds(const StepView& view, int g, Sampler sampler, std::uint32_t samples,
                                Counted total) {
  enter(Phase::kSelect);
  const RandomStream random = view.random_of(g, Purpose::kSampleOffset);
  const double stratum = total.value() / samples;
  std::vector<Counted> result;
  Counted offset;
  for (std::uint32_t m = 0; m < samples; ++m) {
    if (sampler == Sampler::kIid) {
      result.push_back(Counted(uniform24(random, m)) * total);
      continue;
    }
    if (sampler == Sampler::kStrat || m == 0) {
      offset = Counted(uniform24(random, m)) * Counted(stratum);
    }
    result.push_back(offset + Counted(m * stratum));
  }
  return result;
}

/// A bitonic network: the order of `keys`, descending, with a fixed number of compares.
std::vector<std::size_t> descending_order(const std::vector<double>& keys) {
  std::size_t slots = 1;
  while (slots < keys.size()) slots *= 2;
  std::vector<std::size_t> order(slots);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto key = [&](std::size_t i) { return i < keys.size() ? keys[i] : -1.0; };
  for (std::size_t k = 2; k <= slots; k *= 2) {
    for (std::size_t j = k / 2; j > 0; j /= 2) {
      for (std::size_t i = 0; i < slots; ++i) {
        const std::size_t partner = i ^ j;
        if (partner <= i) continue;
        OpTally::note(Op::kCompare);
        const bool greater = key(order[i]) > key(order[partner]) ||
                             (key(order[i]) == key(order[partner]) && order[i] < order[partner]);
        if (greater == ((i & k) != 0)) std::swap(order[i], order[partner]);
      }
    }
  }
  return order;
}

std::vector<std::uint32_t> paper_budgets(std::uint32_t samples, const std::vector<Counted>& masses,
                                         double total) {
  enter(Phase::kSelect);
  std::vector<std::uint32_t> budgets(masses.size());
  std::vector<double> remainders(masses.size());
  std::uint32_t dealt = 0;
  for (std::size_t t = 0; t < masses.size(); ++t) {
    const double share = (masses[t] * Counted(samples / total)).value();
    budgets[t] = static_cast<std::uint32_t>(share);
    remainders[t] = share - budgets[t];
    dealt += budgets[t];
  }
  const std::vector<std::size_t> order = descending_order(remainders);
  for (std::size_t i = 0; i < samples - dealt; ++i) ++budgets[order[i]];
  return budgets;
}

/// Systematic sampling over tiles, `ends` being the mass up to the end of each.
std::vector<std::uint32_t> unbiased_budgets(const StepView& view, int g, std::uint32_t samples,
                                            const std::vector<Counted>& ends) {
  enter(Phase::kSelect);
  std::vector<std::uint32_t> budgets(ends.size());
  const double stratum = ends.back().value() / samples;
  const Counted offset =
      Counted(uniform24(view.random_of(g, Purpose::kBudgetOffset), 0)) * Counted(stratum);
  for (std::uint32_t m = 0; m < samples; ++m)
    ++budgets[search(ends, offset + Counted(m * stratum))];
  return budgets;
}

/// `samples` rows of a tile that begins at row `begin`, `cumulative` being masses within it.
std::vector<std::int64_t> draw_in_tile(const std::vector<Counted>& cumulative, std::size_t begin,
                                       std::size_t width, std::uint64_t samples, double u) {
  enter(Phase::kSelect);
  std::vector<Counted> inside = cumulative;
  inside.resize(width, Counted(1e300));  // pads: a search always takes log2(tile)
  const double stratum = cumulative.back().value() / static_cast<double>(samples);
  const Counted offset = Counted(u) * Counted(stratum);
  std::vector<std::int64_t> rows;
  for (std::uint64_t m = 0; m < samples; ++m) {
    const Counted threshold = offset + Counted(static_cast<double>(m) * stratum);
    const std::size_t row = std::min(search(inside, threshold), cumulative.size() - 1);
    rows.push_back(static_cast<std::int64_t>(begin + row));
  }
  return rows;
}

/// A tile that drew rows without knowing what it weighs.
struct DrawnTile {
  std::vector<std::int64_t> rows;
  double highest = 0;
  Counted mass;  // in units of e^highest
};

/// Sums of tiles' rows, weighed by the tiles' masses.
void weighed_output(const StepView& view, const std::vector<DrawnTile>& tiles, OracleHead& head) {
  std::vector<Counted> maxima;
  for (const DrawnTile& tile : tiles) maxima.push_back(Counted(tile.highest));
  enter(Phase::kMerge);
  const Counted highest = largest(maxima);
  std::vector<Counted> total(static_cast<std::size_t>(view.v.dim));
  Counted mass;
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    OracleHead own;
    gathered_rows(view, tiles[t].rows, own);
    enter(Phase::kMerge);
    const Counted tile_mass = tiles[t].mass * Counted::exp(maxima[t] - highest);
    const Counted weight = tile_mass * Counted(1.0 / static_cast<double>(tiles[t].rows.size()));
    mass = t == 0 ? tile_mass : mass + tile_mass;
    for (std::size_t c = 0; c < total.size(); ++c) {
      const Counted product = Counted(own.output[c]) * weight;
      total[c] = t == 0 ? product : total[c] + product;
    }
    for (const auto& [row, count] : own.weights) head.weights[row] = count * weight.value();
  }
  const Counted inverse = Counted::reciprocal(mass);
  for (auto& [row, weight] : head.weights) weight *= inverse.value();
  for (const Counted sum : total) head.output.push_back((sum * inverse).value());
}

}  // namespace

std::vector<double> oracle_scores(const StepView& view, int g, const ScoreRule& rule) {
  const OpTally saved = OpTally::current();
  std::vector<double> result;
  for (const Counted s : scores(view, g, rule)) result.push_back(s.value());
  OpTally::current() = saved;
  return result;
}

OracleHead oracle_dense(const StepView& view, int g, const ScoreRule& rule) {
  return softmax_head(view, scores(view, g, rule), all_rows(view));
}

OracleHead oracle_topk(const StepView& view, int g, std::int64_t keys) {
  const std::vector<Counted> all = scores(view, g);
  enter(Phase::kSelect);  // radix select: each of 4 passes looks at every key once
  OpTally::note(Op::kCompare, 4.0 * static_cast<double>(all.size()));
  OpTally::note(Op::kAdd, 4.0 * static_cast<double>(all.size()));
  std::vector<std::int64_t> rows = all_rows(view);
  std::stable_sort(rows.begin(), rows.end(), [&](std::int64_t a, std::int64_t b) {
    return all[static_cast<std::size_t>(a)].value() > all[static_cast<std::size_t>(b)].value();
  });
  rows.resize(static_cast<std::size_t>(std::min(keys, view.rows())));
  std::vector<Counted> kept;
  for (const std::int64_t row : rows) kept.push_back(all[static_cast<std::size_t>(row)]);
  return softmax_head(view, kept, rows);
}

OracleHead oracle_santa(const StepView& view, int g, Sampler sampler, std::uint32_t samples,
                        const ScoreRule& rule) {
  const std::vector<Counted> cumulative = prefix_sums(exponentials(scores(view, g, rule)));
  std::vector<std::int64_t> drawn;
  for (const Counted threshold : thresholds(view, g, sampler, samples, cumulative.back())) {
    drawn.push_back(static_cast<std::int64_t>(search(cumulative, threshold)));
  }
  OracleHead head;
  gathered_output(view, drawn, samples, head);
  return head;
}

OracleHead oracle_prop(const StepView& view, int g, PropRule rule, std::uint32_t samples, int tile,
                       const ScoreRule& scoring) {
  const std::vector<Counted> cumulative = prefix_sums(exponentials(scores(view, g, scoring)));
  const auto width = static_cast<std::size_t>(tile);
  std::vector<Counted> masses;
  std::vector<Counted> ends;
  std::vector<double> before;  // mass before each tile
  for (std::size_t begin = 0; begin < cumulative.size(); begin += width) {
    const std::size_t last = std::min(begin + width, cumulative.size()) - 1;
    before.push_back(begin == 0 ? 0.0 : cumulative[begin - 1].value());
    masses.push_back(Counted(cumulative[last].value() - before.back()));
    ends.push_back(cumulative[last]);
  }
  const std::vector<std::uint32_t> budgets =
      rule == PropRule::kPaper ? paper_budgets(samples, masses, cumulative.back().value())
                               : unbiased_budgets(view, g, samples, ends);
  enter(Phase::kSelect);
  const double u = uniform24(view.random_of(g, Purpose::kSampleOffset), 0);
  std::vector<std::int64_t> drawn;
  for (std::size_t t = 0; t < masses.size(); ++t) {
    if (budgets[t] == 0) continue;
    const std::size_t begin = t * width;
    std::vector<Counted> inside;
    for (std::size_t i = begin; i < std::min(begin + width, cumulative.size()); ++i) {
      inside.push_back(Counted(cumulative[i].value() - before[t]));
    }
    const std::vector<std::int64_t> rows = draw_in_tile(inside, begin, width, budgets[t], u);
    drawn.insert(drawn.end(), rows.begin(), rows.end());
  }
  OracleHead head;
  gathered_output(view, drawn, samples, head);
  return head;
}

OracleHead oracle_flash(const StepView& view, int g, std::uint32_t samples, int tile) {
  const std::vector<Counted> all = scores(view, g);
  const auto width = static_cast<std::size_t>(tile);
  const std::size_t tiles = (all.size() + width - 1) / width;
  std::vector<DrawnTile> drawn(tiles);
  enter(Phase::kSelect);
  const double u = uniform24(view.random_of(g, Purpose::kSampleOffset), 0);
  for (std::size_t t = 0; t < tiles; ++t) {
    const std::size_t begin = t * width;
    const std::size_t end = std::min(begin + width, all.size());
    const std::vector<Counted> own(all.begin() + static_cast<std::ptrdiff_t>(begin),
                                   all.begin() + static_cast<std::ptrdiff_t>(end));
    const std::vector<Counted> cumulative = prefix_sums(exponentials(own));
    const std::uint64_t budget = (t + 1) * samples / tiles - t * samples / tiles;
    drawn[t].highest = std::max_element(own.begin(), own.end(), [](Counted a, Counted b) {
                         return a.value() < b.value();
                       })->value();
    drawn[t].mass = cumulative.back();
    drawn[t].rows = draw_in_tile(cumulative, begin, width, std::max<std::uint64_t>(budget, 1), u);
  }
  OracleHead head;
  weighed_output(view, drawn, head);
  return head;
}

}  // namespace kvsim::testing
