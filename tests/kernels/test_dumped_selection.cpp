// What the timing harness makes of a kernel's dumped scores and counts, without a GPU: dumps come
// from the CPU's own rule.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/bernoulli/drawn_query.h"
#include "kernels/measure/selection.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

using testing::Approx;

DeviceStep small_step() {
  DeviceStep step;
  step.batch = 2;
  step.q_heads = 4;
  step.kv_heads = 2;
  step.head_dim = 64;
  step.contexts = {700, 129};
  step.prompt_tokens = 700;
  step.random = {.seed = 5, .step = 2};
  step.dump_stride = 700;
  return step;
}

std::vector<float> some_scores(const DeviceStep& step) {
  std::vector<float> scores(static_cast<std::size_t>(step.batch * step.q_heads * step.dump_stride));
  const RandomStream random{.seed = 1, .purpose = Purpose::kSynthetic};
  for (std::size_t i = 0; i < scores.size(); ++i) {
    scores[i] = static_cast<float>(random.word(static_cast<std::uint32_t>(i)) >> 20) * 0x1p-9f;
  }
  return scores;
}

/// Counts as a right kernel would dump them: weights times draws.
std::vector<std::uint32_t> right_counts(const DumpedSelection& selection, double samples) {
  std::vector<std::uint32_t> counts;
  for (const double weight : selection.weights) {
    counts.push_back(static_cast<std::uint32_t>(weight * samples + 0.5));
  }
  return counts;
}

TEST_CASE("dumped selection: counts of the rule differ in nothing, others are found") {
  const DeviceStep step = small_step();
  const std::vector<float> scores = some_scores(step);
  const NamedMethod method = make_method("santa-sys:samples=32");
  const std::vector<std::uint32_t> none(scores.size(), 0);
  const DumpedSelection selection = select_from_dump(*method.method, step, {scores, none});
  CHECK(selection.differences == 0);
  CHECK(std::accumulate(selection.weights.begin(), selection.weights.end(), 0.0) == Approx(8));
  CHECK(selection.statistics.k_rows == 2 * (700 + 129));
  CHECK(selection.statistics.draws == 32 * 8);

  std::vector<std::uint32_t> counts = right_counts(selection, 32);
  CHECK(select_from_dump(*method.method, step, {scores, counts}).differences == 0);
  counts[3] += 1;
  counts[static_cast<std::size_t>(5 * step.dump_stride)] += 2;
  CHECK(select_from_dump(*method.method, step, {scores, counts}).differences == 2);
}

TEST_CASE("dumped selection: rows that weigh unequally count once") {
  const DeviceStep step = small_step();
  const std::vector<float> scores = some_scores(step);
  const NamedMethod method = make_method("topk:keys=20");
  std::vector<std::uint32_t> counts(scores.size(), 0);
  const DumpedSelection selection = select_from_dump(*method.method, step, {scores, counts});
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = selection.weights[i] > 0 ? 1 : 0;
  CHECK(select_from_dump(*method.method, step, {scores, counts}).differences == 0);
  *std::find(counts.begin(), counts.end(), 1u) = 0;
  CHECK(select_from_dump(*method.method, step, {scores, counts}).differences == 1);
}

TEST_CASE("dumped selection: blocks that the kernel's bounds do not let pass are found") {
  const DeviceStep step = small_step();
  std::vector<float> scores = some_scores(step);
  const NamedMethod method = make_method("eta:block=16,gate=none");
  const std::int64_t blocks = 700 / 16;
  std::vector<float> bounds(static_cast<std::size_t>(step.batch * step.q_heads * blocks));
  for (std::size_t i = 0; i < bounds.size(); ++i) bounds[i] = scores[i];
  const std::vector<float> thresholds(8, 6);
  const auto differences = [&](const std::vector<std::uint32_t>& counts) {
    const ScreeningDump screening{bounds, thresholds, 16, blocks};
    return select_from_dump(*method.method, step, {scores, counts, {}, screening});
  };
  std::vector<std::uint32_t> counts(scores.size(), 0);
  const DumpedSelection right = differences(counts);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    counts[i] = right.weights[i] > 0 ? 1 : 0;
    if (counts[i] == 0) scores[i] = NAN;  // a kernel has no others
  }
  CHECK(right.statistics.head_tiles < 8 * 20);
  CHECK(differences(counts).differences == 0);
  CHECK(differences(counts).weights == right.weights);
  // Block 3 of head 2 in the first sequence, as if it had passed, or had not.
  float& bound = bounds[static_cast<std::size_t>(2 * blocks + 3)];
  bound = bound >= 6 ? -100.0f : 100.0f;
  CHECK(differences(counts).differences == 16);
}

TEST_CASE("dumped selection: sequences and heads draw from streams of their own") {
  const DeviceStep step = small_step();
  const std::vector<float> scores(some_scores(step).size(), 0.0f);
  const NamedMethod method = make_method("santa-iid:samples=16");
  const std::vector<std::uint32_t> none(scores.size(), 0);
  const DumpedSelection selection = select_from_dump(*method.method, step, {scores, none});
  const auto head = [&](int index) {
    const auto begin = selection.weights.begin() + index * step.dump_stride;
    return std::vector<double>(begin, begin + 129);
  };
  CHECK(head(0) != head(1));
  CHECK(head(0) != head(2));
  CHECK(head(4) != head(5));
}

TEST_CASE("dumped selection: a sink takes its share of the output") {
  DeviceStep step = small_step();
  const std::vector<float> scores = some_scores(step);
  const NamedMethod method = make_method("santa-sys:samples=32");
  const std::vector<std::uint32_t> none(scores.size(), 0);
  const std::vector<float> sinks{-100, 100, -100, 100};
  const DumpedSelection selection = select_from_dump(*method.method, step, {scores, none}, {sinks});
  for (int head = 0; head < step.q_heads; ++head) {
    const auto begin = selection.weights.begin() + head * step.dump_stride;
    CHECK(std::accumulate(begin, begin + 700, 0.0) == Approx(head % 2 == 0 ? 1 : 0).margin(1e-6));
  }
}

TEST_CASE("dumped selection: the first row that differs is named") {
  HeadSelection head;
  head.v_rows.append(2, 4);
  head.counts = {3, 1};
  CHECK(!first_difference(head, std::vector<std::uint32_t>{0, 0, 3, 1, 0}));
  const auto wrong = first_difference(head, std::vector<std::uint32_t>{0, 0, 3, 2, 1});
  REQUIRE(wrong);
  CHECK(wrong->row == 3);
  CHECK(wrong->dumped == 2);
  CHECK(wrong->expected == 1);
  CHECK(first_difference(head, std::vector<std::uint32_t>{0, 0, 3, 1, 1})->row == 4);
}

TEST_CASE("dumped selection: drawn features are compared, and what they leave of K is counted") {
  const DeviceStep step = small_step();
  const std::vector<float> scores = some_scores(step);
  const std::vector<std::uint32_t> none(scores.size(), 0);
  const NamedMethod method = make_method("santa-sys:samples=8,scores=bernoulli,draws=1");
  std::vector<float> queries(static_cast<std::size_t>(step.batch * step.q_heads * step.head_dim));
  for (std::size_t i = 0; i < queries.size(); ++i) {
    queries[i] = std::sin(static_cast<float>(i + 1));
  }
  const HostInputs inputs{.queries = queries};
  std::vector<std::uint32_t> features;  // as a right kernel would dump them
  double elements = 0;
  for (int b = 0; b < step.batch; ++b) {
    for (int h = 0; h < step.kv_heads; ++h) {
      const StepView view = view_of_group(step, inputs, b, h);
      CHECK(view.layer_queries.rows == step.q_heads);
      const int first_head = h * step.group();
      CHECK(view.layer_queries.row(first_head) == std::as_bytes(view.queries).data());
      std::vector<bool> read(64, false);
      for (const DrawnQuery& drawn : draw_queries(view, {.draws = 1})) {
        for (std::size_t i = 0; i < 64; ++i) {
          features.push_back(static_cast<std::uint32_t>(std::fabs(drawn.weights[i])));
          read[i] = read[i] || drawn.weights[i] != 0;
        }
      }
      elements += static_cast<double>(view.rows() * std::count(read.begin(), read.end(), true));
    }
  }
  const DumpedSelection right =
      select_from_dump(*method.method, step, {scores, none, features}, inputs);
  CHECK(right.differences == 0);
  CHECK(right.key_elements == elements);
  CHECK(elements < 64.0 * 2 * (700 + 129));     // some are left out
  std::vector<std::uint32_t> wrong = features;  // one feature of the same set, another count
  ++*std::find(wrong.begin(), wrong.end(), 1u);
  CHECK(select_from_dump(*method.method, step, {scores, none, wrong}, inputs).differences == 1);
  ++features[64 * 5 + 3];
  features[64 * 6 + 1] ^= 1;
  CHECK(select_from_dump(*method.method, step, {scores, none, features}, inputs).differences == 2);
}

TEST_CASE("dumped selection: a head that reads all rows and draws none need not dump counts") {
  HeadSelection head;
  head.v_rows = RowRanges::all(3);
  CHECK(!first_difference(head, std::vector<std::uint32_t>{0, 0, 0}));
  CHECK(first_difference(head, std::vector<std::uint32_t>{1, 0, 1})->row == 1);
}

}  // namespace
}  // namespace kvsim
