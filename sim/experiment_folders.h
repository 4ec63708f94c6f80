#pragma once

#include <string>
#include <vector>

#include "sim/experiment.h"

namespace kvsim {

/// The folders of experiments in the binary, or those of a folder given with --experiments, which
/// is searched first. A folder with a run.toml is an experiment.
class ExperimentFolders {
 public:
  /// Throws RuntimeError if `folder` is given and does not exist.
  explicit ExperimentFolders(std::string folder = "");

  std::vector<std::string> names() const;
  /// An unknown name is a UsageError that lists the known ones; a bad or missing file is a
  /// RuntimeError that names it.
  Experiment read(const std::string& name) const;

 private:
  std::string folder_;
};

}  // namespace kvsim
