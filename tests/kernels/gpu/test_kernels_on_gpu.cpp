// Every CUDA kernel against float64, against its method's rule and against itself. Without a GPU
// each test says that it was skipped.

#include <optional>

#include "core/error.h"
#include "tests/catch.h"
#include "tests/kernels/gpu/check_case.cuh"

namespace kvsim {
namespace {

using testing::check_case;
using testing::GpuCase;

constexpr int kRepeats = 5;

/// The GPU's limits, or nothing, which is said.
std::optional<DeviceLimits> limits_or_skip() {
  try {
    return gpu_info().limits;
  } catch (const RuntimeError& error) {
    WARN("GPU-TEST-SKIPPED: " << error.what());
    return std::nullopt;
  }
}

TEST_CASE("kernels: every method on every shape", "[gpu]") {
  const std::string spec = GENERATE(
      as<std::string>{}, "dense", "topk", "santa-iid", "santa-strat", "santa-sys", "santa-prop",
      "santa-flash", "bernoulli-qk:k_layout=feature", "santa-sys:scores=bernoulli,k_layout=feature",
      "eta:thresholds=union,block=64,density=0.2", "santapp:grouping=contiguous",
      "santapp:grouping=contiguous,implementation=published");
  const std::optional<DeviceLimits> limits = limits_or_skip();
  if (!limits) return;
  int ran = 0;
  for (const GpuCase& gpu_case : testing::all_cases()) {
    ran += check_case(spec, gpu_case, *limits, kRepeats);
  }
  INFO(spec);
  CHECK(ran >= 60);
}

TEST_CASE("kernels: variants of the samplers and of top-k", "[gpu]") {
  const std::string spec = GENERATE(
      as<std::string>{}, "topk:keys=1", "topk:keys=1000", "santa-iid:samples=1",
      "santa-iid:samples=7", "santa-iid:samples=1000", "santa-sys:samples=1", "santa-sys:samples=7",
      "santa-sys:samples=1000", "santa-sys:implementation=fallback",
      "santa-sys:implementation=fallback,samples=7", "santa-strat:samples=1",
      "santa-strat:samples=7", "santa-strat:samples=1000", "santa-strat:implementation=fallback",
      "santa-prop:samples=1", "santa-prop:samples=7", "santa-prop:samples=1000",
      "santa-prop:mode=unbiased", "santa-prop:offsets=per-tile",
      "santa-prop:mode=unbiased,offsets=per-tile", "santa-prop:tile=32", "santa-prop:tile=64",
      "santa-prop:tile=128", "santa-prop:tile=256", "santa-prop:tile=32,mode=unbiased",
      "santa-prop:implementation=fallback",
      "santa-prop:implementation=fallback,samples=33,mode=unbiased,tile=64",
      "santa-sys:offsets=shared", "santa-prop:mode=unbiased,offsets=shared",
      "santa-strat:offsets=shared", "santa-flash:samples=1", "santa-flash:samples=77",
      "santa-flash:tile=32", "santa-flash:tile=64,samples=300", "santa-flash:tile=128",
      "santa-flash:offsets=per-tile", "santa-flash:offsets=shared,samples=128",
      "bernoulli-qk:k_layout=feature,draws=1", "bernoulli-qk:k_layout=feature,draws=16,query=mean",
      "bernoulli-qk:k_layout=feature,drawn=iid,draws=7",
      "bernoulli-qk:k_layout=feature,query=mean,draws=2",
      "santa-prop:scores=bernoulli,k_layout=feature,draws=1",
      "santa-strat:scores=bernoulli,k_layout=feature,query=mean",
      "santa-iid:scores=bernoulli,k_layout=feature,drawn=iid,draws=64");
  const std::optional<DeviceLimits> limits = limits_or_skip();
  if (!limits) return;
  int ran = 0;
  for (const GpuCase& gpu_case : testing::few_cases()) {
    ran += check_case(spec, gpu_case, *limits, kRepeats);
  }
  INFO(spec);
  CHECK(ran >= 5);  // many samples of many small tiles do not fit where contexts are long
}

TEST_CASE("kernels: ETA's blocks, chunks, gates and thresholds", "[gpu]") {
  // shift=-1000: no bound passes; shift=1000: every one does.
  const std::string spec = GENERATE(
      as<std::string>{}, "block=4,density=0.3", "block=8,density=0.1,z=2", "block=16,density=0.5",
      "block=32,density=0.05,chunk=4", "block=64,density=1", "block=128,density=0.3,chunk=1",
      "block=4,density=0.02,chunk=8,pinned=0,spread=flat", "block=64,shift=-1000",
      "block=64,shift=-1000,pinned=0", "block=16,shift=-1000,pinned=0,chunk=2",
      "block=8,shift=-1000,pinned=0,rescue=off", "block=32,shift=1000,pinned=0",
      "block=4,shift=-1000,pinned=1,chunk=3", "block=64,gate=none,density=0.2",
      "block=16,gate=additive,density=0.2,pinned=5", "block=128,shift=1000,gate=none,spread=flat");
  const std::optional<DeviceLimits> limits = limits_or_skip();
  if (!limits) return;
  int ran = 0;
  for (const GpuCase& gpu_case : testing::few_cases()) {
    ran += check_case("eta:thresholds=union," + spec, gpu_case, *limits, kRepeats);
  }
  INFO(spec);
  CHECK(ran >= 12);
}

TEST_CASE("kernels: ETA where bounds let nothing pass but one chunk", "[gpu]") {
  const std::optional<DeviceLimits> limits = limits_or_skip();
  if (!limits) return;
  for (const int group : {1, 4, 8, 16}) {
    for (const int dim : {64, 128}) {
      const ElementType type = dim == 64 ? ElementType::kFloat16 : ElementType::kBfloat16;
      for (const char* rescue : {"on", "off"}) {
        CHECK(check_case("eta:thresholds=union,block=64,chunk=8,density=0.05,pinned=0,rescue=" +
                             std::string(rescue),
                         testing::loud_chunk_case(group, dim, type), *limits, kRepeats));
      }
    }
  }
}

TEST_CASE("kernels: SANTA++'s teams, budgets and suffixes", "[gpu]") {
  // All teams; one; more than a tile names; teams of one key, of three and of whole parents.
  const std::string spec = GENERATE(
      as<std::string>{}, "grouping=contiguous,samples=1048576", "grouping=contiguous,samples=4",
      "grouping=contiguous,samples=4096", "grouping=contiguous,samples=124,routing=mean",
      "grouping=contiguous,parent=1,representatives=1,samples=31",
      "grouping=contiguous,parent=12,representatives=4,samples=96",
      "grouping=contiguous,parent=64,representatives=1,samples=128",
      "grouping=contiguous,parent=16,representatives=16,samples=1000", "samples=64");
  const std::string implementation = GENERATE(as<std::string>{}, "ours", "published");
  const std::int64_t suffix = GENERATE(0, 1, 200);
  const std::optional<DeviceLimits> limits = limits_or_skip();
  if (!limits) return;
  int ran = 0;
  for (GpuCase gpu_case : testing::few_cases()) {
    const bool fits = suffix < gpu_case.shape.max_context();
    if (fits) gpu_case.suffix = suffix;
    ran += check_case("santapp:implementation=" + implementation + "," + spec, gpu_case, *limits,
                      kRepeats);
  }
  INFO(spec);
  CHECK(ran >= 10);
}

/// 16 teams in a row have long keys: a tile that names 8 of them may have more above κ.
TEST_CASE("kernels: SANTA++ where one tile has most of the teams that are drawn", "[gpu]") {
  const std::optional<DeviceLimits> limits = limits_or_skip();
  if (!limits) return;
  for (const int group : {1, 4, 8, 16}) {
    GpuCase gpu_case = testing::loud_chunk_case(group, 128, ElementType::kBfloat16);
    gpu_case.loud_rows = {2048, 2112};
    gpu_case.suffix = 33;
    const std::string spec = "santapp:grouping=contiguous,samples=32";
    CHECK(check_case(spec, gpu_case, *limits, kRepeats));
    CHECK(check_case(spec + ",implementation=published", gpu_case, *limits, kRepeats));
  }
}

TEST_CASE("kernels: a hundred launches give the same bytes", "[gpu]") {
  const std::string spec = GENERATE(
      as<std::string>{}, "dense", "topk", "santa-iid", "santa-sys", "santa-strat", "santa-prop",
      "santa-flash", "santa-sys:implementation=fallback", "santa-prop:implementation=fallback",
      "bernoulli-qk:k_layout=feature", "santa-sys:scores=bernoulli,k_layout=feature",
      "eta:thresholds=union,block=16", "santapp:grouping=contiguous",
      "santapp:grouping=contiguous,implementation=published");
  const std::optional<DeviceLimits> limits = limits_or_skip();
  if (!limits) return;
  const std::vector<GpuCase> cases = testing::few_cases();
  for (const std::size_t index : {3, 6}) CHECK(check_case(spec, cases[index], *limits, 100));
}

TEST_CASE("kernels: the shapes that they are checked on cover what they must") {
  CHECK(testing::all_cases().size() >= 60);
}

}  // namespace
}  // namespace kvsim
