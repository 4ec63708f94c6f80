#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/philox.h"
#include "models/memory/traffic.h"
#include "models/presets.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

using testing::Approx;

constexpr std::size_t index_of(Tensor tensor) { return static_cast<std::size_t>(tensor); }

/// A cache of 1 MB before a DRAM of 64 B atoms.
Machine small_machine() {
  Machine machine;
  machine.limits.sms = 8;
  machine.cache_bytes = 1e6;
  machine.memory.gather_row_bytes = {64, 1024};
  machine.memory.gather_share = {exactly(0.5), exactly(1)};
  return machine;
}

/// One sequence of 1024 tokens, two KV heads of 64 bf16 elements: K and V are 262144 B each.
class OneLayer {
 public:
  explicit OneLayer(std::vector<std::int64_t> contexts = {1024}) : contexts_(std::move(contexts)) {
    shape_.contexts = contexts_;
    shape_.q_heads = 8;
    shape_.kv_heads = 2;
    shape_.head_dim = shape_.v_head_dim = 64;
  }
  OneLayer(const OneLayer&) = delete;
  OneLayer& operator=(const OneLayer&) = delete;
  const Shape& shape() const { return shape_; }

  Traffic traffic(const Work& work, CacheState state = CacheState::kCold,
                  const Machine& machine = small_machine(),
                  const SelectionFootprint* exact = nullptr) const {
    const Traffic result = memory_traffic(work, shape_, {}, state, machine, exact);
    check_sums(result, work);
    return result;
  }

  static void check_sums(const Traffic& t, const Work& work) {
    const double by_tensor = std::accumulate(t.dram_by_tensor.begin(), t.dram_by_tensor.end(), 0.0);
    CHECK(by_tensor == t.dram_read_bytes + t.dram_write_bytes);  // exactly
    REQUIRE(t.stages.size() == work.stages.size());
    double read = 0;
    double written = 0;
    for (std::size_t i = 0; i < t.stages.size(); ++i) {
      CHECK(t.stages[i].stage == work.stages[i].name);
      CHECK(t.stages[i].stream_bytes + t.stages[i].gather_bytes == t.stages[i].dram_read_bytes);
      read += t.stages[i].dram_read_bytes;
      written += t.stages[i].dram_write_bytes;
    }
    CHECK(read == t.dram_read_bytes);
    CHECK(written == t.dram_write_bytes);
    CHECK(t.sector_bytes >= t.requested_bytes * (1 - 1e-12));
  }

 private:
  std::vector<std::int64_t> contexts_;
  Shape shape_;
};

Work dense_work(const Shape& shape) {
  Work work;
  Stage& stream = work.add_stage("stream", Boundary::kKernelLaunch);
  const double rows = shape.total_context() * shape.kv_heads;
  stream.read(Tensor::kQuery, shape.query_bytes(), 1, 1);
  stream.read(Tensor::kK, shape.k_row_bytes(), rows, 4 * rows, RowSet::kKRows);
  stream.read(Tensor::kV, shape.v_row_bytes(), rows, 4 * rows, RowSet::kVRows);
  stream.write(Tensor::kPartial, 264, 64);
  Stage& merge = work.add_stage("merge", Boundary::kTicket);
  merge.read(Tensor::kPartial, 264, 64, 64);
  merge.write(Tensor::kOutput, shape.output_bytes(), 1);
  return work;
}

TEST_CASE("dense attention reads K and V once and keeps its partials in the cache") {
  const OneLayer layer;
  const Traffic t = layer.traffic(dense_work(layer.shape()));
  const double kv = 2 * 262144;
  CHECK(t.dram_by_tensor[index_of(Tensor::kK)] == 262144);
  CHECK(t.dram_by_tensor[index_of(Tensor::kV)] == 262144);
  CHECK(t.dram_by_tensor[index_of(Tensor::kQuery)] == 1024);
  CHECK(t.dram_by_tensor[index_of(Tensor::kPartial)] == 0);
  CHECK(t.dram_by_tensor[index_of(Tensor::kOutput)] == 1024);
  CHECK(t.dram_read_bytes == kv + 1024);
  CHECK(t.dram_write_bytes == 1024);
  CHECK(t.requested_bytes == kv + 2 * 64 * 264);  // no query, no output
  CHECK(t.sector_bytes == kv + 2 * 64 * 264);
  CHECK(t.stages[0].stream_bytes == kv + 1024);  // every row: no gather
  CHECK(t.stages[0].activations == 2 * 256 + 1);
  CHECK(t.stages[0].cache_read_bytes == kv + 1024);
  CHECK(t.stages[0].cache_write_bytes == 64 * 264);
  CHECK(t.stages[1].cache_read_bytes == 64 * 264);
  CHECK(t.stages[1].dram_read_bytes == 0);
}

TEST_CASE("kAll and every row of a set are the same bytes") {
  const OneLayer layer({1000, 24, 500});
  Work work = dense_work(layer.shape());
  const Traffic rows = layer.traffic(work);
  for (Access& access : work.stages[0].accesses) {
    if (access.row_set != RowSet::kNone) access.row_set = RowSet::kAll;
  }
  const Traffic all = layer.traffic(work);
  CHECK(all.dram_read_bytes == rows.dram_read_bytes);
  CHECK(all.sector_bytes == Approx(rows.sector_bytes));
  CHECK(all.stages[0].stream_bytes == rows.stages[0].stream_bytes);
}

TEST_CASE("selected rows use the exact footprint when there is one") {
  const OneLayer layer;
  Work work;
  Stage& stage = work.add_stage("gather", Boundary::kKernelLaunch);
  stage.read(Tensor::kK, 128, 100, 400, RowSet::kKRows);
  stage.read(Tensor::kV, 128, 50, 200, RowSet::kVRows);
  const SelectionFootprint exact{{12800, 12800, 80, 90}, {6400, 7680, 50, 48}};
  const Traffic t = layer.traffic(work, CacheState::kCold, small_machine(), &exact);
  CHECK(t.dram_by_tensor[index_of(Tensor::kK)] == 12800);
  CHECK(t.dram_by_tensor[index_of(Tensor::kV)] == 7680);
  CHECK(t.sector_bytes == 19200);
  CHECK(t.requested_bytes == 19200);
  CHECK(t.stages[0].gather_bytes == 20480);
  CHECK(t.stages[0].gather_row_bytes == Approx(20480.0 / 138));
  CHECK(t.stages[0].activations == 130);

  const Traffic expected = layer.traffic(work);
  CHECK(expected.dram_by_tensor[index_of(Tensor::kK)] == 12800);  // 128 B rows waste nothing
  CHECK(expected.dram_by_tensor[index_of(Tensor::kV)] == 6400);
  // 100 of 2048 rows: nearly every row is a run of its own.
  CHECK(expected.stages[0].gather_row_bytes == Approx(128).epsilon(0.06));
}

TEST_CASE("dense neighbourhoods stream, blocks are longer rows") {
  const OneLayer layer;
  const auto run_bytes = [&layer](double row_bytes, double rows) {
    Work work;
    work.add_stage("s", Boundary::kKernelLaunch)
        .read(Tensor::kV, row_bytes, rows, rows, RowSet::kVRows);
    const StageTraffic s = layer.traffic(work).stages[0];
    return s.gather_bytes > 0 ? s.gather_row_bytes : std::numeric_limits<double>::infinity();
  };
  CHECK(run_bytes(128, 20) == Approx(128).epsilon(0.02));
  CHECK(run_bytes(128, 1024) == Approx(256).epsilon(0.01));  // every second row: runs of two
  CHECK(run_bytes(128, 1900) == std::numeric_limits<double>::infinity());    // runs of 1.8 KB
  CHECK(run_bytes(8 * 128, 20) == std::numeric_limits<double>::infinity());  // blocks of 8 rows
  CHECK(run_bytes(4 * 128, 20) == Approx(512).epsilon(0.05));
}

TEST_CASE("what a step writes and reads again spills when it overfills the cache") {
  const OneLayer layer;
  const auto stash = [&layer](double bytes) {
    Work work;
    work.add_stage("score", Boundary::kKernelLaunch).write(Tensor::kStash, 4, bytes / 4);
    work.add_stage("select", Boundary::kKernelLaunch).read(Tensor::kStash, 4, bytes / 4, bytes);
    return layer.traffic(work);
  };
  CHECK(stash(1e6).dram_read_bytes == 0);
  CHECK(stash(1e6).dram_write_bytes == 0);
  const Traffic twice = stash(2e6);
  // h = exp(-2 (1 - h)): h = 0.20319.
  CHECK(twice.dram_write_bytes == Approx(2e6 * (1 - 0.20319)).epsilon(1e-4));
  CHECK(twice.dram_read_bytes == Approx(twice.dram_write_bytes));
  CHECK(stash(1.0001e6).dram_write_bytes < 1e3);  // no jump where it stops fitting
  CHECK(stash(1e9).dram_write_bytes == Approx(1e9));
  CHECK(twice.stages[1].cache_read_bytes == 4 * 2e6);  // four passes over the stash
}

TEST_CASE("writes that nobody reads go to DRAM, whole atoms") {
  const OneLayer layer;
  Work work;
  Stage& stage = work.add_stage("append", Boundary::kKernelLaunch);
  stage.write(Tensor::kK, 100, 1);
  stage.write(Tensor::kStash, 10, 1);
  const Traffic t = layer.traffic(work);
  CHECK(t.dram_by_tensor[index_of(Tensor::kK)] == 128);
  CHECK(t.dram_by_tensor[index_of(Tensor::kStash)] == 64);
  CHECK(t.sector_bytes == 128 + 32);

  // A new K row stays in the cache for the read that follows, but is written all the same.
  Work grow;
  grow.add_stage("append", Boundary::kKernelLaunch).write(Tensor::kK, 128, 2);
  grow.add_stage("read", Boundary::kGridBarrier).read(Tensor::kK, 128, 2048, 2048, RowSet::kAll);
  const Traffic grown = layer.traffic(grow);
  CHECK(grown.dram_write_bytes == 256);
  CHECK(grown.dram_read_bytes == 262144 - 256);
}

TEST_CASE("metadata read beyond what the step wrote comes from DRAM") {
  const OneLayer layer;
  Work work;
  work.add_stage("update", Boundary::kKernelLaunch).write(Tensor::kMetadata, 64, 10);
  work.add_stage("screen", Boundary::kKernelLaunch).read(Tensor::kMetadata, 64, 1000, 1000);
  const Traffic t = layer.traffic(work);
  CHECK(t.dram_read_bytes == 64 * 990);
  CHECK(t.dram_write_bytes == 0);
}

TEST_CASE("a second read in the same step hits while little came between") {
  const OneLayer layer;
  const auto twice = [&layer](double between) {
    Work work;
    work.add_stage("first", Boundary::kKernelLaunch)
        .read(Tensor::kK, 128, 2048, 2048, RowSet::kAll);
    if (between > 0) {
      work.add_stage("other", Boundary::kKernelLaunch).read(Tensor::kMetadata, between, 1, 1);
    }
    work.add_stage("again", Boundary::kKernelLaunch)
        .read(Tensor::kK, 128, 2048, 2048, RowSet::kAll);
    const Traffic t = layer.traffic(work);
    return t.stages.back().dram_read_bytes;
  };
  CHECK(twice(0) == 0);
  CHECK(twice(500000) == 0);
  CHECK(twice(2e6 - 262144) == Approx(262144 * (1 - 0.20319)).epsilon(1e-4));
  CHECK(twice(1e9) == 262144);
  // Other rows of K are other bytes.
  Work work;
  work.add_stage("some", Boundary::kKernelLaunch).read(Tensor::kK, 128, 20, 20);
  work.add_stage("others", Boundary::kKernelLaunch).read(Tensor::kK, 128, 20, 20);
  CHECK(layer.traffic(work).dram_read_bytes == 2 * 20 * 128);
}

TEST_CASE("a warm cache serves what fits and the fixed point of what does not") {
  const OneLayer layer;
  const Work work = dense_work(layer.shape());
  const Traffic cold = layer.traffic(work);
  Machine machine = small_machine();
  const Traffic fits = layer.traffic(work, CacheState::kWarm, machine);
  CHECK(fits.dram_read_bytes == 0);
  CHECK(fits.dram_write_bytes == 1024);  // the output leaves all the same
  CHECK(fits.requested_bytes == cold.requested_bytes);
  CHECK(fits.stages[0].cache_read_bytes == cold.stages[0].cache_read_bytes);

  const double footprint = cold.dram_read_bytes + cold.dram_write_bytes + 64 * 264;
  machine.cache_bytes = footprint / 2;
  const Traffic half = layer.traffic(work, CacheState::kWarm, machine);
  CHECK(half.dram_read_bytes == Approx(cold.dram_read_bytes * (1 - 0.20319)).epsilon(1e-4));
  machine.cache_bytes = footprint / 1e3;
  CHECK(layer.traffic(work, CacheState::kWarm, machine).dram_read_bytes >=
        cold.dram_read_bytes * 0.99);
  machine.cache_bytes = 0;
  CHECK(layer.traffic(work, CacheState::kWarm, machine).dram_by_tensor[index_of(Tensor::kK)] ==
        262144);

  double before = -1;  // a larger cache never reads more
  for (double share = 1.2; share > 0.05; share *= 0.93) {
    machine.cache_bytes = footprint * share;
    const double read = layer.traffic(work, CacheState::kWarm, machine).dram_read_bytes;
    CHECK(read >= before);
    before = read;
  }
}

TEST_CASE("traffic of steps adds up by stage") {
  const OneLayer layer;
  Work gather;
  gather.add_stage("gather", Boundary::kKernelLaunch).read(Tensor::kV, 128, 20, 20, RowSet::kVRows);
  Work blocks;
  blocks.add_stage("gather", Boundary::kKernelLaunch).read(Tensor::kV, 512, 20, 20, RowSet::kVRows);
  blocks.add_stage("merge", Boundary::kTicket).write(Tensor::kOutput, 64, 1);
  const Traffic a = layer.traffic(gather);
  const Traffic b = layer.traffic(blocks);
  Traffic sum;
  sum += a;
  sum += b;
  CHECK(sum.dram_read_bytes == a.dram_read_bytes + b.dram_read_bytes);
  REQUIRE(sum.stages.size() == 2);
  CHECK(sum.stages[0].gather_bytes == 20 * 640);
  // 20 runs of 128 B and 20 of 512 B have 320 B on average (but for the neighbours among them).
  CHECK(sum.stages[0].gather_row_bytes == Approx(320).epsilon(0.05));
  CHECK(sum.stages[1].dram_write_bytes == 64);
  CHECK(std::accumulate(sum.dram_by_tensor.begin(), sum.dram_by_tensor.end(), 0.0) ==
        sum.dram_read_bytes + sum.dram_write_bytes);
}

TEST_CASE("expected traffic of random rows agrees with their exact footprint") {
  const Machine machine = Presets().gpu("h200_sxm");
  const OneLayer layer({4096});
  RandomStream random{11};
  std::uint32_t next = 0;
  for (const LayoutKind kind : {LayoutKind::kHnd, LayoutKind::kNhd, LayoutKind::kPaged}) {
    for (const double row_bytes : {128.0, 40.0}) {
      for (const double density : {0.02, 0.3}) {
        std::vector<RowRanges> heads;
        double rows = 0;
        for (int head = 0; head < 2; ++head) {
          std::vector<std::int64_t> list;
          for (std::int64_t t = 0; t < 4096; ++t) {
            if (random.word(next++) < density * 4294967296.0) list.push_back(t);
          }
          rows += static_cast<double>(list.size());
          heads.push_back(RowRanges::of(list));
        }
        const CacheLayout layout{kind, 16};
        SelectionFootprint exact;
        exact.v = exact_footprint(heads, 4096, packed(row_bytes), layout, machine.memory);
        Shape shape = layer.shape();
        shape.kv_format.bits = static_cast<int>(row_bytes / 8);  // 64 elements
        Work work;
        work.add_stage("s", Boundary::kKernelLaunch)
            .read(Tensor::kV, row_bytes, rows, rows, RowSet::kVRows);
        const Traffic a = memory_traffic(work, shape, layout, CacheState::kCold, machine, &exact);
        const Traffic b = memory_traffic(work, shape, layout, CacheState::kCold, machine, nullptr);
        INFO(to_string(kind) << ", rows of " << row_bytes << ", density " << density);
        CHECK(b.dram_read_bytes == Approx(a.dram_read_bytes).epsilon(0.04));
        CHECK(b.sector_bytes == Approx(a.sector_bytes).epsilon(0.04));
        CHECK(b.stages[0].activations == Approx(a.stages[0].activations).epsilon(0.06));
        CHECK(a.requested_bytes == b.requested_bytes);
      }
    }
  }
}

TEST_CASE("V rows gathered from a latent cache: expected traffic agrees with the exact one") {
  const Machine machine = Presets().gpu("h200_sxm");
  const std::int64_t context = 4096;
  Shape shape;
  shape.contexts = {&context, 1};
  shape.q_heads = 16;
  shape.kv_heads = 1;
  shape.head_dim = 576;
  shape.v_head_dim = 512;
  shape.latent = true;
  std::vector<std::int64_t> list;
  for (std::int64_t t = 0; t < context; t += t % 3 == 0 ? 1 : 5) list.push_back(t);
  const std::vector<RowRanges> rows{RowRanges::of(list)};
  const auto n = static_cast<double>(list.size());
  Work work;
  work.add_stage("s", Boundary::kKernelLaunch)
      .read(Tensor::kV, shape.v_row_bytes(), n, n, RowSet::kVRows);
  SelectionFootprint exact;
  exact.v = exact_footprint(rows, context, {shape.v_row_bytes(), shape.v_stride_bytes()}, {},
                            machine.memory);
  CHECK(exact.v.runs == n);  // no two V rows adjoin
  const Traffic a = memory_traffic(work, shape, {}, CacheState::kCold, machine, &exact);
  const Traffic b = memory_traffic(work, shape, {}, CacheState::kCold, machine, nullptr);
  CHECK(a.dram_read_bytes == n * 1024);
  CHECK(b.dram_read_bytes == Approx(n * 1024).epsilon(1e-6));
  CHECK(a.stages[0].gather_row_bytes == 1024);
  CHECK(b.stages[0].gather_row_bytes == Approx(1024));
}

TEST_CASE("a paged cache costs its page numbers, once a kernel and sequence") {
  const OneLayer layer({1000, 24, 500});
  const CacheLayout paged{LayoutKind::kPaged, 16};
  constexpr double kPages = 63 + 2 + 32;
  Work work = dense_work(layer.shape());
  const Work plain = work;
  add_page_table(work, layer.shape(), {});
  CHECK(work.stages[0].accesses.size() == plain.stages[0].accesses.size());
  add_page_table(work, layer.shape(), paged);
  const Access& table = work.stages[0].accesses[work.stages[0].accesses.size() - 1];
  CHECK(table.tensor == Tensor::kPageTable);
  CHECK(table.bytes() == 4 * kPages);
  CHECK(table.requests == 2 * kPages);  // by either KV head
  CHECK(work.stages[0].dependent_trips == plain.stages[0].dependent_trips + 1);
  CHECK(work.stages[1].accesses.size() == plain.stages[1].accesses.size());  // reads no rows
  const Traffic with = layer.traffic(work);
  const Traffic without = layer.traffic(plain);
  CHECK(with.requested_bytes == without.requested_bytes + 4 * kPages);
  CHECK(with.dram_by_tensor[index_of(Tensor::kPageTable)] == 448);  // 388 B in whole atoms

  Work sparse;  // ten rows lie in ten pages at most; a stage of the same kernel keeps the numbers
  sparse.add_stage("first", Boundary::kKernelLaunch).read(Tensor::kK, 128, 10, 40, RowSet::kKRows);
  sparse.add_stage("then", Boundary::kTeamExchange).read(Tensor::kV, 128, 10, 40, RowSet::kVRows);
  add_page_table(sparse, layer.shape(), paged);
  REQUIRE(sparse.stages[0].accesses.size() == 2);
  CHECK(sparse.stages[0].accesses[1].rows == 10);
  CHECK(sparse.stages[1].accesses.size() == 1);

  Work chosen;  // the first stage that reads rows, whatever comes before in its kernel
  chosen.add_stage("choose", Boundary::kKernelLaunch).read(Tensor::kMetadata, 128, 10, 10);
  chosen.add_stage("read", Boundary::kTeamExchange).read(Tensor::kK, 128, 10, 40, RowSet::kKRows);
  chosen.add_stage("again", Boundary::kKernelLaunch).read(Tensor::kV, 128, 10, 40, RowSet::kVRows);
  add_page_table(chosen, layer.shape(), paged);
  CHECK(chosen.stages[0].accesses.size() == 1);
  CHECK(chosen.stages[1].accesses.size() == 2);
  CHECK(chosen.stages[2].accesses.size() == 2);
}

}  // namespace
}  // namespace kvsim
