#pragma once

#include <string>
#include <vector>

#include "sim/document.h"
#include "sim/json.h"
#include "sim/measured_run.h"

namespace kvsim {

/// The document "kvsim.energy/1" (docs/formats.md) from a replay whose targets are all
/// accelerators.
Json energy_document(const Replay& replay, const DocumentOptions& options);

/// The same from the statistics of an earlier run: footprints are expected from the row counts, and
/// there are no errors to show.
struct EnergyFromRun {
  const MeasuredRun& run;
  std::vector<std::string> methods;  // specs
  std::vector<Target> targets;
};
Json energy_document(const EnergyFromRun& question, const DocumentOptions& options);

}  // namespace kvsim
