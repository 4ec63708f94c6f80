#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/calibration.h"
#include "sim/json_place.h"

namespace kvsim {

/// A command of an experiment: what a user would type after `kvsim`.
struct ExperimentRun {
  std::string name;
  std::string command;
};

/// A number in what a run prints with --json, and a factor.
struct Term {
  std::string run;
  JsonPlace place;
  double times = 1;
};

/// Σ of / Σ over; without `over` the sum alone.
struct Formula {
  std::vector<Term> of;
  std::vector<Term> over;
};

/// Why our number is another one: `value` is what it was when the reason was found. The same
/// tolerance holds, so the reason does not cover whatever may come.
struct Explanation {
  double value = 0;
  std::string reason;
};

/// One number of a published table or figure, and where ours comes from.
struct Quantity {
  std::string name;
  std::string unit;
  double expected = 0;
  double tolerance = 0;        // in the unit, whatever it was written as
  std::string tolerance_text;  // "5%"
  std::string where;           // in the paper
  std::optional<Explanation> explanation;
  Formula ours;
};

/// Multiplies a part of each of a quantity's terms: what `beside` gives in place of the last step
/// of the term's own place.
struct Factor {
  struct Part {
    std::string beside;  // "/terms/0/us"
    double times = 1;
  };
  std::string name;
  std::vector<Part> parts;
};

/// Factors that are fitted on some quantities and tried on others.
struct CalibrationPlan {
  std::vector<Factor> factors;
  std::map<std::string, CalibrationRole> roles;  // by quantity
};

/// A published table or figure to reproduce: one folder (docs/formats.md).
struct Experiment {
  std::string name;
  std::string title;
  std::string source;
  std::string run_path;
  std::vector<ExperimentRun> runs;
  std::vector<Quantity> quantities;
  std::optional<CalibrationPlan> calibration;
};

/// The texts of a folder, and how messages call them.
struct ExperimentFiles {
  std::string run_toml;
  std::string run_path;
  std::string expected_csv;
  std::string expected_path;
};

/// Throws RuntimeError that names file and key: a key that is missing, unknown or of another type,
/// a run that does not exist, a quantity that stands in one file only, a bad tolerance, a reason
/// without the value it explains, a calibration of what is no
/// sum, a quantity put aside without a reason.
Experiment parse_experiment(const std::string& name, const ExperimentFiles& files);

}  // namespace kvsim
