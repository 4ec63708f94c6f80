#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "core/estimate.h"
#include "core/preset_file.h"

namespace kvsim {

/// What a process node charges for operations, registers, SRAM and wires (models/presets/nodes).
struct ProcessNode {
  using Table = std::map<std::string, Estimate, std::less<>>;

  std::string name;
  double feature_nm = 0;
  double volts = 0;
  double clock_mhz = 0;  // what the units were synthesised for
  Table op_pj;           // "int8_multiply", "lfsr_word" ...
  Table op_um2;
  Estimate flop_pj_per_bit;  // per clock
  Estimate flop_um2_per_bit;
  PresetFile::Curve sram_read_pj_per_bit;  // by KiB of a bank
  PresetFile::Curve sram_write_pj_per_bit;
  Estimate sram_w_per_mb;  // MB = 10^6 bytes
  Estimate sram_mm2_per_mb;
  Estimate wire_pj_per_bit_mm;
  Estimate logic_w_per_mm2;

  /// Energy and area of a unit. An unknown one is a RuntimeError that lists the node's units.
  const Estimate& pj(std::string_view unit) const { return find(op_pj, unit); }
  const Estimate& um2(std::string_view unit) const { return find(op_um2, unit); }

 private:
  const Estimate& find(const Table& table, std::string_view unit) const;
};

/// Reads a node preset to its end. Throws RuntimeError for a bad file, also for an operation
/// without area.
ProcessNode load_process_node(const std::string& name, const PresetFile& file);

/// The curve at x, linear in log x between its points and constant beyond them.
Estimate curve_at(const PresetFile::Curve& curve, double x);

}  // namespace kvsim
