#include "models/presets.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "core/preset_file.h"
#include "core/text_file.h"
#include "models/embedded_presets.h"

namespace kvsim {
namespace {

constexpr std::array<std::string_view, 5> kKinds{"gpus", "memories", "nodes", "accelerators",
                                                 "llms"};

void check_kind(std::string_view kind) {
  if (std::find(kKinds.begin(), kKinds.end(), kind) == kKinds.end()) {
    fail<UsageError>("unknown kind of preset '{}', expected one of {}", kind,
                     fmt::join(kKinds, ", "));
  }
}

/// Where a preset of the folder lies.
std::filesystem::path file_of(const std::string& folder, std::string_view kind,
                              const std::string& name) {
  return std::filesystem::path(folder) / kind / (name + ".toml");
}

/// A name must not lead out of the folder.
bool is_plain(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && name[0] != '.';
}

/// True when the folder has the preset, so that the one in the binary does not count.
bool is_in(const std::string& folder, std::string_view kind, const std::string& name) {
  return !folder.empty() && is_plain(name) && std::filesystem::exists(file_of(folder, kind, name));
}

}  // namespace

Presets::Presets(std::string folder) : folder_(std::move(folder)) {
  if (!folder_.empty() && !std::filesystem::is_directory(folder_)) {
    fail<RuntimeError>("{}: no such folder of presets", folder_);
  }
}

std::vector<std::string> Presets::names(std::string_view kind) const {
  check_kind(kind);
  std::vector<std::string> result;
  for (const EmbeddedPreset& preset : embedded_presets()) {
    if (preset.kind == kind) result.emplace_back(preset.name);
  }
  if (!folder_.empty()) {
    const std::filesystem::path folder = std::filesystem::path(folder_) / kind;
    if (std::filesystem::is_directory(folder)) {
      for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (entry.path().extension() == ".toml") result.push_back(entry.path().stem().string());
      }
    }
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

std::string Presets::text(std::string_view kind, const std::string& name) const {
  check_kind(kind);
  if (is_in(folder_, kind, name)) return read_text_file(file_of(folder_, kind, name).string());
  for (const EmbeddedPreset& preset : embedded_presets()) {
    if (preset.kind == kind && preset.name == name) return std::string(preset.toml);
  }
  fail<UsageError>("no preset '{}' among {}, expected one of {}", name, kind,
                   fmt::join(names(kind), ", "));
}

std::string Presets::path(std::string_view kind, const std::string& name) const {
  return (is_in(folder_, kind, name) ? file_of(folder_, kind, name) : file_of("", kind, name))
      .string();
}

std::string Presets::title(std::string_view kind, const std::string& name) const {
  const PresetFile file = PresetFile::parse(text(kind, name), path(kind, name));
  if (!file.has("title") && file.has("inherits")) return "inherits " + file.text("inherits");
  return file.text("title");
}

}  // namespace kvsim
