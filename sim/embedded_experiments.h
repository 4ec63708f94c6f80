#pragma once

#include <span>
#include <string_view>

namespace kvsim {

struct EmbeddedExperiment {
  std::string_view name;          // folder: "santa-table3"
  std::string_view run_toml;      // its files
  std::string_view expected_csv;  // empty: it has none
};

/// The folders of experiments/ that have a run.toml, compiled into the binary, sorted by name.
std::span<const EmbeddedExperiment> embedded_experiments();

/// The source tree that the binary was built from; on another machine it need not exist.
std::string_view source_folder();

}  // namespace kvsim
