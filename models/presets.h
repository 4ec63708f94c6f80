#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/llm/llm.h"
#include "models/machine.h"

namespace kvsim {

/// The presets embedded in the binary, or those of a folder given with --presets, which is searched
/// first. Kinds: "gpus", "memories", "nodes", "accelerators", "llms". An unknown name is a
/// UsageError that lists the known ones; a bad file is a RuntimeError that names file and key.
class Presets {
 public:
  explicit Presets(std::string folder = "");

  std::vector<std::string> names(std::string_view kind) const;
  /// One line for `kvsim list`: the preset's title.
  std::string title(std::string_view kind, const std::string& name) const;

  Machine gpu(const std::string& name) const;
  /// An accelerator at a process node with a memory; empty strings take the preset's own defaults.
  Machine accelerator(const std::string& name, const std::string& node,
                      const std::string& memory) const;
  Llm llm(const std::string& name) const;

 private:
  std::string text(std::string_view kind, const std::string& name) const;  // the TOML
  /// For messages: the file in the folder, else "gpus/h200_sxm.toml" of the binary.
  std::string path(std::string_view kind, const std::string& name) const;

  std::string folder_;
};

}  // namespace kvsim
