// Elastic Threshold Attention from its formulas, thresholds as for a union.

#include <algorithm>
#include <cmath>
#include <set>

#include "tests/kernels/oracle_parts.h"

namespace kvsim::testing {
namespace {

/// To the nearest float16, ties to even; large values do not occur.
double to_half(double x) {
  int exponent = 0;
  std::frexp(x, &exponent);
  const int bits = std::min(11 - exponent, 24);
  return std::ldexp(std::nearbyint(std::ldexp(x, bits)), -bits);
}

struct Record {
  std::vector<double> centroid;
  std::vector<double> spread;
  double norm = 0;
};

double mean_square(const StepView& view, std::int64_t begin, std::int64_t end, int c, double mean) {
  double sum = 0;
  for (std::int64_t row = begin; row < end; ++row)
    sum += std::pow(element(view.k, row, c) - mean, 2);
  return sum / static_cast<double>(end - begin);
}

Record record_of(const StepView& view, std::int64_t block, const EtaRule& rule) {
  const std::int64_t begin = block * rule.block;
  const std::int64_t end = begin + rule.block;
  Record record;
  for (int c = 0; c < view.k.dim; ++c) {
    double mean = 0;
    for (std::int64_t row = begin; row < end; ++row) mean += element(view.k, row, c) / rule.block;
    const std::int64_t part = rule.envelope ? std::min(4, rule.block) : rule.block;
    double square = 0;
    for (std::int64_t row = begin; row < end; row += part) {
      square = std::max(square, mean_square(view, row, row + part, c, mean));
    }
    record.centroid.push_back(to_half(mean));
    record.spread.push_back(to_half(std::sqrt(square)));
  }
  for (std::int64_t row = begin; row < end; ++row) {
    double square = 0;
    for (int c = 0; c < view.k.dim; ++c) square += std::pow(element(view.k, row, c), 2);
    record.norm = std::max(record.norm, std::sqrt(square));
  }
  return record;
}

Counted root(Counted a) {  // counts as an exponential
  OpTally::note(Op::kExp);
  return Counted(std::sqrt(a.value()));
}

Counted dot(const std::vector<Counted>& a, const std::vector<double>& b) {
  Counted sum = a[0] * Counted(b[0]);
  for (std::size_t i = 1; i < a.size(); ++i) sum = sum + a[i] * Counted(b[i]);
  return sum;
}

std::vector<Counted> bounds_of(const StepView& view, int g, const EtaRule& rule) {
  if (rule.block == 1) return exact_row_scores(view, g, all_rows(view));
  enter(Phase::kSelect);
  std::vector<Counted> query;
  std::vector<Counted> squares;
  for (const float q : view.query(g)) {
    query.emplace_back(q);
    squares.push_back(query.back() * query.back());
  }
  Counted sum = squares[0];
  for (std::size_t i = 1; i < squares.size(); ++i) sum = sum + squares[i];
  const Counted norm = root(sum);
  std::vector<Counted> bounds;
  for (std::int64_t j = 0; j < view.rows() / rule.block; ++j) {
    const Record record = record_of(view, j, rule);
    std::vector<double> variance;
    for (const double s : record.spread) variance.push_back(s * s);
    if (g == 0) OpTally::note(Op::kMultiply, view.k.dim);  // the squares serve the group
    const Counted spread =
        dot(query, record.centroid) + Counted(rule.z) * root(dot(squares, variance));
    const Counted sphere = norm * Counted(record.norm);
    bounds.push_back(Counted(view.scale) * (spread < sphere ? spread : sphere));
  }
  return bounds;
}

/// The head's threshold, between its m-th best block and the next: of the least m for which the
/// heads' m best blocks have a union as asked.
double union_threshold(const StepView& view, int g, const EtaRule& rule) {
  const OpTally saved = OpTally::current();
  std::vector<std::vector<std::pair<double, std::int64_t>>> best;  // by bound, then by block
  for (int head = 0; head < view.group; ++head) {
    auto& own = best.emplace_back();
    const std::vector<Counted> bounds = bounds_of(view, head, rule);
    for (std::size_t j = 0; j < bounds.size(); ++j) {
      own.emplace_back(-bounds[j].value(), static_cast<std::int64_t>(j));
    }
    std::sort(own.begin(), own.end());
  }
  OpTally::current() = saved;
  std::set<std::int64_t> taken;
  const std::vector<std::pair<double, std::int64_t>>& own = best[static_cast<std::size_t>(g)];
  for (std::size_t m = 0; m < own.size(); ++m) {
    for (const auto& head : best) taken.insert(head[m].second);
    if (static_cast<double>(taken.size()) >= rule.density * static_cast<double>(own.size())) {
      return -(own[m].first + own[std::min(m + 1, own.size() - 1)].first) / 2;
    }
  }
  return -1e300;
}

std::vector<std::int64_t> attended_rows(const StepView& view, const std::vector<Counted>& bounds,
                                        double threshold, const EtaRule& rule) {
  enter(Phase::kSelect);
  const auto full = static_cast<std::int64_t>(bounds.size());
  std::set<std::int64_t> blocks;
  Counted highest(-1e308);
  std::int64_t best = -1;
  bool empty = true;
  // A pinned block in chunk 1 would do instead.
  const bool rescues =
      rule.rescue && std::min<std::int64_t>(rule.chunk, full) + rule.pinned <= full;
  for (std::int64_t j = 0; j < full; ++j) {
    const Counted bound = bounds[static_cast<std::size_t>(j)];
    if (!(bound < Counted(threshold)) || j + rule.pinned >= full) blocks.insert(j);
    if (!rescues || j >= rule.chunk) continue;
    empty = empty && !blocks.contains(j);
    if (highest < bound) {
      highest = bound;
      best = j;
    }
  }
  if (best >= 0 && empty) blocks.insert(best);
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < view.rows(); ++row) {
    const std::int64_t block = row / rule.block;
    if (block >= full || blocks.contains(block)) rows.push_back(row);
  }
  return rows;
}

Counted gated(Counted score, double threshold, const EtaRule& rule) {
  if (rule.gate == EtaGate::kNone) return score;
  const Counted slope = Counted(5) * (score - Counted(threshold));
  const Counted open = Counted::reciprocal(Counted(1) + Counted::exp(Counted(-slope.value())));
  return rule.gate == EtaGate::kMultiplicative ? score * open
                                               : score + Counted(100) * open - Counted(100);
}

}  // namespace

OracleHead oracle_eta(const StepView& view, int g, const EtaRule& rule) {
  const double threshold = union_threshold(view, g, rule) - rule.shift;
  const std::vector<Counted> bounds = bounds_of(view, g, rule);
  const std::vector<std::int64_t> rows = attended_rows(view, bounds, threshold, rule);
  std::vector<Counted> scores;
  if (rule.block > 1) {
    scores = exact_row_scores(view, g, rows);
  } else {
    for (const std::int64_t row : rows) scores.push_back(bounds[static_cast<std::size_t>(row)]);
  }
  enter(Phase::kSoftmax);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Counted open = gated(scores[i], threshold, rule);
    if (rows[i] + 1 < view.rows()) scores[i] = open;  // the current token bypasses the gate
  }
  return softmax_head(view, scores, rows);
}

}  // namespace kvsim::testing
