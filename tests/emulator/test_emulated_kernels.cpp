// Every CUDA kernel on the emulated GPU, by the checks of the tests on a real one: each launch has
// another schedule, and all must give the same bytes. Shapes are small, and few SMs make CTAs take
// shares of several teams.

#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/emulator/device.h"
#include "tests/kernels/gpu/check_case.cuh"

namespace kvsim {
namespace {

using testing::GpuCase;
using testing::hnd;
using testing::nhd;
using testing::paged;
using testing::with;

constexpr int kSchedules = 2;  // besides the one with dumps
constexpr ElementType kBf16 = ElementType::kBfloat16;
constexpr ElementType kFp16 = ElementType::kFloat16;
constexpr ElementType kFloat = ElementType::kFloat32;

/// Around the borders of tiles, units and blocks.
void add_lengths(std::vector<GpuCase>& cases) {
  for (const int n : {1, 15, 16, 17, 255, 257, 1000}) cases.push_back(hnd({n}, 8, 2, 128));
  for (const int n : {1, 17, 513}) cases.push_back(nhd(hnd({n}, 4, 4, 64, kFp16, 4)));
}

/// Every group with every head size, in changing types, layouts and softmaxes.
void add_head_shapes(std::vector<GpuCase>& cases) {
  int i = 0;
  for (const int group : {1, 3, 4, 7, 8, 16}) {
    for (const int dim : {64, 80, 128, 256}) {
      GpuCase shape = hnd({333}, 2 * group, 2, dim, i % 2 == 0 ? kBf16 : kFp16, i % 3 * 3 + 1);
      if (i % 5 == 1) shape = nhd(shape);
      if (i % 5 == 2) shape = paged(16, shape);
      if (i % 5 == 3) shape = paged(64, shape);
      cases.push_back(shape);
      ++i;
    }
  }
}

void add_batches(std::vector<GpuCase>& cases) {
  cases.push_back(hnd({1, 1, 1}, 8, 2, 128));
  cases.push_back(hnd({399, 200}, 16, 1, 96, kFp16, 3));
  cases.push_back(paged(16, hnd({500, 1, 250}, 14, 2, 128, kBf16, 3)));
  cases.push_back(paged(64, hnd({500, 30, 250, 499, 128}, 4, 2, 64, kFp16, 3)));
  cases.push_back(hnd(std::vector<std::int32_t>(9, 70), 8, 4, 64, kFp16, 8));
  cases.push_back(nhd(hnd({2500}, 4, 1, 128, kBf16, 4)));
}

void add_caps_and_sinks(std::vector<GpuCase>& cases) {
  cases.push_back(with(hnd({300}, 8, 2, 128, kBf16, 3), 20, false, kFloat));
  cases.push_back(with(hnd({257, 97}, 16, 2, 64), 0, true, kFloat));
  cases.push_back(with(hnd({200, 3}, 8, 2, 256, kFp16, 3), 30, true, kFloat));
  cases.push_back(with(hnd({256}, 8, 2, 128), 0, false, kBf16));
  cases.push_back(with(hnd({255}, 8, 2, 128, kFp16, 4), 0, true, kFp16));
}

std::vector<GpuCase> all_cases() {
  std::vector<GpuCase> cases;
  add_lengths(cases);
  add_head_shapes(cases);
  add_batches(cases);
  add_caps_and_sinks(cases);
  return cases;
}

std::vector<GpuCase> few_cases() {
  return {hnd({17}, 8, 2, 128, kBf16, 4), nhd(hnd({333}, 7, 1, 96, kFp16, 4)),
          paged(16, hnd({500, 1, 250}, 8, 2, 64, kBf16, 3)),
          with(hnd({200, 3}, 32, 2, 128, kFp16, 3), 30, true, kFloat)};
}

/// Where a CTA goes round every ring, and from one team to the next in the middle of a sequence.
std::vector<GpuCase> long_cases() {
  return {hnd({1500, 40, 2500}, 4, 2, 64, kBf16, 3), hnd({3001}, 16, 1, 128, kFp16, 2),
          hnd(std::vector<std::int32_t>(24, 130), 4, 2, 64, kFp16, 2)};
}

/// Checks a method on the cases, each in `kSchedules` more schedules, on `sms` SMs or as many as
/// the device has; KVSIM_EMULATED_EVERY leaves only some of the cases to builds that are slow.
void check_cases(const std::string& spec, const std::vector<GpuCase>& cases, int sms = 0) {
  DeviceLimits limits = emulator::Device::instance().limits;
  if (sms > 0) limits.sms = sms;
  int ran = 0;
  for (std::size_t i = 0; i < cases.size(); i += KVSIM_EMULATED_EVERY) {
    ran += testing::check_case(spec, cases[i], limits, kSchedules);
  }
  INFO(spec);
  CHECK(ran > 0);
}

// One test for each few methods, so that they run side by side.

TEST_CASE("dense attention and top-k on every shape") {
  check_cases(GENERATE(as<std::string>{}, "dense", "topk"), all_cases());
}

TEST_CASE("SANTA on every shape") {
  check_cases(GENERATE(as<std::string>{}, "santa-iid", "santa-strat", "santa-sys", "santa-prop"),
              all_cases());
}

TEST_CASE("santa-flash on every shape") { check_cases("santa-flash", all_cases()); }

TEST_CASE("Bernoulli scores on every shape") {
  check_cases(GENERATE(as<std::string>{}, "bernoulli-qk:k_layout=feature",
                       "santa-sys:scores=bernoulli,k_layout=feature"),
              all_cases());
}

TEST_CASE("ETA on every shape") {
  check_cases("eta:thresholds=union," + GENERATE(as<std::string>{}, "block=64,density=0.2",
                                                 "block=16,density=0.3", "block=4,density=0.1"),
              all_cases());
}

TEST_CASE("SANTA++ on every shape") {
  check_cases("santapp:grouping=contiguous,samples=" +
                  GENERATE(as<std::string>{}, "32", "124", "124,implementation=published"),
              all_cases());
}

TEST_CASE("SANTA++'s teams, budgets and suffixes") {
  // All teams; one; more than a tile names; teams of one key, of three and of whole parents.
  const std::string implementation = GENERATE(as<std::string>{}, "ours", "published");
  const std::string spec = GENERATE(
      as<std::string>{}, "samples=1048576", "samples=4", "samples=400", "samples=64,routing=mean",
      "parent=1,representatives=1,samples=31", "parent=12,representatives=4,samples=48",
      "parent=64,representatives=1,samples=128", "parent=16,representatives=16,samples=100");
  std::vector<GpuCase> cases = few_cases();
  cases.push_back(hnd({2500, 2000}, 6, 2, 128, kBf16, 2));
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::int64_t suffix = i % 2 == 0 ? 1 : 200;
    if (suffix < cases[i].shape.max_context()) cases[i].suffix = suffix;
  }
  check_cases("santapp:grouping=contiguous,implementation=" + implementation + "," + spec, cases);
}

TEST_CASE("SANTA++ where a CTA has more tiles than its shared memory") {
  check_cases("santapp:grouping=contiguous,samples=124", {hnd({6500}, 16, 1, 64, kFp16, 2)}, 1);
}

/// Parts of each size, more candidates than a warp keeps, and unions longer than a CTA is wide.
TEST_CASE("SANTA++ in five launches with large budgets") {
  const std::string spec = "santapp:grouping=contiguous,implementation=published,";
  check_cases(spec + "parent=1,representatives=1,samples=" +
                  GENERATE(as<std::string>{}, "100", "300", "1000"),
              {hnd({2500, 2000}, 6, 2, 64, kBf16, 2)});
  check_cases(spec + "parent=1,representatives=1,samples=1000", {hnd({9000}, 3, 1, 64, kFp16, 4)});
}

/// 16 teams in a row have long keys: the tile that names 8 of them may have more above κ.
TEST_CASE("SANTA++ where one tile has most of the teams that are drawn") {
  GpuCase gpu_case = hnd({5000}, 8, 2, 64, kBf16, 2);
  gpu_case.loud_rows = {2048, 2112};
  gpu_case.suffix = 33;
  check_cases("santapp:grouping=contiguous,samples=32", {gpu_case});
  check_cases("santapp:grouping=contiguous,samples=32", {gpu_case}, 2);
  check_cases("santapp:grouping=contiguous,samples=32,implementation=published", {gpu_case});
}

/// The cap makes logits 32768 or its opposite, where floats lie so far apart that noise often falls
/// on one of them.
TEST_CASE("SANTA++ where teams have equal priorities") {
  check_cases("santapp:grouping=contiguous,samples=800",
              {with(hnd({4000}, 16, 1, 64, kBf16, 1e12), 32768, false, kFloat)});
}

/// The short sequence's 16 teams are one unit, whose tile names 8 of them where 12 are drawn.
TEST_CASE("SANTA++ where a sequence names fewer teams than it draws") {
  check_cases("santapp:grouping=contiguous,parent=1,representatives=1,samples=12",
              {hnd({2600, 16}, 4, 1, 64, kBf16, 2)});
}

TEST_CASE("every method where CTAs take long shares") {
  check_cases(
      GENERATE(as<std::string>{}, "dense", "topk", "santa-sys", "santa-flash",
               "bernoulli-qk:k_layout=feature", "santa-sys:scores=bernoulli,k_layout=feature",
               "eta:thresholds=union,block=4,density=0.5",
               "eta:thresholds=union,block=16,density=1", "santapp:grouping=contiguous,samples=124",
               "santapp:grouping=contiguous,samples=124,implementation=published"),
      long_cases(), 2);
}

TEST_CASE("variants of the samplers and of top-k") {
  check_cases(
      GENERATE(as<std::string>{}, "topk:keys=1", "topk:keys=1000", "santa-iid:samples=7",
               "santa-iid:samples=1000", "santa-sys:samples=1", "santa-sys:samples=1000",
               "santa-sys:implementation=fallback", "santa-strat:samples=7",
               "santa-strat:implementation=fallback", "santa-prop:samples=7",
               "santa-prop:mode=unbiased", "santa-prop:offsets=per-tile", "santa-prop:tile=32",
               "santa-prop:tile=256", "santa-prop:implementation=fallback",
               "santa-prop:implementation=fallback,samples=33,mode=unbiased,tile=64",
               "santa-strat:offsets=shared", "santa-flash:samples=1", "santa-flash:tile=32",
               "santa-flash:tile=64,samples=300", "santa-flash:offsets=shared,samples=128",
               "bernoulli-qk:k_layout=feature,draws=1",
               "bernoulli-qk:k_layout=feature,draws=16,query=mean",
               "bernoulli-qk:k_layout=feature,drawn=iid,draws=7",
               "santa-prop:scores=bernoulli,k_layout=feature,draws=1",
               "santa-iid:scores=bernoulli,k_layout=feature,drawn=iid,draws=64"),
      few_cases());
}

TEST_CASE("ETA's blocks, chunks, gates and thresholds") {
  // shift=-1000: no bound passes; shift=1000: every one does.
  check_cases(
      "eta:thresholds=union," +
          GENERATE(as<std::string>{}, "block=4,density=0.3", "block=8,density=0.1,z=2",
                   "block=32,density=0.05,chunk=4", "block=64,density=1",
                   "block=128,density=0.3,chunk=1",
                   "block=4,density=0.02,chunk=8,pinned=0,spread=flat", "block=64,shift=-1000",
                   "block=16,shift=-1000,pinned=0,chunk=2",
                   "block=8,shift=-1000,pinned=0,rescue=off", "block=32,shift=1000,pinned=0",
                   "block=4,shift=-1000,pinned=1,chunk=3", "block=64,gate=none,density=0.2",
                   "block=16,gate=additive,density=0.2,pinned=5"),
      few_cases());
}

}  // namespace
}  // namespace kvsim
