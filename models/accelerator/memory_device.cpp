#include "models/accelerator/memory_device.h"

namespace kvsim {

MemoryDevice load_memory_device(const PresetFile& file) {
  MemoryDevice device;
  MemorySystem& system = device.system;
  file.text("title");
  system.name = file.text("memory.name");
  const Estimate peak = file.number("memory.peak", "GB/s");
  system.peak_gb_per_s = peak.value;
  system.row_bytes = static_cast<int>(file.integer("memory.row", "B"));
  system.atom_bytes = static_cast<int>(file.integer("memory.atom", "B"));
  system.sector_bytes = system.atom_bytes;  // an SRAM behind its own controller asks for atoms
  system.stream = {file.number("memory.ramp", "us"),
                   peak * file.number("memory.reachable", "ratio", 0, 1)};
  const PresetFile::Curve gather = file.curve("memory.gather_share", "B", "ratio", 0.01, 1);
  system.gather_row_bytes = gather.x;
  system.gather_share = gather.y;
  system.read_ramp_us = system.stream.ramp_us;
  system.gather_ramp_us = file.number("memory.gather_ramp", "us");
  system.read_pj_per_bit = file.number("memory.read", "pJ/bit");
  system.write_pj_per_bit = file.number("memory.write", "pJ/bit");
  system.activate_pj = file.number("memory.activate", "pJ");
  device.round_trip_us = file.number("memory.round_trip", "us");
  device.background_w = file.number("memory.background", "W");
  device.phy_mm2 = file.number("memory.phy", "mm2");
  file.finish();
  return device;
}

}  // namespace kvsim
