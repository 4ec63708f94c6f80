// Launches and traffic of both implementations.

#include <algorithm>

#include "kernels/method.h"
#include "kernels/split_plan.h"
#include "tests/catch.h"

namespace kvsim::testing {
namespace {

constexpr DeviceLimits kLimits{
    .sms = 132, .shared_bytes_per_sm = 233472, .l2_bytes = 50 << 20, .threads_per_sm = 2048};

Work work_of(const std::string& spec, const std::vector<std::int64_t>& contexts, int kv_heads = 8) {
  const NamedMethod named = make_method(spec);
  const Shape shape{.contexts = contexts,
                    .q_heads = 32,
                    .kv_heads = kv_heads,
                    .head_dim = 128,
                    .v_head_dim = 128};
  return named.method->implementation().work(shape, named.method->bounds(shape).high, kLimits);
}

std::vector<std::string> names(const Work& work) {
  std::vector<std::string> result;
  for (const Stage& stage : work.stages) result.emplace_back(stage.name);
  return result;
}

const Stage& stage(const Work& work, std::string_view name) {
  return *std::find_if(work.stages.begin(), work.stages.end(),
                       [&](const Stage& s) { return s.name == name; });
}

double bytes_of(const Stage& stage, Tensor tensor, Direction direction) {
  double bytes = 0;
  for (const Access& access : stage.accesses) {
    if (access.tensor == tensor && access.direction == direction) bytes += access.bytes();
  }
  return bytes;
}

using Names = std::vector<std::string>;

TEST_CASE("quest: published launches, and bytes between them") {
  // The released setting: a head each, 2048 pages, 128 of which a head takes.
  const Work work = work_of("quest:tokens=2048,implementation=published", {32768}, 32);
  REQUIRE(names(work) == Names{"append", "estimate", "top_k", "attend", "merge"});
  for (const Stage& s : work.stages) CHECK(s.before == Boundary::kKernelLaunch);
  CHECK(bytes_of(stage(work, "append"), Tensor::kMetadata, Direction::kWrite) == 32 * 512);

  const Stage& estimate = stage(work, "estimate");
  CHECK(estimate.launch.ctas == 32);
  CHECK(bytes_of(estimate, Tensor::kMetadata, Direction::kRead) == 2047 * 512 * 32);
  CHECK(bytes_of(estimate, Tensor::kStash, Direction::kWrite) == 2047 * 2 * 32);
  CHECK(estimate.load_rounds == 32);  // 32 pages at once, two such loads under way
  CHECK(estimate.load_warps == 4);

  const Stage& top_k = stage(work, "top_k");
  CHECK(bytes_of(top_k, Tensor::kStash, Direction::kRead) == 2047 * 2 * 32);
  CHECK(bytes_of(top_k, Tensor::kStash, Direction::kWrite) == 127 * 6 * 32);

  const Stage& attend = stage(work, "attend");
  CHECK(attend.launch.ctas == 32 * (16 + 1));  // chunks of 8 pages, and the last page
  CHECK(attend.launch.ctas_per_wave == 6 * 132);
  CHECK(attend.load_rounds == 2);
  CHECK(bytes_of(attend, Tensor::kStash, Direction::kRead) == 127 * 4 * 32);
  CHECK(bytes_of(attend, Tensor::kK, Direction::kRead) == 128 * 16 * 256 * 32);
  CHECK(bytes_of(attend, Tensor::kV, Direction::kRead) == 128 * 16 * 256 * 32);
  CHECK(bytes_of(attend, Tensor::kPartial, Direction::kWrite) == 32 * 17 * (256 + 4));
  CHECK(bytes_of(stage(work, "merge"), Tensor::kOutput, Direction::kWrite) == 32 * 256);
}

TEST_CASE("quest: with groups a head loads records of its own, memory delivers them once") {
  const Work work = work_of("quest:implementation=published", {32768});
  const Stage& estimate = stage(work, "estimate");
  CHECK(estimate.launch.ctas == 32);
  const auto records = std::find_if(estimate.accesses.begin(), estimate.accesses.end(),
                                    [](const Access& a) { return a.tensor == Tensor::kMetadata; });
  CHECK(records->rows == 2047 * 8);
  CHECK(records->requests == 2047 * 32);
}

TEST_CASE("quest: where all pages are taken nothing is estimated") {
  CHECK(names(work_of("quest:implementation=published", {512})) ==
        Names{"append", "attend", "merge"});
  CHECK(names(work_of("quest:implementation=published", {16})) == Names{"append", "attend"});
  CHECK(names(work_of("quest", {512}))[0] == "attend");
}

TEST_CASE("quest: one planned launch scores, exchanges scores, and attends") {
  const Work work = work_of("quest", {32768});
  REQUIRE(names(work) == Names{"score_pages", "select_attend", "merge"});
  CHECK(work.stages[0].before == Boundary::kKernelLaunch);
  CHECK(work.stages[1].before == Boundary::kTeamExchange);
  CHECK(work.stages[2].before == Boundary::kTeamExchange);
  // 128 units of 16 pages over 16 CTAs each.
  CHECK(work.stages[0].launch.ctas == 128);
  CHECK(bytes_of(work.stages[0], Tensor::kMetadata, Direction::kRead) == 2047 * 512 * 8);
  CHECK(bytes_of(work.stages[0], Tensor::kStash, Direction::kWrite) == 2047 * 8 * 32);
  const Stage& attend = work.stages[1];
  const auto scores = std::find_if(attend.accesses.begin(), attend.accesses.end(),
                                   [](const Access& a) { return a.tensor == Tensor::kStash; });
  CHECK(scores->requests == scores->rows * 16);  // each CTA of a team reads all
  CHECK(attend.cache_trips == 1);
  // At most no page twice: 1 + 4 * 31 of a team, a page more for some of the 128 CTAs.
  CHECK(attend.imbalance == Approx(8 * 128 / (8 * 125.0)));
  CHECK(bytes_of(attend, Tensor::kK, Direction::kRead) == 125 * 16 * 256 * 8);

  // Teams that do not share CTAs keep their scores.
  const Work many = work_of("quest", std::vector<std::int64_t>(33, 2048));
  REQUIRE(names(many) == Names{"score_pages", "select_attend"});
  CHECK(many.stages[1].boundaries == 0);
  CHECK(bytes_of(many.stages[0], Tensor::kStash, Direction::kWrite) == 0);
}

}  // namespace
}  // namespace kvsim::testing
