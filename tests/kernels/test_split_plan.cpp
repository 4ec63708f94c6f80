// What the cost model says of a launch against the plan that the kernels are launched with, CTA by
// CTA, and the stages against what the kernels do.

#include <algorithm>
#include <cmath>

#include "kernels/device/blocks.h"
#include "kernels/device/stream_cost.h"
#include "kernels/device/team_split.h"
#include "kernels/method.h"
#include "kernels/topk/radix.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

using testing::Approx;

/// A plan's figures, counted over its CTAs and teams.
struct Counted {
  double partials = 0;
  double team_units = 0;
  double most_teams = 0;
  double most_units = 0;
  std::vector<double> units;  // of each CTA
};

double units_of_cta(const TeamSplit& split, int cta) {
  if (split.ctas_per_team == 0) return split.share_begin(cta + 1) - split.share_begin(cta);
  return split.cta_units + (cta % split.ctas_per_team < split.rest_units ? 1 : 0);
}

/// The CTAs that work on a team.
struct Members {
  int first = 0;
  int count = 0;
};

Members members_of(const TeamSplit& split, const TeamSplit::Team& team) {
  if (split.ctas_per_team > 0) {
    return {(team.sequence * split.kv_heads + team.kv_head) * split.ctas_per_team,
            split.ctas_per_team};
  }
  const int first = split.cta_of(team.begin);
  return {first, split.cta_of(team.end - 1) - first + 1};
}

Counted count(const TeamSplit& split) {
  Counted counted;
  std::vector<double> teams(static_cast<std::size_t>(split.ctas));
  for (std::int32_t s = 0; s < split.batch; ++s) {
    for (std::int32_t h = 0; h < split.kv_heads; ++h) {
      const TeamSplit::Team team = split.team(s, h);
      const Members members = members_of(split, team);
      if (members.count > 1) counted.partials += members.count;
      counted.team_units += static_cast<double>(members.count) * (team.end - team.begin);
      for (int i = 0; i < members.count; ++i) ++teams[static_cast<std::size_t>(members.first + i)];
    }
  }
  counted.most_teams = *std::max_element(teams.begin(), teams.end());
  for (int cta = 0; cta < split.ctas; ++cta) counted.units.push_back(units_of_cta(split, cta));
  counted.most_units = *std::max_element(counted.units.begin(), counted.units.end());
  return counted;
}

double beyond(const Counted& counted, double kept) {
  double sum = 0;
  for (const double units : counted.units) sum += std::max(0.0, units - kept);
  return sum;
}

Shape shape_of(std::span<const std::int64_t> contexts, int q_heads = 32, int kv_heads = 8,
               int head_dim = 128) {
  Shape shape;
  shape.contexts = contexts;
  shape.q_heads = q_heads;
  shape.kv_heads = kv_heads;
  shape.head_dim = shape.v_head_dim = head_dim;
  return shape;
}

void compare(const std::vector<std::int64_t>& contexts, int kv_heads, const SplitUnit& unit,
             int sms, bool own_ctas, int ctas_per_sm = 1) {
  const std::vector<std::int32_t> lengths(contexts.begin(), contexts.end());
  const TeamSplit split = plan_teams(lengths, kv_heads, unit, ctas_per_sm * sms, own_ctas);
  const Counted counted = count(split);
  const SplitPlan plan = plan_splits(shape_of(contexts, kv_heads, kv_heads), {sms, 228 * 1024, 0},
                                     unit, own_ctas, ctas_per_sm);
  INFO("sequences " << contexts.size() << ", first " << contexts[0] << ", KV heads " << kv_heads
                    << ", unit " << unit.tokens << ", SMs " << sms);
  CHECK(plan.launch.ctas == split.ctas);
  CHECK(plan.ctas_per_team == split.ctas_per_team);
  CHECK(plan.units == split.total());
  CHECK(plan.most_units() == Approx(counted.most_units));
  CHECK(split.most_units_per_cta() == counted.most_units);
  CHECK(plan.partials == counted.partials);
  CHECK(plan.team_units == counted.team_units);
  CHECK(plan.most_teams == counted.most_teams);
  for (const double kept : {0.0, 1.0, 7.0, 21.0}) {
    CHECK(plan.units_beyond(kept) == Approx(beyond(counted, kept)));
  }
}

TEST_CASE("the cost model splits work as the kernels do") {
  const std::vector<std::vector<std::int64_t>> batches{{1},
                                                       {100},
                                                       {2048},
                                                       {8192},
                                                       {30000},
                                                       {32768},
                                                       {65536},
                                                       {131072},
                                                       {5, 40000},
                                                       {300, 7, 8192, 1, 555},
                                                       {16384, 16384},
                                                       std::vector<std::int64_t>(6, 30000),
                                                       std::vector<std::int64_t>(64, 4096),
                                                       std::vector<std::int64_t>(33, 257)};
  for (const auto& contexts : batches) {
    for (const int kv_heads : {1, 2, 4, 8, 40}) {
      for (const int sms : {1, 20, 108, 132, 142}) {
        for (const SplitUnit& unit :
             {dense_split_unit(128), dense_split_unit(256), kBlockSplitUnit}) {
          for (const bool own : {true, false}) compare(contexts, kv_heads, unit, sms, own);
          compare(contexts, kv_heads, unit, sms, true, /*ctas_per_sm=*/2);
        }
      }
    }
  }
}

TEST_CASE("batches above what a kernel takes are split by the same rule") {
  const std::vector<std::int64_t> contexts(1000, 4096);
  const SplitPlan plan = plan_splits(shape_of(contexts), {132, 228 * 1024, 0}, kBlockSplitUnit);
  CHECK(plan.launch.ctas == 132);
  CHECK(plan.units == 1000 * 8 * 16);
  CHECK(plan.most_teams == 62);
}

const DeviceLimits kH200{132, 228 * 1024, 50 << 20};

TEST_CASE("scores beyond what shared memory holds beside the ring are spilled") {
  const auto plan = [](std::int64_t context, std::size_t batch) {
    const std::vector<std::int64_t> contexts(batch, context);
    return plan_stream_cost(shape_of(contexts), kH200);
  };
  CHECK(plan(32768, 1).spilled_blocks == 0);   // 8 blocks a CTA
  CHECK(plan(65536, 1).spilled_blocks == 0);   // 16
  CHECK(plan(131072, 1).spilled_blocks == 0);  // 32
  // 64 blocks a CTA, 39 slots, three of them for staging.
  const StreamPlan longest = plan(262144, 1);
  CHECK(longest.resident_blocks == 36);
  CHECK(longest.spilled_blocks == 128 * 28);
  CHECK(longest.most_spilled() == 28);
  // Contiguous shares of 42 or 43.
  CHECK(plan(30000, 6).spilled_blocks == 6 * 8 * 118 - 132 * 36);
}

const Stage& stage(const Work& work, std::string_view name) {
  for (const Stage& s : work.stages) {
    if (s.name == name) return s;
  }
  throw std::out_of_range(std::string(name));
}

Work work_of(const std::string& method, const std::vector<std::int64_t>& contexts) {
  const Shape shape = shape_of(contexts);
  const NamedMethod named = make_method(method);
  return named.method->implementation().work(shape, named.method->bounds(shape).high, kH200);
}

double requested(const Stage& stage, Tensor tensor, Direction direction) {
  double bytes = 0;
  for (const Access& access : stage.accesses) {
    if (access.tensor == tensor && access.direction == direction) {
      bytes += access.row_bytes * access.requests;
    }
  }
  return bytes;
}

TEST_CASE("dense: one launch and one exchange of partial results") {
  const Work work = work_of("dense", {32768});
  REQUIRE(work.stages.size() == 2);
  CHECK(work.stages[0].before == Boundary::kKernelLaunch);
  CHECK(stage(work, "merge").before == Boundary::kTeamExchange);
  // 16 CTAs of each team, 4 heads: 128 values, a sum and a maximum, each with a launch number.
  const double partials = 128 * 4 * 130 * 8;
  CHECK(requested(work.stages[0], Tensor::kPartial, Direction::kWrite) == partials);
  CHECK(requested(stage(work, "merge"), Tensor::kPartial, Direction::kRead) == partials);
}

TEST_CASE("samplers: every CTA of a team reads all its records, then rows, then adds up") {
  const Work work = work_of("santa-sys", {32768});
  REQUIRE(work.stages.size() == 3);
  const Stage& gather = stage(work, "gather_v");
  CHECK(gather.before == Boundary::kTeamExchange);
  CHECK(gather.boundaries == 1);
  CHECK(gather.cache_trips == 0);      // the records come with the exchange, the rest is on chip
  CHECK(gather.dependent_trips == 0);  // and so are the rows' numbers
  CHECK(gather.load_rounds == 1);      // 4 rows of a head for each of two warps
  const double records = 16.0 * 32 * 128;
  CHECK(requested(work.stages[0], Tensor::kMetadata, Direction::kWrite) == records);
  CHECK(requested(gather, Tensor::kMetadata, Direction::kRead) == 16 * records);
  CHECK(requested(gather, Tensor::kPartial, Direction::kWrite) == 128 * 4 * 128 * 8);
  CHECK(stage(work, "merge").before == Boundary::kTeamExchange);

  // One pass over 128 tiles and 8 own ones, chunks dealt out, one of them for each warp, sums.
  CHECK(gather.chain_cycles == 700 + 500 + 700 + 550 + 1650 + 600);

  // 1024 tiles are read four at a time by 32 lanes, twice; a search takes 2 steps.
  const Work longer = work_of("santa-sys", {262144});
  CHECK(stage(longer, "gather_v").cache_trips == 16 - 1 + 2);
  // 235 tiles: four reads; shares span two teams, gathered together in twice as many chunks.
  const Work batch = work_of("santa-sys", std::vector<std::int64_t>(6, 60000));
  CHECK(stage(batch, "gather_v").cache_trips == 4 - 1 + 2);
  CHECK(stage(batch, "merge").cache_trips == 1);
  CHECK(stage(batch, "gather_v").chain_cycles == 2 * 700 + 500 + 2 * 700 + 550 + 2 * 1650 + 600);
}

TEST_CASE("santa-flash: finishing warps take a head's blocks in turn, or two heads") {
  const Work work = work_of("santa-flash", {32768});  // 4 heads: two warps each, 8 blocks a CTA
  const Followers& f = stage(work, "stream_k_gather_v").followers;
  CHECK(f.blocks == 4);
  CHECK(f.hidden_cycles == 1400);
  CHECK(f.chain_cycles == 1400 + 150 + 925 + 16 * 89);  // 2048 samples over 128 blocks
  CHECK(f.load_rounds == 1);
  CHECK(f.first_bytes == 128 * 256 * 256);
  CHECK(f.bytes_under_way == 128 * (64 * 1024 + 8 * 16 * 256));
  const Work shorter = work_of("santa-flash", {8192});  // 64 samples a block
  CHECK(stage(shorter, "stream_k_gather_v").followers.load_rounds == 4);
  CHECK(stage(work_of("santa-sys", {32768}), "stream_k").followers.blocks == 0);
}

TEST_CASE("samplers: ranks of remainders and samples in no order take longer chains") {
  const Work sys = work_of("santa-sys", {32768});
  const double common = stage(sys, "gather_v").chain_cycles;
  // 8 own tiles against 128, 32 comparisons at a time.
  CHECK(stage(work_of("santa-prop", {32768}), "gather_v").chain_cycles ==
        common + 600 + 8 * 128 / 32 * 20);
  // 4 heads' 128 samples are 16 chunks of 32 for 8 warps.
  CHECK(stage(work_of("santa-iid", {32768}), "gather_v").chain_cycles == common + 1650);
  CHECK(stage(work_of("topk", {32768}), "gather_v").chain_cycles == 0);
}

TEST_CASE("top-k: two exchanges a round, and spilled keys are read again in each") {
  const Work work = work_of("topk", {32768});
  REQUIRE(work.stages.size() == 4);
  const Stage& select = stage(work, "select");
  CHECK(select.boundaries + stage(work, "gather_v").boundaries == 2 * device::kRounds);
  CHECK(requested(select, Tensor::kPartial, Direction::kRead) == 4.0 * 128 * 4 * 2048);
  CHECK(requested(select, Tensor::kStash, Direction::kRead) == 0);

  const Work longer = work_of("topk", {262144});
  const double spilled = 128 * 28 * 4 * 1024.0;
  CHECK(requested(longer.stages[0], Tensor::kStash, Direction::kWrite) == spilled);
  CHECK(requested(stage(longer, "select"), Tensor::kStash, Direction::kRead) == 4 * spilled);
}

TEST_CASE("teams of one CTA each wait for nobody") {
  const std::vector<std::int64_t> contexts{200, 200};
  CHECK(work_of("dense", contexts).stages.size() == 2);  // two CTAs a team
  const Work sampler = work_of("santa-sys", contexts);
  REQUIRE(sampler.stages.size() == 2);
  CHECK(sampler.stages[1].boundaries == 0);
  CHECK(sampler.stages[1].cache_trips == 1);
  const Work topk = work_of("topk", contexts);
  CHECK(topk.stages.size() == 3);
  CHECK(topk.stages[1].boundaries == 0);
}

}  // namespace
}  // namespace kvsim
