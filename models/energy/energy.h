#pragma once

#include <string>
#include <vector>

#include "core/estimate.h"
#include "kernels/work.h"
#include "models/machine.h"
#include "models/memory/traffic.h"
#include "models/time/latency.h"

namespace kvsim {

struct EnergyItem {
  std::string item;  // "dram read", "value add", "static"
  Estimate pj;
  bool datapath =
      false;  // arithmetic, exp, compare, random words: what an adder-only design changes
};

struct EnergyReport {
  std::vector<EnergyItem> items;
  Estimate total_pj;
  Estimate datapath_pj;
};

/// Work x energy table + DRAM and cache bytes + static power x time, itemised.
EnergyReport energy(const Work& work, const Traffic& traffic, const TimeReport& time,
                    const Machine& machine);

}  // namespace kvsim
