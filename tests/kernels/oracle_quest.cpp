// Quest from its definition and its released code.

#include <algorithm>
#include <limits>
#include <set>

#include "tests/kernels/oracle_parts.h"

namespace kvsim::testing {
namespace {

/// Per coordinate the largest and smallest element of a page's keys; the last page's take in the
/// current token, once for the group.
struct Box {
  std::vector<Counted> high, low;
};

Box box_of(const StepView& view, std::int64_t begin, std::int64_t end, bool counts) {
  enter(Phase::kSelect);
  Box box;
  for (int c = 0; c < view.k.dim; ++c) {
    double high = -std::numeric_limits<double>::max();
    double low = std::numeric_limits<double>::max();
    for (std::int64_t row = begin; row < end; ++row) {
      high = std::max(high, element(view.k, row, c));
      low = std::min(low, element(view.k, row, c));
    }
    if (counts) OpTally::note(Op::kCompare, 2);
    box.high.emplace_back(high);
    box.low.emplace_back(low);
  }
  return box;
}

Counted page_score(const StepView& view, int g, const Box& box) {
  enter(Phase::kSelect);
  Counted sum;
  for (std::size_t c = 0; c < box.high.size(); ++c) {
    const Counted q(view.query(g)[c]);
    const Counted a = q * box.high[c];
    const Counted b = q * box.low[c];
    const Counted larger = a < b ? b : a;
    sum = c == 0 ? larger : sum + larger;
  }
  return sum;
}

/// The best `kept` of the first `scored` pages, and all pages after these.
std::set<std::int64_t> taken_pages(const StepView& view, int g, const QuestRule& rule,
                                   std::int64_t pages) {
  std::int64_t scored = pages;
  std::int64_t kept = std::max<std::int64_t>(3, std::min(rule.tokens, view.rows()) / rule.page);
  if (rule.last_always) {
    scored = pages - 1;
    kept = rule.tokens / rule.page - 1;
  }
  std::vector<std::pair<double, std::int64_t>> order;  // ascending, ties to the lower page
  for (std::int64_t page = 0; page < pages; ++page) {
    const std::int64_t end = std::min((page + 1) * rule.page, view.rows());
    const Box box = box_of(view, page * rule.page, end, g == 0 && page + 1 == pages);
    if (page < scored && kept < scored) {
      order.emplace_back(-page_score(view, g, box).value(), page);
    }
  }
  std::set<std::int64_t> taken;
  for (std::int64_t page = order.empty() ? 0 : scored; page < pages; ++page) taken.insert(page);
  if (order.empty()) return taken;
  enter(Phase::kSelect);  // radix select: each of 4 passes looks at every score once
  OpTally::note(Op::kCompare, 4.0 * static_cast<double>(scored));
  OpTally::note(Op::kAdd, 4.0 * static_cast<double>(scored));
  std::sort(order.begin(), order.end());
  for (std::int64_t i = 0; i < kept; ++i) taken.insert(order[static_cast<std::size_t>(i)].second);
  return taken;
}

}  // namespace

OracleHead oracle_quest(const StepView& view, int g, const QuestRule& rule) {
  const std::int64_t pages = (view.rows() + rule.page - 1) / rule.page;
  const std::set<std::int64_t> taken = taken_pages(view, g, rule, pages);
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < view.rows(); ++row) {
    if (taken.contains(row / rule.page)) rows.push_back(row);
  }
  return softmax_head(view, exact_row_scores(view, g, rows), rows);
}

}  // namespace kvsim::testing
