// implementation=fallback of the samplers: the same work in two launches, scores in memory between.

#include <algorithm>

#include "kernels/method.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

double bytes_of(const Work& work, Tensor tensor) {
  double bytes = 0;
  for (const Stage& stage : work.stages) {
    for (const Access& access : stage.accesses) {
      if (access.tensor == tensor) bytes += access.bytes();
    }
  }
  return bytes;
}

std::int64_t launches(const Work& work) {
  return std::count_if(work.stages.begin(), work.stages.end(),
                       [](const Stage& stage) { return stage.before == Boundary::kKernelLaunch; });
}

TEST_CASE("fallback: two launches and a stash, but the operations and rows of ours") {
  const std::vector<std::int64_t> contexts{8192};
  Shape shape;
  shape.contexts = contexts;
  shape.q_heads = 32;
  shape.kv_heads = 8;
  shape.head_dim = shape.v_head_dim = 128;
  const DeviceLimits limits{132, 228 * 1024, 50 << 20};
  for (const std::string name : {"santa-iid", "santa-strat", "santa-sys", "santa-prop"}) {
    INFO(name);
    const NamedMethod ours = make_method(name);
    const NamedMethod fallback = make_method(name + ":implementation=fallback");
    const Statistics statistics = ours.method->bounds(shape).high;
    const Work a = ours.method->implementation().work(shape, statistics, limits);
    const Work b = fallback.method->implementation().work(shape, statistics, limits);
    CHECK(launches(a) == 1);
    CHECK(launches(b) == 2);
    CHECK(bytes_of(a, Tensor::kStash) == 0);  // 1 MiB of scores stays on the chip
    // All is written, and 128 searches of 17 sectors read at most all.
    CHECK(bytes_of(b, Tensor::kStash) == 2 * 4.0 * 32 * 8192);
    for (const Tensor tensor : {Tensor::kK, Tensor::kV, Tensor::kMetadata}) {
      CHECK(bytes_of(a, tensor) == bytes_of(b, tensor));
    }
    for (const Op op : {Op::kMultiply, Op::kAdd, Op::kExp, Op::kCompare, Op::kRandomWord}) {
      CHECK(a.total(op) == b.total(op));
    }
  }
}

}  // namespace
}  // namespace kvsim
