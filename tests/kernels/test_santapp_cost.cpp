// What a launch of SANTA++'s kernel does, and what a GPU would take to form teams.

#include <algorithm>
#include <cmath>

#include "kernels/method.h"
#include "kernels/split_plan.h"
#include "tests/catch.h"

namespace kvsim::testing {
namespace {

constexpr DeviceLimits kLimits{
    .sms = 132, .shared_bytes_per_sm = 233472, .l2_bytes = 50 << 20, .threads_per_sm = 2048};

Shape shape_of(const std::vector<std::int64_t>& contexts, std::int64_t prompt) {
  return {.contexts = contexts,
          .q_heads = 28,
          .kv_heads = 4,
          .head_dim = 128,
          .v_head_dim = 128,
          .prompt_tokens = prompt};
}

/// Of each of `groups`: teams of 4 keys, of which a head draws 31 and a group 100, and the suffix.
Statistics statistics_of(double groups, double teams, double suffix) {
  Statistics s;
  s.head_tiles = 31 * 7 * groups;
  s.group_tiles = 100 * groups;
  s.k_rows = s.v_rows = (100 * 4 + suffix) * groups;
  s.k_requests = s.v_requests = s.draws = (31 * 4 + suffix) * 7 * groups;
  s.routing_vectors = teams * groups;
  s.state_bytes_read = 260 * s.routing_vectors;
  return s;
}

Work work_of(const std::vector<std::int64_t>& contexts, std::int64_t prompt, const Statistics& s,
             const std::string& spec = "santapp:samples=124") {
  return make_method(spec).method->implementation().work(shape_of(contexts, prompt), s, kLimits);
}

std::vector<Access> accesses(const Stage& stage, Tensor tensor, Direction direction) {
  std::vector<Access> found;
  for (const Access& access : stage.accesses) {
    if (access.tensor == tensor && access.direction == direction) found.push_back(access);
  }
  return found;
}

double bytes_of(const Stage& stage, Tensor tensor, Direction direction) {
  double bytes = 0;
  for (const Access& access : accesses(stage, tensor, direction)) bytes += access.bytes();
  return bytes;
}

double ops_of(const Stage& stage, Op op, Phase phase) {
  double count = 0;
  for (const OpCount& item : stage.ops) {
    count += item.op == op && item.phase == phase ? item.count : 0;
  }
  return count;
}

TEST_CASE("santapp: a tile of 256 teams for each CTA, candidates told to all CTAs of a group") {
  const Work work = work_of({32772}, 32768, statistics_of(4, 8192, 4));
  REQUIRE(work.stages.size() == 3);
  const Stage& route = work.stages[0];
  CHECK(route.name == "route");
  CHECK(route.launch.ctas == 128);
  CHECK(route.launch.ctas_per_wave == 132);
  CHECK(route.imbalance == 1);
  CHECK(route.dependent_trips == 0);
  CHECK(route.load_rounds == 2);  // of a warp: 16 units, 8 warps
  CHECK(bytes_of(route, Tensor::kMetadata, Direction::kRead) == 4 * 8192 * 260);
  // 32 tiles name 8 candidates of each head.
  CHECK(bytes_of(route, Tensor::kStash, Direction::kWrite) == 28 * 256 * 8);
  const Stage& attend = work.stages[1];
  CHECK(attend.before == Boundary::kTeamExchange);
  CHECK(attend.boundaries == 1);
  const auto lists = accesses(attend, Tensor::kStash, Direction::kRead);
  REQUIRE(lists.size() == 1);
  CHECK(lists[0].requests == 32 * lists[0].rows);
  CHECK(attend.cache_trips == 3);  // 7 * 128 pairs by 256 threads; the exchange is the first
  for (const Tensor tensor : {Tensor::kK, Tensor::kV}) {
    const auto rows = accesses(attend, tensor, Direction::kRead);
    REQUIRE(rows.size() == 2);
    CHECK(rows[0].row_bytes == 4 * 256);  // a team
    CHECK(rows[0].rows == 400);
    CHECK(rows[1].row_bytes == 4 * 256);  // a suffix
    CHECK(rows[1].rows == Approx(4));
    CHECK(rows[0].requests * 4 + rows[1].requests * 4 == Approx((31 * 4 + 4) * 28));
  }
  CHECK(bytes_of(attend, Tensor::kPartial, Direction::kWrite) == 128 * 7 * 8 * (128 + 2));
  CHECK(work.stages[2].before == Boundary::kTeamExchange);
}

TEST_CASE("santapp: tiles are dealt out in whole units of 16 teams") {
  const Work work = work_of({40961}, 40960, statistics_of(4, 10240, 1));
  // 40 tiles are worth while, so 33 CTAs have two each; 66 tiles have up to 10 of 640 units.
  CHECK(work.stages[0].launch.ctas == 132);
  CHECK(work.stages[0].imbalance == Approx(20 * 33 / 640.0));
  CHECK(work.stages[0].load_rounds == 4);
}

TEST_CASE("santapp: a group with one CTA exchanges nothing") {
  const std::vector<std::int64_t> contexts(40, 2049);
  const Work work = work_of(contexts, 2048, statistics_of(160, 512, 1));
  REQUIRE(work.stages.size() == 2);
  CHECK(work.stages[0].launch.ctas == 160);  // two waves
  CHECK(work.stages[1].boundaries == 0);
  const auto lists = accesses(work.stages[1], Tensor::kStash, Direction::kRead);
  REQUIRE(lists.size() == 1);
  CHECK(lists[0].requests == lists[0].rows);
  CHECK(bytes_of(work.stages[1], Tensor::kOutput, Direction::kWrite) == 40 * 28 * 256);
}

TEST_CASE("santapp: what does not fit shared memory is kept in global memory") {
  const std::vector<std::int64_t> contexts(33, 131073);
  const Statistics s = statistics_of(132, 32768, 1);
  const Work work = work_of(contexts, 131072, s);
  // 128 tiles of a CTA, of 256 teams: 10 words for a group of 7.
  const double teams = 132.0 * 128 * 256;
  const double lists = 8 * 128 * 8 * 7.0 * 132;
  CHECK(bytes_of(work.stages[0], Tensor::kStash, Direction::kWrite) == teams * 40 + lists);
  CHECK(bytes_of(work.stages[0], Tensor::kStash, Direction::kRead) == teams * 28);
  CHECK(bytes_of(work.stages[1], Tensor::kStash, Direction::kRead) == teams * 40 + lists);
}

TEST_CASE("santapp: where all teams are drawn, CTAs neither name nor wait") {
  Statistics s = statistics_of(4, 512, 2);
  s.head_tiles = 512 * 28;
  s.group_tiles = 512 * 4;
  s.k_rows = s.v_rows = 2050 * 4;
  const Work work = work_of({2050}, 2048, s, "santapp:samples=1000000");
  CHECK(work.stages[1].boundaries == 0);
  CHECK(bytes_of(work.stages[0], Tensor::kStash, Direction::kWrite) == 0);
  CHECK(accesses(work.stages[1], Tensor::kK, Direction::kRead)[0].row_bytes == 2048 * 256);
}

Preparation preparation_of(const std::string& spec, const std::vector<std::int64_t>& contexts) {
  const Shape shape = shape_of(contexts, 0);
  return make_method(spec).method->implementation().preparation(shape, kLimits).value();
}

TEST_CASE("santapp: products of k-means, leaders and packing are counted") {
  const Preparation made = preparation_of("santapp", {32768});
  REQUIRE(made.usual.stages.size() == 5);
  const Stage& seed = made.usual.stages[0];
  const double centres = 2048;
  CHECK(seed.boundaries == 2 * centres);
  // 2 + 7 candidates each, of 3 * 4096 points.
  CHECK(ops_of(seed, Op::kMultiply, Phase::kScore) == 4 * centres * 9 * 12288 * 128);
  const double batches[] = {12, 13 * 8, 100 * 8};
  const Work* works[] = {&made.least, &made.usual, &made.most};
  for (int i = 0; i < 3; ++i) {
    const Stage& cluster = works[i]->stages[1];
    CHECK(cluster.boundaries == 2 * batches[i]);
    CHECK(ops_of(cluster, Op::kMultiply, Phase::kScore) == 4 * batches[i] * 4096 * centres * 128);
    // Keys stay in the L2, and so come from memory once.
    CHECK(bytes_of(cluster, Tensor::kMetadata, Direction::kRead) ==
          std::min(batches[i] * 4096, 32768.0) * 4 * 256);
  }
  const Stage& label = made.usual.stages[2];
  CHECK(ops_of(label, Op::kAdd, Phase::kScore) == 4 * 32768.0 * centres * 128);
  const Stage& leaders = made.usual.stages[3];
  CHECK(ops_of(leaders, Op::kMultiply, Phase::kSelect) == 4 * 32768.0 * 5 * 128);
  const Stage& pack = made.usual.stages[4];
  CHECK(bytes_of(pack, Tensor::kK, Direction::kRead) == 4 * 32768.0 * 256);
  CHECK(bytes_of(pack, Tensor::kK, Direction::kWrite) == 4 * 32768.0 * 256);
  CHECK(bytes_of(pack, Tensor::kV, Direction::kWrite) == 4 * 32768.0 * 256);
  CHECK(bytes_of(pack, Tensor::kMetadata, Direction::kWrite) == 4 * 8192.0 * 256);

  CHECK(preparation_of("santapp:grouping=contiguous", {32768}).usual.stages.size() == 2);
  const Preparation probes = preparation_of("santapp:grouping=probes", {32768, 100});
  CHECK(probes.usual.stages[0].name == "score_probes");
  CHECK(ops_of(probes.usual.stages[0], Op::kMultiply, Phase::kScore) ==
        4 * (32768.0 + 100) * 64 * 7 * 128);
}

TEST_CASE("records of blocks and pages: K is read once, records are written") {
  for (const auto& [spec, record] :
       {std::pair{"eta:block=64,thresholds=union", 516.0}, std::pair{"quest:page=64", 512.0}}) {
    const Preparation made = preparation_of(spec, {4096});
    REQUIRE(made.usual.stages.size() == 1);
    const Stage& stage = made.usual.stages[0];
    CHECK(bytes_of(stage, Tensor::kK, Direction::kRead) == 4096 * 4 * 256);
    CHECK(bytes_of(stage, Tensor::kMetadata, Direction::kWrite) == 64 * 4 * record);
  }
  const auto none =
      make_method("dense").method->implementation().preparation(shape_of({4096}, 0), kLimits);
  CHECK(!none);
}

}  // namespace
}  // namespace kvsim::testing
