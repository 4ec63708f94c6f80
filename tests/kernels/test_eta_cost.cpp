// Launches and traffic of both implementations.

#include <algorithm>

#include "kernels/method.h"
#include "kernels/split_plan.h"
#include "tests/catch.h"
#include "tests/kernels/random_step.h"

namespace kvsim::testing {
namespace {

constexpr DeviceLimits kLimits{
    .sms = 132, .shared_bytes_per_sm = 233472, .l2_bytes = 50 << 20, .threads_per_sm = 2048};

/// An SM has room for one CTA.
DeviceLimits small_limits(int sms) {
  DeviceLimits limits = kLimits;
  limits.sms = sms;
  limits.shared_bytes_per_sm = 164 * 1024;
  return limits;
}

Shape shape_of(const std::vector<std::int64_t>& contexts) {
  return {.contexts = contexts, .q_heads = 32, .kv_heads = 4, .head_dim = 64, .v_head_dim = 64};
}

Work work_of(const std::string& spec, const std::vector<std::int64_t>& contexts,
             const DeviceLimits& limits = kLimits) {
  const NamedMethod named = make_method(spec);
  const Shape shape = shape_of(contexts);
  return named.method->implementation().work(shape, named.method->bounds(shape).high, limits);
}

const Access& first_access(const Stage& stage, Tensor tensor) {
  return *std::find_if(stage.accesses.begin(), stage.accesses.end(),
                       [tensor](const Access& access) { return access.tensor == tensor; });
}

double bytes_of(const Stage& stage, Tensor tensor, Direction direction) {
  double bytes = 0;
  for (const Access& access : stage.accesses) {
    if (access.tensor == tensor && access.direction == direction) bytes += access.bytes();
  }
  return bytes;
}

TEST_CASE("eta: a launch reads a record for each full block, and the union's rows") {
  const std::vector<std::int64_t> contexts{65536 + 5, 130};
  for (const char* implementation : {"ours", "published"}) {
    const std::string spec =
        std::string("eta:thresholds=union,density=0.25,rescue=off,implementation=") +
        implementation;
    const Work work = work_of(spec, contexts);
    const Stage& stage = work.stages[0];
    CHECK(stage.name == "screen_attend");
    CHECK(bytes_of(stage, Tensor::kMetadata, Direction::kRead) == (1024 + 2) * 4 * 260);
    // At most: the share, seven heads' last blocks, two pinned ones; of two blocks both; the tails.
    const double rows = (256 + 7 + 2 + 2) * 64 + 5 + 2;
    CHECK(bytes_of(stage, Tensor::kK, Direction::kRead) == rows * 4 * 128);
    CHECK(bytes_of(stage, Tensor::kV, Direction::kRead) == rows * 4 * 128);
    // Ours has the queries before the records, too.
    CHECK(stage.dependent_trips == (implementation == std::string("ours") ? 2 : 1));
  }
}

TEST_CASE("eta: published chunks have a CTA each, and a second launch if there are several") {
  const std::string spec = "eta:thresholds=union,chunk=128,implementation=published";
  const Work one = work_of(spec, {128 * 64 + 63});
  CHECK(one.stages.size() == 1);
  CHECK(one.stages[0].launch.ctas == 4);
  CHECK(bytes_of(one.stages[0], Tensor::kPartial, Direction::kWrite) == 0);
  CHECK(bytes_of(one.stages[0], Tensor::kOutput, Direction::kWrite) == 32 * 64 * 2);

  const Work several = work_of(spec, {129 * 64, 20});
  REQUIRE(several.stages.size() == 2);
  CHECK(several.stages[1].name == "merge");
  CHECK(several.stages[1].before == Boundary::kKernelLaunch);
  CHECK(several.stages[0].launch.ctas == 4 * (2 + 1));
  // Output, maximum and sum in float32, of each chunk and query head.
  const double partials = 3.0 * 32 * (64 + 2) * 4;
  CHECK(bytes_of(several.stages[0], Tensor::kPartial, Direction::kWrite) == partials);
  CHECK(bytes_of(several.stages[1], Tensor::kPartial, Direction::kRead) == partials);
}

TEST_CASE("eta: a published CTA loads its records and blocks one after the other") {
  const auto rounds = [](std::size_t batch, std::int64_t context, const std::string& density) {
    return work_of("eta:pinned=0,rescue=off,implementation=published,thresholds=union,density=" +
                       density,
                   std::vector<std::int64_t>(batch, context))
        .stages[0]
        .load_rounds;
  };
  CHECK(rounds(1, 8192, "1") == 128 + 128);
  CHECK(rounds(1, 4096, "1") == 64 + 64);
  CHECK(rounds(1, 65536, "0.25") == 128 + (256 + 7) / 8.0);
  // 8 CTAs to an SM: 64 sequences of 4 KV heads and 8 chunks are two waves.
  CHECK(rounds(64, 65536, "0.25") == 2 * rounds(1, 65536, "0.25"));
}

TEST_CASE("eta: ours reads blocks of rows in one piece, a tail in part of one") {
  const Work work = work_of("eta:thresholds=union,rescue=off,pinned=0", {130});
  for (const Tensor tensor : {Tensor::kK, Tensor::kV}) {
    const Access& access = first_access(work.stages[0], tensor);
    CHECK(access.row_bytes == 64 * 128);
    CHECK(access.rows == 4 * 130 / 64.0);  // the share may take both blocks, by their last heads
  }
}

TEST_CASE("eta: an SM has two CTAs of small heads in small groups, where both fit") {
  const std::vector<std::int64_t> contexts(64, 65536);
  const auto stage_of = [&contexts](int q_heads, int head_dim, const DeviceLimits& limits) {
    Shape shape = shape_of(contexts);
    shape.q_heads = q_heads;
    shape.head_dim = shape.v_head_dim = head_dim;
    const NamedMethod named = make_method("eta:thresholds=union,density=0.25,rescue=off");
    return named.method->implementation()
        .work(shape, named.method->bounds(shape).high, limits)
        .stages[0];
  };
  const Stage two = stage_of(32, 64, kLimits);
  CHECK(two.launch.ctas == 256);  // one for each team
  CHECK(two.launch.ctas_per_wave == 264);
  CHECK(two.imbalance == 1);
  CHECK(two.load_rounds == 1);
  CHECK(two.load_warps == 2 * 2);
  CHECK(bytes_of(two, Tensor::kPartial, Direction::kWrite) == 0);
  for (const Stage& one : {stage_of(36, 64, kLimits), stage_of(32, 128, kLimits),
                           stage_of(32, 64, small_limits(132))}) {
    CHECK(one.launch.ctas == 132);
    CHECK(one.launch.ctas_per_wave == 132);
    CHECK(one.load_rounds == 1 + 2 * 2);  // a share is of up to three teams
  }
}

TEST_CASE("eta: a team's first CTA bounds the first chunk again, beside the others") {
  // 32 CTAs for each of 4 teams, of 4 blocks: the chunk has 128.
  const Work work = work_of("eta:thresholds=union,density=0.25,pinned=0", {8192});
  const Stage& stage = work.stages[0];
  CHECK(stage.launch.ctas == 128);
  CHECK(first_access(stage, Tensor::kQuery).requests == 32);
  CHECK(first_access(stage, Tensor::kMetadata).rows == 4 * 128);
  CHECK(first_access(stage, Tensor::kMetadata).requests == 2 * 4 * 128);
  CHECK(stage.chain_cycles == 1200 + (1600 + 150 + 700) + 900);
  CHECK(stage.load_warps == 2);
  // After the first turn: eight that are tracked, four of each warp, and the second warp's last
  // one; the team's last slot.
  CHECK(stage.load_rounds == 2);
  CHECK(stage.round_cycles * 2 == 4 * (1600 + 150 + 1000) + (150 + 1000) + 1000);

  // Nothing is rescued, by the rule, or where a pinned block of the chunk would do.
  for (const char* spec : {"eta:thresholds=union,density=0.25,pinned=0,rescue=off",
                           "eta:thresholds=union,density=0.25,pinned=1"}) {
    const Work sure = work_of(spec, {8192});
    CHECK(first_access(sure.stages[0], Tensor::kMetadata).requests == 4 * 128);
    CHECK(sure.stages[0].load_rounds == 1);
    CHECK(sure.stages[0].round_cycles == 1000);
  }
}

TEST_CASE("eta: more warps screen for large groups of small heads, one turn after the other") {
  const std::vector<std::int64_t> contexts{8192};
  Shape shape = shape_of(contexts);
  shape.q_heads = 36;
  const NamedMethod named = make_method("eta:thresholds=union,density=0.25,pinned=0");
  const Stage stage = named.method->implementation()
                          .work(shape, named.method->bounds(shape).high, kLimits)
                          .stages[0];
  CHECK(stage.load_warps == 4);
  CHECK(stage.round_cycles * 2 == 1600 + 8 * (150 + 1000) + 1000);
}

TEST_CASE("eta: shares that span teams screen one after the other") {
  // 4 teams of 16 units: borders at 21 and 42, so 5 units of team 1 come first, 10 of team 2.
  const DeviceLimits limits = small_limits(3);
  const auto stage_of = [&limits](const std::string& chunk) {
    return work_of("eta:thresholds=union,density=0.25,chunk=" + chunk, {4096}, limits).stages[0];
  };
  const Stage whole = stage_of("20");
  CHECK(first_access(whole, Tensor::kQuery).requests == 6 / 4.0);
  CHECK(first_access(whole, Tensor::kMetadata).requests == 4 * 64);
  // 11 of a CTA's 22 units are 44 blocks: three turns, two of one warp; two are tracked.
  const double run = 2 * (1600 + 150 + 700 + 1000 * 2 / 3.0);
  const double beside = 2 * run - (1600 + 150 + 700) + 1200 + 1000;
  CHECK(whole.load_rounds == 3);  // the second team's queries and first records
  CHECK(whole.round_cycles * 3 == Approx(beside));

  const Stage cut = stage_of("32");
  CHECK(first_access(cut, Tensor::kMetadata).requests == 4 * 64 + 32);
  CHECK(cut.load_rounds == 4);
  CHECK(cut.round_cycles * 4 == Approx(beside + 1600 + 2 * (150 + 1000)));
}

TEST_CASE("eta: a warp's turns follow each other where there are many") {
  // A CTA for each of 4 teams: 1024 blocks, 64 turns of 2 warps, hardly one of which fills a slot.
  const Work work = work_of("eta:thresholds=union,density=0.0001,pinned=0,rescue=off,chunk=32",
                            {65536}, small_limits(4));
  const double in_turn = 150 + 700 * (8 / 1024.0) * 16;  // each of 8 heads takes a block
  const double turns = 32 * (1600 + in_turn) + in_turn;
  CHECK(work.stages[0].round_cycles == Approx(turns - (1600 + in_turn) + 1000));
}

TEST_CASE("eta: ours is one launch whose CTAs exchange, and tokens by their scores read all keys") {
  const Work work = work_of("eta", {65536});
  REQUIRE(work.stages.size() == 2);
  CHECK(work.stages[1].before == Boundary::kTeamExchange);
  const Work exact = work_of("eta:block=1,thresholds=union", {1000});
  CHECK(bytes_of(exact.stages[0], Tensor::kMetadata, Direction::kRead) == 0);
  CHECK(bytes_of(exact.stages[0], Tensor::kK, Direction::kRead) == 1000 * 4 * 128);
  CHECK(bytes_of(exact.stages[0], Tensor::kV, Direction::kRead) < 300 * 4 * 128);
}

}  // namespace
}  // namespace kvsim::testing
