#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "models/presets.h"
#include "models/time/latency.h"
#include "tests/catch.h"

// The measured times are of kvsim's own prototype kernels on an H200 (CUDA graph, cold KV,
// medians). stream_ramp and ticket of the preset are calibrated on the dense rows up to 32k, the
// gather share of 8 KB pieces on the ETA row; the rest (64k, 128k, the batch, sampling) is held
// out.

namespace kvsim {
namespace {

using testing::Approx;

const Machine& h200() {
  static const Machine machine = Presets().gpu("h200_sxm");
  return machine;
}

struct Case {
  int batch;
  std::int64_t context;
  int q_heads;
  int kv_heads;
  int head_dim;
  double measured_us;
};

class Layer {
 public:
  explicit Layer(const Case& c) : contexts_(static_cast<std::size_t>(c.batch), c.context) {
    shape_.contexts = contexts_;
    shape_.q_heads = c.q_heads;
    shape_.kv_heads = c.kv_heads;
    shape_.head_dim = shape_.v_head_dim = c.head_dim;
  }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  const Shape& shape() const { return shape_; }
  double rows() const { return shape_.total_context() * shape_.kv_heads; }
  double requests() const { return shape_.total_context() * shape_.q_heads; }

  /// 16 CTAs for each of 8 KV heads, as the prototypes ran: one CTA per SM.
  double ctas() const {
    const double teams = shape_.batch() * shape_.kv_heads;
    return teams >= 132 ? 132 : teams * std::floor(132 / teams);
  }
  void add_merge(Work& work) const {
    const double partials = ctas() * shape_.group();
    const double bytes = 4.0 * (shape_.v_head_dim + 2);
    work.stages.back().write(Tensor::kPartial, bytes, partials);
    Stage& merge = work.add_stage("merge", Boundary::kTicket);
    merge.read(Tensor::kPartial, bytes, partials, partials);
    merge.write(Tensor::kOutput, shape_.output_bytes(), 1);
  }
  TimeReport time(const Work& work, const Machine& machine) const {
    const Traffic traffic = memory_traffic(work, shape_, {}, CacheState::kCold, machine, nullptr);
    CHECK(latency_us(work, traffic, machine).value ==
          Approx(latency(work, traffic, machine).total_us.value));
    return latency(work, traffic, machine);
  }

 private:
  std::vector<std::int64_t> contexts_;
  Shape shape_;
};

Work dense_work(const Layer& layer) {
  const Shape& shape = layer.shape();
  Work work;
  Stage& stream = work.add_stage("stream_kv", Boundary::kKernelLaunch);
  stream.launch = {layer.ctas(), 132};
  stream.read(Tensor::kQuery, shape.query_bytes(), 1, 1);
  stream.read(Tensor::kK, shape.k_row_bytes(), layer.rows(), layer.requests(), RowSet::kAll);
  stream.read(Tensor::kV, shape.v_row_bytes(), layer.rows(), layer.requests(), RowSet::kAll);
  stream.count(Op::kMultiply, Phase::kScore, layer.requests() * shape.head_dim);
  stream.count(Op::kAdd, Phase::kScore, layer.requests() * shape.head_dim);
  stream.count(Op::kExp, Phase::kSoftmax, layer.requests());
  stream.count(Op::kMultiply, Phase::kValue, layer.requests() * shape.v_head_dim);
  stream.count(Op::kAdd, Phase::kValue, layer.requests() * shape.v_head_dim);
  layer.add_merge(work);
  return work;
}

/// SANTA with systematic sampling: K streamed, masses exchanged inside a team, drawn rows gathered.
Work santa_work(const Layer& layer, double v_rows) {
  const Shape& shape = layer.shape();
  Work work;
  Stage& stream = work.add_stage("stream_k", Boundary::kKernelLaunch);
  stream.launch = {layer.ctas(), 132};
  stream.read(Tensor::kQuery, shape.query_bytes(), 1, 1);
  stream.read(Tensor::kK, shape.k_row_bytes(), layer.rows(), layer.requests(), RowSet::kAll);
  Stage& gather = work.add_stage("gather_v", Boundary::kTeamExchange);
  gather.launch = stream.launch;
  gather.dependent_trips = 1;
  gather.read(Tensor::kV, shape.v_row_bytes(), v_rows, v_rows, RowSet::kVRows);
  layer.add_merge(work);
  return work;
}

void check_prediction(const std::string& what, const Estimate& us, double measured_us,
                      double error) {
  INFO(fmt::format("{}: predicted {:.2f} us [{:.2f}, {:.2f}], measured {}", what, us.value, us.low,
                   us.high, measured_us));
  CHECK(us.low <= measured_us);
  CHECK(us.high >= measured_us);
  CHECK(us.value == Approx(measured_us).epsilon(error));
}

TEST_CASE("H200: dense attention takes what was measured") {
  const Case cases[] = {
      {1, 4096, 32, 8, 128, 7.98},   {1, 8192, 32, 8, 128, 11.5},    {1, 32768, 32, 8, 128, 33.5},
      {1, 65536, 32, 8, 128, 62.9},  {1, 131072, 32, 8, 128, 120.4}, {1, 32768, 28, 4, 128, 19.4},
      {6, 30720, 32, 8, 128, 171.5},
  };
  for (const Case& c : cases) {
    const Layer layer(c);
    check_prediction(fmt::format("dense {} x {}", c.batch, c.context),
                     layer.time(dense_work(layer), h200()).total_us, c.measured_us, 0.06);
  }
}

TEST_CASE("H200: sampled attention takes what was measured") {
  const Layer canon({1, 32768, 32, 8, 128, 0});
  // 32 heads draw 128 of 32768 rows each; a group's draws overlap.
  check_prediction("santa-sys", canon.time(santa_work(canon, 3500), h200()).total_us, 21.95, 0.06);
}

TEST_CASE("H200: blocks of 8 KB at 16 % density take what was measured") {
  const Layer layer({64, 65536, 32, 4, 64, 0});
  const double metadata = 67.1e6;
  Work work;
  Stage& stage = work.add_stage("screen_and_attend", Boundary::kKernelLaunch);
  stage.launch = {132, 132};
  stage.read(Tensor::kMetadata, 260, metadata / 260, metadata / 260);
  const double blocks = 0.157 * layer.rows() / 64;
  stage.read(Tensor::kK, 64 * 128, blocks, blocks, RowSet::kKRows);
  stage.read(Tensor::kV, 64 * 128, blocks, blocks, RowSet::kVRows);
  layer.add_merge(work);
  work.stages.back().before = Boundary::kKernelLaunch;
  check_prediction("ETA-like", layer.time(work, h200()).total_us, 175, 0.08);
}

TEST_CASE("H200: bare read and gather kernels lie inside the interval") {
  const Layer layer({1, 1, 1, 1, 128, 0});
  const auto read = [&layer](double mib) {
    Work work;
    work.add_stage("read", Boundary::kKernelLaunch).read(Tensor::kMetadata, mib * 1048576, 1, 1);
    return layer.time(work, h200()).total_us;
  };
  const std::pair<double, double> reads[] = {{16, 5.64},  {32, 9.6},   {64, 16.8},
                                             {128, 30.9}, {256, 61.0}, {512, 117}};
  for (const auto& [mib, measured] : reads) check_prediction("read", read(mib), measured, 0.13);

  const Layer table({1, 4194304, 1, 1, 128, 0});  // 1 GiB of 256 B rows
  const std::pair<double, double> gathers[] = {{4096, 2.25}, {16384, 3.32}, {65536, 7.24}};
  for (const auto& [rows, measured] : gathers) {
    Work work;
    work.add_stage("gather", Boundary::kKernelLaunch)
        .read(Tensor::kV, 256, rows, rows, RowSet::kVRows);
    check_prediction("gather", table.time(work, h200()).total_us, measured, 0.28);
  }
}

TEST_CASE("a stage's terms are named, limited and add up") {
  const Layer canon({1, 32768, 32, 8, 128, 0});
  const TimeReport report = canon.time(santa_work(canon, 3500), h200());
  std::vector<std::string> names;
  Estimate sum = exactly(0);
  for (const TimeTerm& term : report.terms) {
    names.push_back(term.stage);
    sum += term.us;
  }
  CHECK(names == std::vector<std::string>{"stream_k: kernel_launch", "stream_k",
                                          "gather_v: team_exchange", "gather_v: round_trips",
                                          "gather_v", "merge: ticket", "merge"});
  CHECK(sum.value == Approx(report.total_us.value));
  CHECK(sum.low == Approx(report.total_us.low));
  CHECK(sum.high == Approx(report.total_us.high));
  CHECK(report.terms[0].limit == Limit::kLatency);
  CHECK(report.terms[1].limit == Limit::kDram);
  CHECK(report.terms[6].limit == Limit::kLatency);
  CHECK(to_string(Limit::kCache) == "l2");
  CHECK(to_string(Limit::kCompute) == "compute");
}

/// A machine whose times are easy to add up by hand.
Machine simple_machine() {
  Machine machine;
  machine.limits.sms = 4;
  machine.memory.atom_bytes = 32;
  machine.memory.stream = {exactly(2), exactly(1)};  // 1000 B/us
  machine.memory.gather_ramp_us = exactly(3);
  machine.memory.gather_row_bytes = {64, 256};
  machine.memory.gather_share = {exactly(0.5), exactly(1)};
  machine.cache_bytes = 1e6;
  machine.cache = {exactly(0.25), exactly(10)};  // 10000 B/us
  machine.boundary_us = {exactly(1), exactly(0.5), exactly(0.3), exactly(0.2)};
  machine.round_trip_us = exactly(0.75);
  machine.load_warps = {32, 64};
  machine.load_round_us = {exactly(1), exactly(2)};
  machine.cache_trip_us = exactly(0.25);
  machine.cycle_us = exactly(0.001);
  return machine;
}

Estimate simple_time(const Stage& stage, const Machine& machine) {
  const Layer layer({1, 1000, 1, 1, 32, 0});
  Work work;
  work.stages.push_back(stage);
  return layer.time(work, machine).total_us;
}

TEST_CASE("streams, gathers, writes and cache hits by hand") {
  const Machine machine = simple_machine();
  Stage stage;
  stage.name = "s";
  stage.read(Tensor::kMetadata, 1000, 8, 8);
  CHECK(simple_time(stage, machine).value == Approx(1 + 2 + 8));
  stage.imbalance = 1.5;  // stretches the bytes, not the ramp
  CHECK(simple_time(stage, machine).value == Approx(1 + 2 + 12));
  stage.imbalance = 1;
  stage.dependent_trips = 2;
  CHECK(simple_time(stage, machine).value == Approx(1 + 2 + 8 + 1.5));
  stage.dependent_trips = 0;
  stage.cache_trips = 2;  // 0.25 us each
  CHECK(simple_time(stage, machine).value == Approx(1 + 2 + 8 + 0.5));
  stage.cache_trips = 0;
  stage.load_rounds = 8;  // beside the bytes, which take longer
  CHECK(simple_time(stage, machine).value == Approx(1 + 2 + 8));
  stage.load_rounds = 12;  // the first comes with the ramp
  CHECK(simple_time(stage, machine).value == Approx(1 + 2 + 11));
  stage.load_warps = 40;  // 1.25 us each
  CHECK(simple_time(stage, machine).value == Approx(1 + 2 + 11 * 1.25));
  stage.load_warps = 80;
  CHECK(simple_time(stage, machine).value == Approx(1 + 2 + 11 * 2));
  stage.load_warps = 8;
  CHECK(simple_time(stage, machine).value == Approx(1 + 2 + 11));
  stage.round_cycles = 250;  // which the next loads wait for
  CHECK(simple_time(stage, machine).value == Approx(1 + 2 + 11 + 12 * 0.25));
  stage.round_cycles = 0;
  stage.load_rounds = 0;
  stage.chain_cycles = 4000;
  CHECK(simple_time(stage, machine).value == Approx(1 + 2 + 8 + 4));
  stage.chain_cycles = 0;
  // A block takes 1.5 us, its rows' load 1 us of these; the first is there after 2 + 1 us.
  stage.followers = {.blocks = 3,
                     .chain_cycles = 1500,
                     .hidden_cycles = 500,
                     .load_rounds = 1,
                     .first_bytes = 1000,
                     .bytes_under_way = 1000};
  CHECK(simple_time(stage, machine).value == Approx(1 + 2 + 8 + 2));  // the last, 1 + 1 us
  stage.followers.blocks = 5.5;  // 3.5 of them in the 7 us that still stream
  CHECK(simple_time(stage, machine).value == Approx(1 + 2 + 8 + 2 * 2));
  stage.followers.bytes_under_way = 6000;  // 1 us, then 6 us behind them: only one
  CHECK(simple_time(stage, machine).value == Approx(1 + 2 + 8 + 4.5 * 2));
  stage.followers.load_rounds = 2;  // 13 us beside the stream, 3 after
  CHECK(simple_time(stage, machine).value == Approx(1 + 2 + 8 + (5.5 - 7.0 / 13) * 3));
  stage.followers = {};
  stage.boundaries = 3;
  CHECK(simple_time(stage, machine).value == Approx(3 + 2 + 8));
  stage.boundaries = 1;
  stage.before = Boundary::kTeamExchange;  // the kernel runs already: one round trip, no ramp
  CHECK(simple_time(stage, machine).value == Approx(0.3 + 0.75 + 8));
  stage.write(Tensor::kOutput, 2000, 1);
  CHECK(simple_time(stage, machine).value == Approx(0.3 + 0.75 + 10.016));  // 2016 B in whole atoms

  Stage gather;
  gather.name = "g";
  gather.read(Tensor::kV, 64, 10, 10, RowSet::kVRows);
  // 10 of 1000 rows: hardly any neighbours, so half the rate.
  CHECK(simple_time(gather, machine).value == Approx(1 + 3 + 2 * 0.64).epsilon(0.02));

  Stage write;
  write.name = "w";
  write.write(Tensor::kOutput, 3200, 1);
  CHECK(simple_time(write, machine).value == Approx(1 + 3.2));  // nobody waits for a write's ramp
}

TEST_CASE("a gather starts no earlier than a stream") {
  Machine machine = simple_machine();
  machine.memory.gather_ramp_us = exactly(0.1);
  Stage gather;
  gather.name = "g";
  gather.read(Tensor::kV, 64, 10, 10, RowSet::kVRows);
  CHECK(simple_time(gather, machine).value == Approx(1 + 2 + 2 * 0.64).epsilon(0.02));
}

TEST_CASE("operations of one unit add up, units overlap, idle SMs and waves cost") {
  Machine machine = simple_machine();
  const auto set = [&machine](Op op, double per_us, int unit) {
    machine.ops[static_cast<std::size_t>(op)][0] = {exactly(1), exactly(per_us), "x", unit};
  };
  set(Op::kMultiply, 100, 0);
  set(Op::kAdd, 100, 0);
  set(Op::kExp, 50, 1);
  Stage stage;
  stage.name = "s";
  stage.count(Op::kMultiply, Phase::kScore, 1000);
  stage.count(Op::kAdd, Phase::kScore, 500);
  CHECK(simple_time(stage, machine).value == Approx(1 + 15));
  stage.count(Op::kExp, Phase::kScore, 600);
  CHECK(simple_time(stage, machine).value == Approx(1 + 15));
  stage.count(Op::kExp, Phase::kScore, 600);
  CHECK(simple_time(stage, machine).value == Approx(1 + 24));
  stage.launch = {2, 4};  // two of four SMs
  CHECK(simple_time(stage, machine).value == Approx(1 + 48));
  stage.launch = {6, 4};  // one and a half waves take two
  CHECK(simple_time(stage, machine).value == Approx(1 + 32));
  set(Op::kExp, 50, -1);
  CHECK(simple_time(stage, machine).value == Approx(1 + 20));  // each count on a unit of its own
  set(Op::kExp, 0, -1);                                        // not a limit
  CHECK(simple_time(stage, machine).value == Approx(1 + 20));
}

TEST_CASE("intervals follow the constants") {
  Machine machine = simple_machine();
  machine.memory.stream.gb_per_s = {1, 0.8, 1.25, Source::kMeasured};
  machine.memory.stream.ramp_us = {2, 1, 4, Source::kAssumed};
  Stage stage;
  stage.name = "s";
  stage.read(Tensor::kMetadata, 1000, 8, 8);
  const Estimate us = simple_time(stage, machine);
  CHECK(us.value == Approx(11));
  CHECK(us.low == Approx(1 + 1 + 6.4));
  CHECK(us.high == Approx(1 + 4 + 10));
  CHECK(us.source == Source::kAssumed);
}

}  // namespace
}  // namespace kvsim
