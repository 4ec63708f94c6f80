#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/preset_file.h"
#include "models/accelerator/memory_device.h"
#include "models/accelerator/process_node.h"
#include "models/presets.h"

namespace kvsim {
namespace {

constexpr double kUm2PerMm2 = 1e6;
constexpr double kBytesPerKib = 1024;
constexpr double kBytesPerMb = 1e6;
constexpr std::string_view kShared = "shared";  // lanes of softmax, selection and merge
constexpr int kSharedUnits = 16;                // unit numbers above those of the phases' own lanes

/// The group of lanes a phase may have for itself. Not the bare phase name: a table with a key
/// "value" is a constant.
std::string group_of(Phase phase) { return fmt::format("{}_stage", to_string(phase)); }

/// Puts the parts of an accelerator preset together at one node with one memory.
class AcceleratorBuilder {
 public:
  AcceleratorBuilder(const PresetFile& file, const ProcessNode& node, const MemoryDevice& memory)
      : file_(file), node_(node), memory_(memory) {}

  Machine build() {
    machine_.title = file_.text("title");
    machine_.is_gpu = false;
    machine_.node_nm = node_.feature_nm;
    machine_.memory = memory_.system;
    machine_.round_trip_us = memory_.round_trip_us;
    machine_.load_warps = {1};
    machine_.load_round_us = {exactly(0, Source::kSpec)};
    machine_.cache_trip_us = exactly(0, Source::kSpec);
    machine_.cycle_us = exactly(0, Source::kSpec);
    read_core();
    build_sram();
    for (std::size_t phase = 0; phase < kPhases; ++phase) {
      for (std::size_t op = 0; op < kOps; ++op) {
        build_op(static_cast<Op>(op), static_cast<Phase>(phase));
      }
    }
    fuse_multiply_accumulate(Phase::kScore);
    build_value_multiply();
    for (std::size_t op = 0; op < kOps; ++op) {  // a lane adds rows whoever else wants them
      machine_.gather_ops[op] = op_of(static_cast<Op>(op), Phase::kValue);
    }
    build_area_and_leakage();
    file_.finish();
    return machine_;
  }

 private:
  void read_core() {
    clock_mhz_ = std::min(file_.number("core.clock", "MHz").value, node_.clock_mhz);
    utilisation_ = file_.number("core.utilisation", "ratio", 0, 1);
    rng_ = file_.text("core.rng") + "_word";
    machine_.overhead_share = file_.number("core.datapath_share", "ratio", 0.01, 1);
    machine_.boundary_us.fill(file_.number("core.stage", "us"));
    const std::int64_t k_bits = file_.integer("bits.k", "bit");
    const std::int64_t v_bits = file_.integer("bits.v", "bit");
    if (k_bits != v_bits) {
      fail<RuntimeError>("accelerator preset: bits.k is {}, bits.v is {}, expected the same",
                         k_bits, v_bits);
    }
    machine_.element_bits = static_cast<int>(v_bits);
    weight_bits_ = static_cast<double>(file_.integer("bits.weight", "bit"));
    lane_bits_ = static_cast<double>(v_bits + file_.integer("bits.accumulator", "bit"));
  }

  void build_sram() {
    const double bytes = file_.number("sram.size", "KiB").value * kBytesPerKib;
    const double bank_kib = file_.number("sram.bank", "KiB").value;
    const double port_bytes = file_.number("sram.port", "B").value;
    const double banks = bytes / (bank_kib * kBytesPerKib);
    const Estimate wire = node_.wire_pj_per_bit_mm * file_.number("sram.wire", "mm");
    machine_.cache_bytes = bytes;
    machine_.cache.ramp_us = exactly(0, Source::kSpec);
    machine_.cache.gb_per_s = utilisation_ * (banks * port_bytes * clock_mhz_ * 1e-3);
    machine_.cache_read_pj_per_bit = curve_at(node_.sram_read_pj_per_bit, bank_kib) + wire;
    machine_.cache_write_pj_per_bit = curve_at(node_.sram_write_pj_per_bit, bank_kib) + wire;
    machine_.limits.sms = 1;
    machine_.limits.shared_bytes_per_sm = static_cast<std::int64_t>(bytes);
    machine_.limits.l2_bytes = static_cast<std::int64_t>(bytes);
  }

  /// Whether a phase lists a unit of its own for an operation; else the shared lanes do it.
  bool is_own(Op op, Phase phase) const {
    return file_.has(fmt::format("units.{}.{}", group_of(phase), to_string(op)));
  }

  double lanes(std::string_view group) const {
    return static_cast<double>(file_.integer(fmt::format("lanes.{}", group), "lanes"));
  }

  /// A lane's accumulate clocks its operand and its accumulator.
  static bool has_registers(Op op, Phase phase) {
    return op == Op::kAdd && (phase == Phase::kScore || phase == Phase::kValue);
  }

  void build_op(Op op, Phase phase) {
    OpCost& cost = op_of(op, phase);
    const std::string group = is_own(op, phase) ? group_of(phase) : std::string(kShared);
    cost.what =
        op == Op::kRandomWord ? rng_ : file_.text(fmt::format("units.{}.{}", group, to_string(op)));
    cost.pj = node_.pj(cost.what);
    if (has_registers(op, phase)) {
      cost.pj += node_.flop_pj_per_bit * lane_bits_;
      cost.what += fmt::format(", {} bits of registers", lane_bits_);
    }
    const bool own_lanes = is_own(op, phase) && file_.has(fmt::format("lanes.{}", group));
    cost.per_us =
        utilisation_ * (lanes(own_lanes ? std::string_view(group) : kShared) * clock_mhz_);
    cost.unit = own_lanes ? static_cast<int>(phase) : kSharedUnits + static_cast<int>(op);
    cost.lane_cycles = 1;
  }

  /// Multiplier and accumulator work in the same lane and cycle: the adds alone count in time.
  void fuse_multiply_accumulate(Phase phase) {
    OpCost& multiply = op_of(Op::kMultiply, phase);
    multiply.per_us = exactly(0, Source::kSpec);
    multiply.unit = -1;
    multiply.lane_cycles = 0;
  }

  void build_value_multiply() {
    if (!is_own(Op::kMultiply, Phase::kValue)) return multiply_by_adding();
    fuse_multiply_accumulate(Phase::kValue);
    // A lane that only adds still moves its multiplier; with both, the sum stays the same.
    const double idle = file_.number("value_stage.idle_multiplier", "ratio", 0, 1).value;
    OpCost& multiply = op_of(Op::kMultiply, Phase::kValue);
    OpCost& add = op_of(Op::kAdd, Phase::kValue);
    add.pj += multiply.pj * idle;
    multiply.pj = multiply.pj * (1 - idle);
    add.what += ", idle multiplier";
  }

  /// An adder-only lane multiplies by shifted adds, one per weight bit.
  void multiply_by_adding() {
    const Estimate adds = file_.number("value_stage.multiply_as_adds", "adds", 1, weight_bits_);
    const OpCost& add = op_of(Op::kAdd, Phase::kValue);
    OpCost& multiply = op_of(Op::kMultiply, Phase::kValue);
    multiply.pj = add.pj * adds;
    multiply.per_us = add.per_us / adds;
    multiply.unit = add.unit;
    multiply.lane_cycles = adds.value;
    multiply.what = fmt::format("{} shifted adds, {}", adds.value, add.what);
  }

  /// Cell area of the units a group lists, once each.
  Estimate units_um2(const std::string& group) const {
    std::set<std::string> units;
    for (const std::string& op : file_.keys("units." + group)) {
      units.insert(file_.text(fmt::format("units.{}.{}", group, op)));
    }
    Estimate sum = exactly(0, Source::kSpec);
    for (const std::string& unit : units) sum += node_.um2(unit);
    return sum;
  }

  void build_area_and_leakage() {
    const Estimate registers = node_.flop_um2_per_bit * lane_bits_;
    const Estimate cells =
        (units_um2("score_stage") + registers) * lanes("score_stage") +
        (units_um2("value_stage") + registers) * lanes("value_stage") +
        (units_um2("shared") + units_um2("merge_stage") + node_.um2(rng_)) * lanes("shared");
    const Estimate logic = cells * file_.number("area.layout", "ratio") * (1 / kUm2PerMm2);
    const double sram_mb = machine_.cache_bytes / kBytesPerMb;
    machine_.area_mm2 = logic + node_.sram_mm2_per_mb * sram_mb + memory_.phy_mm2;
    machine_.static_w =
        logic * node_.logic_w_per_mm2 + node_.sram_w_per_mb * sram_mb + memory_.background_w;
  }

  OpCost& op_of(Op op, Phase phase) {
    return machine_.ops[static_cast<std::size_t>(op)][static_cast<std::size_t>(phase)];
  }

  const PresetFile& file_;
  const ProcessNode& node_;
  const MemoryDevice& memory_;
  Machine machine_;
  std::string rng_;
  double clock_mhz_ = 0;
  double weight_bits_ = 0;
  double lane_bits_ = 0;
  Estimate utilisation_;
};

/// "45" and "45nm" are the same node.
std::string node_name(const std::string& node) {
  const bool number = !node.empty() && node.find_first_not_of("0123456789") == std::string::npos;
  return number ? node + "nm" : node;
}

}  // namespace

Machine Presets::accelerator(const std::string& name, const std::string& node,
                             const std::string& memory) const {
  const PresetFile file = PresetFile::parse(text("accelerators", name), path("accelerators", name));
  const std::string default_node = file.text("core.node");
  const std::string default_memory = file.text("core.memory");
  const std::string node_file = node_name(node.empty() ? default_node : node);
  const std::string memory_file = memory.empty() ? default_memory : memory;
  const ProcessNode process = load_process_node(
      node_file, PresetFile::parse(text("nodes", node_file), path("nodes", node_file)));
  const MemoryDevice device = load_memory_device(
      PresetFile::parse(text("memories", memory_file), path("memories", memory_file)));
  Machine machine = AcceleratorBuilder(file, process, device).build();
  machine.name = name;
  return machine;
}

}  // namespace kvsim
