#pragma once

#include <span>
#include <string_view>

namespace kvsim {

struct EmbeddedPreset {
  std::string_view kind;  // folder: "gpus"
  std::string_view name;  // file without .toml: "h200_sxm"
  std::string_view toml;
};

/// The presets compiled into the binary, sorted by kind and name.
std::span<const EmbeddedPreset> embedded_presets();

}  // namespace kvsim
