#include "models/accelerator/process_node.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"

namespace kvsim {
namespace {

constexpr double kPjPerFj = 1e-3;

ProcessNode::Table read_table(const PresetFile& file, const std::string& table,
                              std::string_view unit) {
  ProcessNode::Table result;
  for (const std::string& name : file.keys(table)) {
    result.emplace(name, file.number(fmt::format("{}.{}", table, name), unit));
  }
  return result;
}

std::vector<std::string> names_of(const ProcessNode::Table& table) {
  std::vector<std::string> names;
  for (const auto& [name, value] : table) names.push_back(name);
  return names;
}

}  // namespace

const Estimate& ProcessNode::find(const Table& table, std::string_view unit) const {
  const auto found = table.find(unit);
  if (found == table.end()) {
    fail<RuntimeError>("node {} has no unit '{}', expected one of {}", name, unit,
                       fmt::join(names_of(table), ", "));
  }
  return found->second;
}

ProcessNode load_process_node(const std::string& name, const PresetFile& file) {
  ProcessNode node;
  node.name = name;
  file.text("title");
  node.feature_nm = file.number("node.feature", "nm").value;
  node.volts = file.number("node.voltage", "V").value;
  node.clock_mhz = file.number("node.clock", "MHz").value;
  node.op_pj = read_table(file, "ops", "pJ");
  node.op_um2 = read_table(file, "areas", "um2");
  node.flop_pj_per_bit = file.number("registers.flop", "fJ/bit") * kPjPerFj;
  node.flop_um2_per_bit = file.number("registers.area", "um2");
  node.sram_read_pj_per_bit = file.curve("sram.read", "KiB", "pJ/bit");
  node.sram_write_pj_per_bit = file.curve("sram.write", "KiB", "pJ/bit");
  node.sram_w_per_mb = file.number("sram.leakage", "W/MB");
  node.sram_mm2_per_mb = file.number("sram.area", "mm2/MB");
  node.wire_pj_per_bit_mm = file.number("wires.energy", "fJ/bit/mm") * kPjPerFj;
  node.logic_w_per_mm2 = file.number("leakage.logic", "W/mm2");
  for (const auto& [unit, energy] : node.op_pj) node.um2(unit);
  file.finish();
  return node;
}

Estimate curve_at(const PresetFile::Curve& curve, double x) {
  const auto above = std::lower_bound(curve.x.begin(), curve.x.end(), x);
  if (above == curve.x.begin()) return curve.y.front();
  if (above == curve.x.end()) return curve.y.back();
  const auto i = static_cast<std::size_t>(above - curve.x.begin());
  const double part = std::log(x / curve.x[i - 1]) / std::log(curve.x[i] / curve.x[i - 1]);
  return curve.y[i - 1] * (1 - part) + curve.y[i] * part;
}

}  // namespace kvsim
