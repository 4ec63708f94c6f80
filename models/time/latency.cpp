#include "models/time/latency.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"

namespace kvsim {
namespace {

constexpr Estimate kNothing = exactly(0, Source::kSpec);

/// A stage's time in one level: what passes before the first byte, and the bytes or operations.
struct LevelTime {
  Estimate ramp_us = kNothing;
  Estimate busy_us = kNothing;
  Estimate total() const { return ramp_us + busy_us; }
};

Estimate transfer_us(double bytes, const Estimate& gb_per_s) {
  if (bytes <= 0 || gb_per_s.value <= 0) return kNothing;
  constexpr double kBytesPerUsOfGbPerS = 1e3;
  return exactly(bytes / kBytesPerUsOfGbPerS, Source::kSpec) / gb_per_s;
}

/// Linear in the logarithm of the row size between points; shorter rows than the first point still
/// cost what that point's cost.
Estimate gather_share(const MemorySystem& memory, double row_bytes) {
  const std::vector<double>& x = memory.gather_row_bytes;
  const std::vector<Estimate>& y = memory.gather_share;
  if (x.empty()) return exactly(1, Source::kSpec);
  if (row_bytes <= x.front()) return y.front() * (row_bytes / x.front());
  if (row_bytes >= x.back()) return y.back();
  const auto i =
      static_cast<std::size_t>(std::upper_bound(x.begin(), x.end(), row_bytes) - x.begin());
  const double weight = std::log(row_bytes / x[i - 1]) / std::log(x[i] / x[i - 1]);
  return y[i - 1] * (1 - weight) + y[i] * weight;
}

Estimate larger(const Estimate& a, const Estimate& b) { return a.value >= b.value ? a : b; }
Estimate smaller(const Estimate& a, const Estimate& b) { return a.value <= b.value ? a : b; }

Estimate ramp_of(const Estimate& ramp_us, const Stage& stage, const Machine& machine) {
  return stage.before == Boundary::kKernelLaunch ? ramp_us
                                                 : smaller(ramp_us, machine.round_trip_us);
}

LevelTime dram_time(const Stage& stage, const StageTraffic& traffic, const Machine& machine) {
  const MemorySystem& memory = machine.memory;
  const Estimate& rate = memory.stream.gb_per_s;
  LevelTime time;
  time.busy_us = transfer_us(traffic.stream_bytes + traffic.dram_write_bytes, rate);
  if (traffic.gather_bytes > 0) {
    time.busy_us +=
        transfer_us(traffic.gather_bytes, rate * gather_share(memory, traffic.gather_row_bytes));
  }
  time.busy_us = time.busy_us * stage.imbalance;
  // Nobody waits for writes, so only reads have a ramp.
  Estimate ramp = kNothing;
  // A kernel that waits for a row's index first is no earlier than one that streams.
  if (traffic.dram_read_bytes > 0) ramp = memory.stream.ramp_us;
  if (traffic.gather_bytes > 0) ramp = larger(ramp, memory.gather_ramp_us);
  time.ramp_us = ramp_of(ramp, stage, machine);
  return time;
}

LevelTime cache_time(const Stage& stage, const StageTraffic& traffic, const Machine& machine) {
  const double bytes = traffic.cache_read_bytes + traffic.cache_write_bytes;
  if (bytes <= 0) return {};
  return {ramp_of(machine.cache.ramp_us, stage, machine),
          transfer_us(bytes, machine.cache.gb_per_s) * stage.imbalance};
}

/// How much longer than with every unit busy: a grid smaller than the device leaves SMs idle, a
/// last wave that is not full leaves them idle for its time.
double idle_factor(const LaunchShape& launch, const Machine& machine) {
  if (launch.ctas <= 0) return 1;
  double factor = std::max(1.0, machine.limits.sms / launch.ctas);
  if (launch.ctas_per_wave > 0 && launch.ctas > launch.ctas_per_wave) {
    const double waves = launch.ctas / launch.ctas_per_wave;
    factor *= std::ceil(waves) / waves;
  }
  return factor;
}

/// Plain sums instead of estimates: this is the hot loop of a sweep.
struct UnitTime {
  int unit;
  double value;
  double low;
  double high;
  Source source;
};

LevelTime compute_time(const Stage& stage, const Machine& machine) {
  // More than a stage holds; not cleared, as this is the hot loop of a sweep.
  std::array<UnitTime, kOps * kPhases> units;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  std::size_t used = 0;
  for (const OpCount& item : stage.ops) {
    const OpCost& cost = machine.op(stage, item);
    const Estimate& rate = cost.per_us;
    if (item.count <= 0 || rate.value <= 0) continue;
    std::size_t i = used;
    if (cost.unit >= 0) {
      for (i = 0; i < used && units[i].unit != cost.unit;) ++i;
    }
    if (i == used) units[used++] = {cost.unit, 0, 0, 0, rate.source};
    units[i].value += item.count / rate.value;
    units[i].low += item.count / rate.high;
    units[i].high += item.count / rate.low;
    units[i].source = std::max(units[i].source, rate.source);
  }
  Estimate longest = kNothing;
  for (std::size_t i = 0; i < used; ++i) {
    const UnitTime& u = units[i];
    longest = max(longest, {u.value, u.low, u.high, u.source});
  }
  return {kNothing, longest * (stage.imbalance * idle_factor(stage.launch, machine))};
}

/// Linear between points, as at the last one beyond them.
Estimate load_round(const Machine& machine, double warps) {
  const std::vector<double>& x = machine.load_warps;
  const std::vector<Estimate>& y = machine.load_round_us;
  if (warps <= x.front()) return y.front();
  if (warps >= x.back()) return y.back();
  const auto i = static_cast<std::size_t>(std::upper_bound(x.begin(), x.end(), warps) - x.begin());
  const double weight = (warps - x[i - 1]) / (x[i] - x[i - 1]);
  return y[i - 1] * (1 - weight) + y[i] * weight;
}

/// One warp's loads, round after round: the first arrives when the stage's first byte does. So few
/// bytes under way limit the bandwidth to bytes / latency, whatever the memory could deliver.
LevelTime load_time(const Stage& stage, const StageTraffic& traffic, const Machine& machine) {
  if (stage.load_rounds <= 0) return {};
  const Estimate round = load_round(machine, stage.load_warps);
  if (round.value <= 0) return {};
  const bool starts = stage.before == Boundary::kKernelLaunch;
  const Estimate& ramp =
      traffic.dram_read_bytes > 0 ? machine.memory.stream.ramp_us : machine.cache.ramp_us;
  const Estimate first = starts ? larger(ramp, round) : round;
  return {first, round * std::max(0.0, stage.load_rounds - 1) +
                     machine.cycle_us * (stage.load_rounds * stage.round_cycles)};
}

/// What followers need after the stage's last byte: the last block, and those that they are behind
/// by then because a block took them longer than it took to come.
Estimate follow_time(const Stage& stage, const Estimate& stream_us, const Machine& machine) {
  const Followers& f = stage.followers;
  if (f.blocks <= 0) return kNothing;
  const Estimate& rate = machine.memory.stream.gb_per_s;
  const auto block_us = [&](const Estimate& load_us) {
    const Estimate first = max(machine.cycle_us * f.hidden_cycles, load_us);
    return machine.cycle_us * (f.chain_cycles - f.hidden_cycles) + first +
           load_us * std::max(0.0, f.load_rounds - 1);
  };
  const Estimate load_us = load_round(machine, stage.load_warps);
  const Estimate arrival = machine.memory.stream.ramp_us + transfer_us(f.first_bytes, rate);
  const Estimate beside = block_us(max(load_us, transfer_us(f.bytes_under_way, rate)));
  const double streaming_us = std::max(0.0, stream_us.value - arrival.value);
  const double done = beside.value > 0 ? streaming_us / beside.value : f.blocks;
  return block_us(load_us) * std::max(std::min(1.0, f.blocks), f.blocks - done);
}

/// Calls visit(suffix, limit, us) for every term of a stage.
template <typename Visitor>
void for_each_term(const Stage& stage, const StageTraffic& traffic, const Machine& machine,
                   const Visitor& visit) {
  visit(to_string(stage.before), Limit::kLatency,
        machine.boundary(stage.before) * stage.boundaries);
  if (stage.dependent_trips > 0) {
    visit("round_trips", Limit::kLatency, machine.round_trip_us * stage.dependent_trips);
  }
  if (stage.cache_trips > 0) {
    visit("cache_trips", Limit::kLatency, machine.cache_trip_us * stage.cache_trips);
  }
  if (stage.chain_cycles > 0) {
    visit("instructions", Limit::kLatency, machine.cycle_us * stage.chain_cycles);
  }
  struct Level {
    Limit limit = Limit::kLatency;
    LevelTime time;
  };
  const std::array<Level, 4> levels{{{Limit::kDram, dram_time(stage, traffic, machine)},
                                     {Limit::kCache, cache_time(stage, traffic, machine)},
                                     {Limit::kCompute, compute_time(stage, machine)},
                                     {Limit::kLatency, load_time(stage, traffic, machine)}}};
  const Level* slowest = &levels[0];
  Estimate us = levels[0].time.total();
  for (const Level& level : levels) {
    const Estimate total = level.time.total();
    if (total.value > us.value) slowest = &level;
    us = max(us, total);
  }
  const LevelTime& time = slowest->time;
  visit("", time.ramp_us.value > time.busy_us.value ? Limit::kLatency : slowest->limit, us);
  visit("followers", Limit::kLatency, follow_time(stage, us, machine));
}

}  // namespace

std::string_view to_string(Limit limit) {
  constexpr std::array<std::string_view, 4> kNames{"dram", "l2", "compute", "latency"};
  return kNames[static_cast<std::size_t>(limit)];
}

TimeReport latency(const Work& work, const Traffic& traffic, const Machine& machine) {
  KVSIM_CHECK(traffic.stages.size() == work.stages.size());
  TimeReport report;
  report.total_us = kNothing;
  for (std::size_t i = 0; i < work.stages.size(); ++i) {
    const Stage& stage = work.stages[i];
    for_each_term(
        stage, traffic.stages[i], machine,
        [&](std::string_view suffix, Limit limit, const Estimate& us) {
          if (us.high <= 0) return;
          report.terms.push_back(
              {suffix.empty() ? std::string(stage.name) : fmt::format("{}: {}", stage.name, suffix),
               limit, us});
          report.total_us += us;
        });
  }
  return report;
}

Estimate latency_us(const Work& work, const Traffic& traffic, const Machine& machine) {
  KVSIM_CHECK(traffic.stages.size() == work.stages.size());
  Estimate total = kNothing;
  for (std::size_t i = 0; i < work.stages.size(); ++i) {
    for_each_term(work.stages[i], traffic.stages[i], machine,
                  [&](std::string_view, Limit, const Estimate& us) {
                    if (us.high > 0) total += us;
                  });
  }
  return total;
}

}  // namespace kvsim
