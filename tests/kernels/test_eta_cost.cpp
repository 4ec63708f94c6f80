// Launches and traffic of both implementations.

#include "kernels/method.h"
#include "kernels/split_plan.h"
#include "tests/catch.h"
#include "tests/kernels/random_step.h"

namespace kvsim::testing {
namespace {

constexpr DeviceLimits kLimits{
    .sms = 132, .shared_bytes_per_sm = 233472, .l2_bytes = 50 << 20, .threads_per_sm = 2048};

Shape shape_of(const std::vector<std::int64_t>& contexts) {
  return {.contexts = contexts, .q_heads = 32, .kv_heads = 4, .head_dim = 64, .v_head_dim = 64};
}

Work work_of(const std::string& spec, const std::vector<std::int64_t>& contexts) {
  const NamedMethod named = make_method(spec);
  const Shape shape = shape_of(contexts);
  return named.method->implementation().work(shape, named.method->bounds(shape).high, kLimits);
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
    CHECK(stage.dependent_trips == 1);
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
