#pragma once

#include <string>
#include <vector>

#include "sim/experiment.h"
#include "sim/json.h"

namespace kvsim {

/// Words that follow every command of an experiment.
struct CommonWords {
  std::vector<std::string> shown;   // decide the result: --presets DIR
  std::vector<std::string> silent;  // do not: --threads N
};

/// Runs the commands of an experiment, one after the other, and compares: an element of
/// `experiments` in "kvsim.experiment/1" (docs/formats.md). `traces` is the folder of the shipped
/// traces, or empty where it is to be found. Throws RuntimeError that names file and key if a
/// command fails or a place is not there.
Json run_experiment(const Experiment& experiment, const CommonWords& words,
                    const std::string& traces);

/// The same as a table, with the reasons below.
std::string experiment_text(const Json& experiment);

/// Quantities that differ without a reason, "table3: speedup, prop".
std::vector<std::string> differing(const Json& experiments);

}  // namespace kvsim
