#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/preset_file.h"
#include "models/presets.h"

namespace kvsim {
namespace {

constexpr double kBytesPerKib = 1024;
constexpr double kBytesPerMib = 1024 * 1024;
constexpr double kBytesPerGb = 1e9;
constexpr double kPerUsOfTera = 1e6;  // 10^12 a second
constexpr int kMaxInheritance = 8;

// Far beyond any GPU: what lies outside is a slip of the unit or the decimal point, and would make
// the models divide by zero or leave the range of their integers.
constexpr double kMostUs = 1e4;
constexpr double kMostGbPerS = 1e6;
constexpr double kMostPjPerBit = 1e4;
constexpr double kMostPj = 1e6;

/// The units of an SM that work side by side.
enum Unit : int { kTensorCore, kFp32Core, kSpecialFunction, kInteger };

class GpuBuilder {
 public:
  explicit GpuBuilder(const PresetFile& file) : file_(file) {}

  Machine build() {
    machine_.title = file_.text("title");
    machine_.is_gpu = true;
    machine_.overhead_share = exactly(0, Source::kSpec);  // measured operations contain it
    machine_.area_mm2 = exactly(0, Source::kSpec);
    read_device();
    read_memory();
    read_cache();
    read_boundaries();
    read_operations();
    read_link();
    machine_.static_w = file_.number("energy.idle", "W", 0, 1e5);
    file_.finish();
    return std::move(machine_);
  }

 private:
  void read_device() {
    machine_.limits.sms = static_cast<int>(file_.integer("device.sms", "SM", 1, 4096));
    machine_.limits.threads_per_sm =
        static_cast<int>(file_.integer("device.threads", "threads", 32, 65536));
    clock_mhz_ = file_.number("device.clock", "MHz", 10, 1e5);
    machine_.limits.shared_bytes_per_sm = static_cast<std::int64_t>(
        file_.number("device.shared", "KiB", 1, 1e5).value * kBytesPerKib);
    machine_.cache_bytes = file_.number("device.l2", "MiB", 0.01, 1e5).value * kBytesPerMib;
    machine_.limits.l2_bytes = static_cast<std::int64_t>(machine_.cache_bytes);
  }

  void read_memory() {
    MemorySystem& memory = machine_.memory;
    memory.name = file_.text("memory.name");
    memory.capacity_bytes = file_.number("memory.capacity", "GB", 0, 1e6).value * kBytesPerGb;
    memory.peak_gb_per_s = file_.number("memory.peak", "GB/s", 1, kMostGbPerS).value;
    memory.sector_bytes = static_cast<int>(file_.integer("memory.sector", "B", 1, 4096));
    memory.atom_bytes = static_cast<int>(file_.integer("memory.atom", "B", 1, 65536));
    memory.row_bytes = static_cast<int>(file_.integer("memory.row", "B", 1, 1 << 20));
    memory.stream.ramp_us = file_.number("memory.stream_ramp", "us", 0, kMostUs);
    memory.read_ramp_us = file_.number("memory.read_ramp", "us", 0, kMostUs);
    // No faster than the interface: a utilisation above 1 is a mistake.
    memory.stream.gb_per_s = file_.number("memory.stream_rate", "GB/s", 1, memory.peak_gb_per_s);
    memory.gather_ramp_us = file_.number("memory.gather_ramp", "us", 0, kMostUs);
    PresetFile::Curve share = file_.curve("memory.gather_share", "B", "ratio", 0.01, 1);
    memory.gather_row_bytes = std::move(share.x);
    memory.gather_share = std::move(share.y);
    memory.read_pj_per_bit = file_.number("memory.read", "pJ/bit", 0, kMostPjPerBit);
    memory.write_pj_per_bit = file_.number("memory.write", "pJ/bit", 0, kMostPjPerBit);
    memory.activate_pj = file_.number("memory.activate", "pJ", 0, kMostPj);
  }

  void read_cache() {
    machine_.cache.ramp_us = file_.number("cache.ramp", "us", 0, kMostUs);
    machine_.cache.gb_per_s = file_.number("cache.rate", "GB/s", 1, kMostGbPerS);
    machine_.cache_read_pj_per_bit = file_.number("cache.read", "pJ/bit", 0, kMostPjPerBit);
    machine_.cache_write_pj_per_bit = file_.number("cache.write", "pJ/bit", 0, kMostPjPerBit);
  }

  void read_boundaries() {
    for (std::size_t i = 0; i < kBoundaries; ++i) {
      machine_.boundary_us[i] =
          file_.number(fmt::format("boundary.{}", kBoundaryNames[i]), "us", 0, kMostUs);
    }
    machine_.round_trip_us = file_.number("boundary.round_trip", "us", 0, kMostUs);
    const Estimate& ramp = machine_.cache.ramp_us;
    const Estimate& trip = machine_.round_trip_us;
    machine_.load_warps = {1};
    machine_.load_round_us = {trip};
    if (file_.has("boundary.load_round")) {
      PresetFile::Curve rounds = file_.curve("boundary.load_round", "warps", "us", 0, kMostUs);
      machine_.load_warps = std::move(rounds.x);
      machine_.load_round_us = std::move(rounds.y);
    }
    machine_.cache_trip_us = measured("cache.trip", ramp.value <= trip.value ? ramp : trip);
    // Chains were counted on an H200 at one shape; a quarter more or less elsewhere is assumed.
    machine_.cycle_us = Estimate{1, 0.75, 1.25, Source::kDerived} / clock_mhz_;
  }

  /// A latency that only some GPUs were measured for.
  Estimate measured(std::string_view key, const Estimate& otherwise) {
    return file_.has(key) ? file_.number(key, "us", 0, kMostUs) : otherwise;
  }

  /// Only where GPUs are joined by more than their host's bus.
  void read_link() {
    if (!file_.has("link")) return;
    machine_.link = Link{file_.number("link.all_reduce", "us", 0, kMostUs),
                         file_.number("link.step", "us", 0, kMostUs),
                         file_.number("link.rate", "GB/s", 1, 1e9)};
  }

  /// Scores and weighted values are matrix products, but for rows that every head gathers for
  /// itself; nor is what selects, normalises and merges.
  void read_operations() {
    const Estimate tensor = file_.number("compute.tensor", "TFLOP/s", 1e-3, 1e6) *
                            file_.number("compute.tensor_utilisation", "ratio", 1e-3, 1) *
                            kPerUsOfTera;
    // A fused multiply-add counts as two FLOP but takes the lane once, as an add alone does.
    const Estimate fp32 = file_.number("compute.fp32", "TFLOP/s", 1e-3, 1e6) * (kPerUsOfTera / 2);
    const Estimate tensor_pj = file_.number("energy.tensor_flop", "pJ", 0, kMostPj);
    const Estimate multiply_pj = file_.number("energy.fp32_multiply", "pJ", 0, kMostPj);
    const Estimate add_pj = file_.number("energy.fp32_add", "pJ", 0, kMostPj);
    for (const Phase phase : {Phase::kScore, Phase::kValue}) {
      set(Op::kMultiply, phase, {tensor_pj, tensor, "bf16 tensor core", kTensorCore});
      set(Op::kAdd, phase, {tensor_pj, tensor, "bf16 tensor core", kTensorCore});
    }
    for (const Phase phase : {Phase::kSoftmax, Phase::kSelect, Phase::kMerge}) {
      set(Op::kMultiply, phase, {multiply_pj, fp32, "fp32 core", kFp32Core});
      set(Op::kAdd, phase, {add_pj, fp32, "fp32 core", kFp32Core});
    }
    set_gather({multiply_pj, fp32, "", kFp32Core},
               {add_pj, fp32, "fp32 core, row by row", kFp32Core});
    set_lanes(Op::kExp, "special function", kSpecialFunction);
    set_lanes(Op::kCompare, "integer core", kInteger);
    set_lanes(Op::kShift, "integer core", kInteger);
    set_lanes(Op::kRandomWord, "integer core, Philox", kInteger);
  }

  /// CUDA cores sum the rows one by one. A weight rides along in a fused multiply-add, which takes
  /// the lane once and the energy of a multiplication alone: beside its add, the difference.
  void set_gather(const OpCost& multiply, const OpCost& add) {
    // Both come from one meter, so their bounds move together.
    const double more = std::max(0.0, multiply.pj.value - add.pj.value);
    const auto [low, high] = std::minmax({more, std::max(0.0, multiply.pj.low - add.pj.low),
                                          std::max(0.0, multiply.pj.high - add.pj.high)});
    machine_.gather_ops[static_cast<std::size_t>(Op::kAdd)] = add;
    machine_.gather_ops[static_cast<std::size_t>(Op::kMultiply)] = {
        {more, low, high, std::max(multiply.pj.source, add.pj.source)},
        exactly(0, Source::kSpec),  // in the add's cycle
        "fused into the add",
        kFp32Core};
  }

  /// An operation given as lanes of an SM, the same in every phase.
  void set_lanes(Op op, const char* what, Unit unit) {
    const Estimate lanes =
        file_.number(fmt::format("compute.{}", to_string(op)), "1/clk/SM", 1e-3, 1e5);
    const OpCost cost{file_.number(fmt::format("energy.{}", to_string(op)), "pJ", 0, kMostPj),
                      lanes * clock_mhz_ * machine_.limits.sms, what, unit};
    for (std::size_t phase = 0; phase < kPhases; ++phase) set(op, static_cast<Phase>(phase), cost);
  }

  void set(Op op, Phase phase, const OpCost& cost) {
    machine_.ops[static_cast<std::size_t>(op)][static_cast<std::size_t>(phase)] = cost;
  }

  const PresetFile& file_;
  Machine machine_;
  Estimate clock_mhz_;
};

/// A calibration is an overlay: its own constants over those of the preset it inherits from.
PresetFile load(const std::string& name, int depth,
                const std::function<std::string(const std::string&)>& text,
                const std::function<std::string(const std::string&)>& path) {
  PresetFile file = PresetFile::parse(text(name), path(name));
  if (!file.has("inherits")) return file;
  if (depth == 0) {
    fail<RuntimeError>("{}: inherits: found a chain without an end, expected at most {} links",
                       path(name), kMaxInheritance);
  }
  const std::string base = file.text("inherits");
  return PresetFile::overlay(load(base, depth - 1, text, path), std::move(file));
}

}  // namespace

Machine Presets::gpu(const std::string& name) const {
  const PresetFile file = load(
      name, kMaxInheritance, [this](const std::string& preset) { return text("gpus", preset); },
      [this](const std::string& preset) { return path("gpus", preset); });
  Machine machine = GpuBuilder(file).build();
  machine.name = name;
  return machine;
}

}  // namespace kvsim
