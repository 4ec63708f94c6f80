#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "kernels/dense/cost.h"
#include "kernels/santa/cost.h"
#include "models/energy/energy.h"
#include "models/presets.h"
#include "tests/catch.h"

namespace kvsim {
namespace {

using testing::Approx;

constexpr double kBits = 8;

Estimate item(const EnergyReport& report, const std::string& name) {
  const auto found = std::find_if(report.items.begin(), report.items.end(),
                                  [&](const EnergyItem& i) { return i.item == name; });
  return found == report.items.end() ? exactly(0) : found->pj;
}

double share(const EnergyReport& report, const std::string& prefix) {
  double sum = 0;
  for (const EnergyItem& i : report.items) {
    if (i.item.rfind(prefix, 0) == 0) sum += i.pj.value;
  }
  return sum / report.total_pj.value;
}

TimeReport time_of(double us) {
  TimeReport report;
  report.total_us = exactly(us, Source::kMeasured);
  return report;
}

/// One stage that moves bytes, with the activations that they need.
Traffic moved(double read_bytes, double activations) {
  Traffic traffic;
  StageTraffic& stage = traffic.stages.emplace_back();
  stage.dram_read_bytes = stage.cache_read_bytes = read_bytes;
  stage.activations = activations;
  traffic.dram_read_bytes = read_bytes;
  return traffic;
}

/// A dense or sampling step of Llama-3.1-8B's attention at 32k on an int8 machine.
struct Step {
  Work work;
  Traffic traffic;
  EnergyReport energy;
};

Step run(const Implementation& implementation, const Statistics& statistics,
         const Machine& machine) {
  const std::int64_t context = 32768;
  Shape shape;
  shape.contexts = {&context, 1};
  shape.q_heads = 32;
  shape.kv_heads = 8;
  shape.head_dim = shape.v_head_dim = 128;
  shape.kv_format = {machine.element_bits, 0, 0};
  shape.activation_bytes = 1;
  Step step;
  step.work = implementation.work(shape, statistics, machine.limits);
  step.traffic =
      memory_traffic(step.work, shape, CacheLayout{}, CacheState::kCold, machine, nullptr);
  step.energy = energy(step.work, step.traffic, latency(step.work, step.traffic, machine), machine);
  return step;
}

Statistics all_rows() {
  Statistics s;
  s.k_rows = s.v_rows = 32768.0 * 8;
  s.k_requests = s.v_requests = s.draws = 32768.0 * 32;
  return s;
}

Statistics santa_rows() {
  Statistics s = all_rows();
  s.v_rows = 440 * 8;
  s.v_requests = 110 * 32;
  s.draws = 128 * 32;
  s.head_tiles = 60 * 32;
  s.group_tiles = 100 * 8;
  return s;
}

Step dense_step(const Machine& machine) {
  return run(*make_dense_cost("ours"), all_rows(), machine);
}

Step santa_step(const Machine& machine) {
  SantaCostModel model;
  model.random_words_per_head = 1;
  model.threshold_multiplies = 1;
  return run(*make_santa_cost(model), santa_rows(), machine);
}

void check_sums(const EnergyReport& report) {
  double low = 0, value = 0, high = 0, datapath = 0;
  for (const EnergyItem& i : report.items) {
    INFO(i.item);
    CHECK(std::isfinite(i.pj.high));
    CHECK(i.pj.low >= 0);
    CHECK(i.pj.low <= i.pj.value);
    CHECK(i.pj.value <= i.pj.high);
    low += i.pj.low;
    value += i.pj.value;
    high += i.pj.high;
    if (i.datapath) datapath += i.pj.value;
  }
  CHECK(report.total_pj.low == Approx(low));
  CHECK(report.total_pj.value == Approx(value));
  CHECK(report.total_pj.high == Approx(high));
  CHECK(report.datapath_pj.value == Approx(datapath));
  CHECK(report.total_pj.value >= report.datapath_pj.value);
}

TEST_CASE("streaming K of one head from HBM3 costs what AttAcc's constants give") {
  // L 2048, d 128, fp16: 4.19 Mbit x 3.59 pJ/bit = 15.1 uJ.
  const Machine machine = Presets().accelerator("mac_int8", "7", "hbm3");
  const double bytes = 2048.0 * 128 * 2;
  const EnergyReport report =
      energy(Work{}, moved(bytes, bytes / machine.memory.row_bytes), time_of(0), machine);
  CHECK(item(report, "dram read").value == Approx(15.06e6).epsilon(0.01));
  CHECK(item(report, "dram activate").value == 0);
}

TEST_CASE("scattered rows pay their activations, whole rows do not pay twice") {
  // HBM2 after O'Connor, MICRO 2017: 3.48 pJ/bit and 909 pJ per 1 KB row activated.
  Machine machine = Presets().accelerator("mac_int8", "45", "hbm2");
  machine.memory.read_pj_per_bit = exactly(3.48 + 909.0 / 8192);
  machine.memory.activate_pj = exactly(909);
  struct Point {
    double row_bytes;
    double pj_per_bit;
  };
  for (const Point& point : {Point{32, 7.03}, Point{64, 5.26}, Point{128, 4.37}, Point{256, 3.92},
                             Point{512, 3.70}, Point{1024, 3.59}}) {
    INFO(point.row_bytes);
    const double bytes = 1 << 20;
    const EnergyReport report =
        energy(Work{}, moved(bytes, bytes / point.row_bytes), time_of(0), machine);
    const double dram = item(report, "dram read").value + item(report, "dram activate").value;
    CHECK(dram / (bytes * kBits) == Approx(point.pj_per_bit).epsilon(0.002));
  }
}

TEST_CASE("fewer activations than whole rows need are never paid back") {
  const Machine machine = Presets().accelerator("mac_int8", "7", "");
  CHECK(item(energy(Work{}, moved(1 << 20, 0), time_of(0), machine), "dram activate").value == 0);
}

TEST_CASE("static power is paid for as long as the step takes") {
  const Machine machine = Presets().accelerator("adder_value", "7", "");
  const EnergyReport report = energy(Work{}, Traffic{}, time_of(100), machine);
  CHECK(item(report, "static").value == Approx(machine.static_w.value * 100e6));  // W us = 10^6 pJ
  CHECK(report.datapath_pj.value == 0);
}

TEST_CASE("operations are itemised by phase, and a fixed shift is free") {
  const Machine machine = Presets().accelerator("adder_value", "7", "");
  Work work;
  Stage& stage = work.add_stage("all", Boundary::kKernelLaunch);
  stage.count(Op::kAdd, Phase::kValue, 1000);
  stage.count(Op::kAdd, Phase::kValue, 500);
  stage.count(Op::kShift, Phase::kMerge, 64);
  stage.count(Op::kExp, Phase::kSoftmax, 0);
  const EnergyReport report = energy(work, Traffic{}, time_of(0), machine);
  const Estimate& add = machine.op(Op::kAdd, Phase::kValue).pj;
  CHECK(item(report, "value add").value == Approx(1500 * add.value));
  CHECK(item(report, "merge shift").value == 0);
  CHECK(report.datapath_pj.value == Approx(1500 * add.value));
  CHECK(std::none_of(report.items.begin(), report.items.end(),
                     [](const EnergyItem& i) { return i.item == "softmax exp"; }));
  check_sums(report);
}

TEST_CASE("control around an adder costs what it costs around a multiply-accumulate") {
  const Machine adder = Presets().accelerator("adder_value", "7", "");
  const Machine mac = Presets().accelerator("mac_int8", "7", "");
  Work work;
  work.add_stage("adds", Boundary::kKernelLaunch).count(Op::kAdd, Phase::kValue, 1000);
  const EnergyReport a = energy(work, Traffic{}, time_of(0), adder);
  const EnergyReport m = energy(work, Traffic{}, time_of(0), mac);
  CHECK(item(a, "core overhead").value == Approx(item(m, "core overhead").value));
  // Share 0.25: three times a score MAC per lane cycle; 0.5 and 0.12 bound it.
  const Estimate lane =
      mac.op(Op::kMultiply, Phase::kScore).pj + mac.op(Op::kAdd, Phase::kScore).pj;
  CHECK(item(m, "core overhead").value == Approx(3 * 1000 * lane.value));
  CHECK(item(m, "core overhead").low == Approx(1000 * lane.low));
  CHECK(item(m, "core overhead").high == Approx((1 / 0.12 - 1) * 1000 * lane.high));
}

TEST_CASE("a GPU's measured energies contain registers, control and cache fills") {
  Machine gpu;
  gpu.memory.read_pj_per_bit = exactly(7);
  gpu.cache_read_pj_per_bit = exactly(3);
  gpu.cache_write_pj_per_bit = exactly(3);
  gpu.static_w = exactly(114);
  gpu.overhead_share = exactly(0.25);
  gpu.ops[static_cast<std::size_t>(Op::kAdd)][static_cast<std::size_t>(Phase::kValue)].pj =
      exactly(8);
  Work work;
  work.add_stage("adds", Boundary::kKernelLaunch).count(Op::kAdd, Phase::kValue, 10);
  const EnergyReport report = energy(work, moved(1000, 1), time_of(2), gpu);
  CHECK(item(report, "dram read").value == Approx(7 * 8000));
  CHECK(item(report, "cache read").value == Approx(3 * 8000));
  CHECK(item(report, "cache write").value == 0);
  CHECK(item(report, "core overhead").value == 0);
  CHECK(item(report, "value add").value == 80);
  CHECK(report.total_pj.value == Approx(7 * 8000 + 3 * 8000 + 80 + 114 * 2e6));
}

TEST_CASE("a dense 32k step: DRAM dominates, the datapath is a few percent") {
  for (const char* node : {"45", "7"}) {
    for (const char* name : {"mac_int8", "adder_value"}) {
      INFO(name << " " << node);
      const Step step = dense_step(Presets().accelerator(name, node, "hbm3e"));
      check_sums(step.energy);
      CHECK(item(step.energy, "dram read").value ==
            Approx(2 * 32768.0 * 8 * 128 * kBits * 5.8).epsilon(1e-3));
      CHECK(share(step.energy, "dram") > 0.4);
      CHECK(step.energy.datapath_pj.value / step.energy.total_pj.value < 0.05);
    }
  }
  CHECK(share(dense_step(Presets().accelerator("mac_int8", "7", "hbm3e")).energy, "dram") > 0.75);
}

TEST_CASE("sampling values saves bytes; the missing multiplier saves next to nothing") {
  const Machine mac = Presets().accelerator("mac_int8", "7", "");
  const Machine adder = Presets().accelerator("adder_value", "7", "");
  const Step dense_on_mac = dense_step(mac);
  const Step santa_on_mac = santa_step(mac);
  const Step santa_on_adder = santa_step(adder);
  check_sums(santa_on_adder.energy);
  CHECK(dense_on_mac.energy.total_pj.value / santa_on_mac.energy.total_pj.value > 1.8);
  const double value_stage =
      item(santa_on_mac.energy, "value add").value / item(santa_on_adder.energy, "value add").value;
  CHECK(value_stage > 1.4);
  CHECK(value_stage < 1.9);
  const double whole = santa_on_mac.energy.total_pj.value / santa_on_adder.energy.total_pj.value;
  CHECK(whole >= 1);
  CHECK(whole < 1.01);
  // Gathered V rows pay activations, streamed K does not.
  CHECK(item(santa_on_adder.energy, "dram activate").value > 0);
  CHECK(item(dense_on_mac.energy, "dram activate").value <
        1e-3 * item(dense_on_mac.energy, "dram read").value);
}

TEST_CASE("dense attention is slow and dear where it must multiply by adding") {
  const EnergyReport mac = dense_step(Presets().accelerator("mac_int8", "7", "")).energy;
  const EnergyReport adder = dense_step(Presets().accelerator("adder_value", "7", "")).energy;
  CHECK(item(adder, "value multiply").value > 5 * item(mac, "value multiply").value);
  CHECK(adder.total_pj.value > mac.total_pj.value);
}

TEST_CASE("a sampler's adds cost a GPU fp32 adds, dense attention's tensor-core work") {
  const Machine h200 = Presets().gpu("h200_sxm");
  const double adds = (128 * 32 - 32) * 128.0;
  CHECK(item(santa_step(h200).energy, "value add").value == Approx(adds * 4.7));
  const double dense_adds = (32768.0 * 32 - 32) * 128;
  CHECK(item(dense_step(h200).energy, "value add").value == Approx(dense_adds * 0.52));
}

}  // namespace
}  // namespace kvsim
