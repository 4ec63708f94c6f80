// Which pages Quest takes: budgets of both rules, what a page's score promises, ties, growing
// caches.

#include <algorithm>
#include <numeric>
#include <set>

#include "kernels/attention.h"
#include "kernels/quest/pages.h"
#include "kernels/quest/rule.h"
#include "tests/catch.h"
#include "tests/kernels/random_step.h"

namespace kvsim::testing {
namespace {

using quest::best_pages;
using quest::Mode;
using quest::PagePlan;
using quest::PageRecords;
using quest::plan_pages;
using Pages = std::vector<std::int32_t>;

struct Counts {
  std::int64_t pages, scored, kept;
  friend bool operator==(const Counts&, const Counts&) = default;
};

Counts counts(std::int64_t rows, std::int64_t page, std::int64_t tokens, Mode mode) {
  const PagePlan plan = plan_pages(rows, {page, tokens, mode});
  return {plan.pages, plan.scored, plan.kept};
}

TEST_CASE("quest: the kernels' budget has the last page in it, which does not compete") {
  constexpr Mode kMode = Mode::kKernels;
  CHECK(counts(1, 16, 512, kMode) == Counts{1, 0, 0});
  CHECK(counts(512, 16, 512, kMode) == Counts{32, 0, 0});  // as many pages as the budget: all
  CHECK(counts(513, 16, 512, kMode) == Counts{33, 32, 31});
  CHECK(counts(528, 16, 512, kMode) == Counts{33, 32, 31});
  CHECK(counts(529, 16, 512, kMode) == Counts{34, 33, 31});
  CHECK(counts(32768, 16, 2048, kMode) == Counts{2048, 2047, 127});
  CHECK(counts(1000, 16, 527, kMode) == Counts{63, 62, 31});  // whole pages of the budget
  CHECK(counts(1000, 16, 32, kMode) == Counts{63, 62, 1});
  CHECK(counts(10, 1, 3, kMode) == Counts{10, 9, 2});
  const PagePlan plan = plan_pages(513, {16, 512, kMode});
  CHECK(plan.always() == 1);
  CHECK(plan.taken() == 32);
}

TEST_CASE("quest: the evaluation's last page competes, and three pages are the least") {
  constexpr Mode kMode = Mode::kEvaluation;
  CHECK(counts(1, 16, 512, kMode) == Counts{1, 0, 0});
  CHECK(counts(48, 16, 1, kMode) == Counts{3, 0, 0});
  CHECK(counts(49, 16, 1, kMode) == Counts{4, 4, 3});
  CHECK(counts(1000, 16, 63, kMode) == Counts{63, 63, 3});
  CHECK(counts(1000, 16, 64, kMode) == Counts{63, 63, 4});
  CHECK(counts(512, 16, 512, kMode) == Counts{32, 0, 0});
  CHECK(counts(513, 16, 512, kMode) == Counts{33, 33, 32});
  // A context below the budget: its tokens make 6 whole pages, of 7.
  CHECK(counts(100, 16, 512, kMode) == Counts{7, 7, 6});
  CHECK(counts(96, 16, 512, kMode) == Counts{6, 0, 0});
}

TEST_CASE("quest: a page's score is never below its keys' dot products, to the last bit") {
  std::int64_t keys = 0;
  std::int64_t below = 0;
  std::int64_t reached = 0;  // pages of one key are bounded by it: the test could fail
  for (const int dim : {8, 40, 64, 96, 128, 256}) {
    for (const std::int64_t page : {1, 2, 7, 16, 64}) {
      RandomStep step({.rows = 1003, .group = 4, .head_dim = dim, .peak = 3, .seed = 21});
      std::fill_n(step.queries.begin(), dim / 2, 0.0f);
      step.queries[1] = -0.0f;
      PageRecords records(page);
      records.extend(step.view.k);
      const std::vector<float> scores = records.scores(step.view, records.pages());
      const Scores exact = exact_scores(step.view);
      for (int g = 0; g < 4; ++g) {
        for (std::int64_t row = 0; row < 1003; ++row, ++keys) {
          const auto at = static_cast<std::size_t>(g * records.pages() + row / page);
          const float bound = step.view.scale * scores[at];
          const float score = exact.head(g)[static_cast<std::size_t>(row)];
          below += score > bound ? 1 : 0;
          reached += score == bound ? 1 : 0;
        }
      }
    }
  }
  CHECK(keys == 6 * 5 * 4 * 1003);
  CHECK(below == 0);
  CHECK(reached >= 6 * 4 * 1003);
}

TEST_CASE("quest: records are the extremes of a page's elements, a score their sum by definition") {
  const RandomStep step({.rows = 75, .group = 3, .head_dim = 40, .peak = 2, .seed = 22});
  PageRecords records(16);
  records.extend(step.view.k);
  REQUIRE(records.pages() == 5);
  CHECK(records.bytes() == 5 * 2 * 40 * 2);
  const std::vector<float> scores = records.scores(step.view, 5);
  for (std::int64_t page = 0; page < 5; ++page) {
    std::vector<double> sums(3, 0.0);
    for (int c = 0; c < 40; ++c) {
      std::set<float> elements;
      for (std::int64_t row = page * 16; row < std::min<std::int64_t>(75, page * 16 + 16); ++row) {
        elements.insert(bf16_to_float(step.keys[static_cast<std::size_t>(row * 40 + c)]));
      }
      const auto at = static_cast<std::size_t>(page * 64 + c);  // padded
      CHECK(records.largest()[at] == *elements.rbegin());
      CHECK(records.smallest()[at] == *elements.begin());
      for (int g = 0; g < 3; ++g) {
        const double q = step.view.query(g)[static_cast<std::size_t>(c)];
        sums[static_cast<std::size_t>(g)] +=
            std::max(q * *elements.rbegin(), q * *elements.begin());
      }
    }
    for (int g = 0; g < 3; ++g) {
      CHECK(scores[static_cast<std::size_t>(g * 5 + page)] ==
            Approx(sums[static_cast<std::size_t>(g)]).margin(1e-4));
    }
  }
}

TEST_CASE("quest: a cache that grows has the records of one read at once, bit for bit") {
  const RandomStep step({.rows = 131, .head_dim = 80, .seed = 4});
  for (const std::int64_t page : {1, 7, 16, 200}) {
    PageRecords whole(page);
    whole.extend(step.view.k);
    for (std::int64_t split = 0; split <= 131; split += 3) {
      PageRecords grown(page);
      grown.extend(step.view.k.slice(0, split));
      for (std::int64_t rows = split; rows <= 131; rows += split % 5 + 1) {
        grown.extend(step.view.k.slice(0, rows));
        REQUIRE(grown.tokens() == rows);
        REQUIRE(grown.bytes() == (rows + page - 1) / page * 320);
      }
      grown.extend(step.view.k);
      REQUIRE(std::ranges::equal(grown.largest(), whole.largest()));
      REQUIRE(std::ranges::equal(grown.smallest(), whole.smallest()));
    }
  }
}

TEST_CASE("quest: a state that grew step by step selects as one prepared at once") {
  for (const char* spec : {"quest:tokens=64", "quest:page=5,tokens=40,mode=evaluation"}) {
    const NamedMethod named = make_method(spec);
    const RandomStep step({.rows = 300, .group = 4, .peak = 3, .seed = 8});
    const CacheView all = as_prompt(step.view, step.view.rows());
    CacheView cache = all;
    cache.k = all.k.slice(0, 211);
    cache.v = all.v.slice(0, 211);
    const std::unique_ptr<State> grown = named.method->prepare(cache);
    for (std::int64_t rows = 212; rows <= 300; ++rows) {
      cache.k = all.k.slice(0, rows);
      cache.v = all.v.slice(0, rows);
      named.method->append(*grown, cache);
    }
    const Scores scores = exact_scores(step.view);
    const Selection a = named.method->select(step.view, scores, grown.get());
    const Selection b = select_with(*named.method, step.view);
    CHECK(a.statistics == b.statistics);
    for (std::size_t g = 0; g < 4; ++g) {
      CHECK(a.heads[g].v_rows == b.heads[g].v_rows);
      CHECK(a.heads[g].weights == b.heads[g].weights);
    }
  }
}

TEST_CASE("quest: ties go to the lower page") {
  CHECK(best_pages(std::vector<float>{2, 5, 2, 5, 2}, 3) == Pages{0, 1, 3});
  CHECK(best_pages(std::vector<float>{1, 1, 1, 1}, 2) == Pages{0, 1});
  CHECK(best_pages(std::vector<float>{0.0f, -0.0f, 0.0f}, 1) == Pages{0});
  CHECK(best_pages(std::vector<float>{-3, -1, -2}, 1) == Pages{1});
  CHECK(best_pages(std::vector<float>{3, 1, 2}, 0).empty());
  CHECK(best_pages({}, 0).empty());
  // Equal keys: the first pages, and the last where it is always taken.
  RandomStep step({.rows = 100, .group = 2, .seed = 3});
  for (std::size_t i = 64; i < step.keys.size(); ++i) step.keys[i] = step.keys[i - 64];
  const auto pages = [&](const std::string& spec) {
    return select_with(*make_method(spec).method, step.view).heads[0].drawn_tiles;
  };
  CHECK(pages("quest:tokens=48") == Pages{0, 1, 6});
  CHECK(pages("quest:tokens=48,mode=evaluation") == Pages{0, 1, 2});
}

TEST_CASE("quest: a partial last page gives its own rows only; no choice reads no records") {
  const RandomStep step({.rows = 85, .group = 3, .peak = 2, .seed = 6});  // 5 pages and 5 tokens
  const Selection chosen = select_with(*make_method("quest:tokens=48").method, step.view);
  for (const HeadSelection& head : chosen.heads) {
    CHECK(head.v_rows.size() == 2 * 16 + 5);
    CHECK(head.k_rows == head.v_rows);
    CHECK(head.v_rows.ranges().back().end == 85);
    CHECK(head.drawn_tiles.back() == 5);
  }
  CHECK(chosen.statistics.state_bytes_read == 5 * 4 * 64);
  CHECK(chosen.statistics.head_tiles == 9);

  const Selection whole = select_with(*make_method("quest:tokens=96").method, step.view);
  CHECK(whole.v_rows == RowRanges::all(85));
  CHECK(whole.statistics.state_bytes_read == 0);
  CHECK(whole.statistics.group_tiles == 6);
  // All tokens in the budget, and yet a page left out.
  const Selection evaluated =
      select_with(*make_method("quest:tokens=96,mode=evaluation").method, step.view);
  CHECK(evaluated.statistics.head_tiles == 15);
  CHECK(evaluated.statistics.state_bytes_read == 6 * 4 * 64);
}

TEST_CASE("quest: a window begins its pages anew") {
  const RandomStep step({.rows = 300, .group = 2, .peak = 2, .seed = 9});
  const NamedMethod named = make_method("quest:tokens=64");
  const std::unique_ptr<State> state =
      named.method->prepare(as_prompt(step.view, step.view.rows()));
  StepView window = step.view;
  window.k = step.view.k.slice(111, 300);
  window.v = step.view.v.slice(111, 300);
  const Scores scores = exact_scores(window);
  const Selection a = named.method->select(window, scores, state.get());
  const Selection b = named.method->select(window, scores, nullptr);
  CHECK(a.v_rows == b.v_rows);
  CHECK(a.statistics.state_bytes_read == 11 * 4 * 64);  // of 189 rows: 12 pages, the last is taken
}

TEST_CASE("quest: a budget without a page to choose is refused") {
  CHECK_THROWS_WITH(make_method("quest:tokens=31"),
                    "quest: tokens=31, expected at least two pages of 16 with mode=kernels");
  CHECK_NOTHROW(make_method("quest:tokens=32"));
  CHECK_NOTHROW(make_method("quest:tokens=1,mode=evaluation"));
}

}  // namespace
}  // namespace kvsim::testing
