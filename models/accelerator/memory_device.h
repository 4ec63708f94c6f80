#pragma once

#include "core/estimate.h"
#include "core/preset_file.h"
#include "models/machine.h"

namespace kvsim {

/// A DRAM stack or group of devices beside an accelerator (models/presets/memories).
struct MemoryDevice {
  MemorySystem system;
  Estimate round_trip_us;
  Estimate background_w;  // standby and refresh of the whole group
  Estimate phy_mm2;
};

/// Reads a memory preset to its end. Throws RuntimeError for a bad file.
MemoryDevice load_memory_device(const PresetFile& file);

}  // namespace kvsim
