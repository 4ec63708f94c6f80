#include "sim/experiment_folders.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "core/text_file.h"
#include "sim/embedded_experiments.h"

namespace kvsim {
namespace {

constexpr const char* kRun = "run.toml";
constexpr const char* kExpected = "expected.csv";

/// A name must not lead out of the folder.
bool is_plain(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && name[0] != '.';
}

ExperimentFiles files_of(const std::filesystem::path& folder) {
  ExperimentFiles files;
  files.run_path = (folder / kRun).string();
  files.expected_path = (folder / kExpected).string();
  files.run_toml = read_text_file(files.run_path);
  files.expected_csv = read_text_file(files.expected_path);
  return files;
}

ExperimentFiles files_of(const EmbeddedExperiment& experiment) {
  const std::string name(experiment.name);
  ExperimentFiles files{std::string(experiment.run_toml), name + "/" + kRun,
                        std::string(experiment.expected_csv), name + "/" + kExpected};
  if (files.expected_csv.empty()) {
    fail<RuntimeError>("{}: found no such file beside {}", files.expected_path, files.run_path);
  }
  return files;
}

}  // namespace

ExperimentFolders::ExperimentFolders(std::string folder) : folder_(std::move(folder)) {
  if (!folder_.empty() && !std::filesystem::is_directory(folder_)) {
    fail<RuntimeError>("{}: no such folder of experiments", folder_);
  }
}

std::vector<std::string> ExperimentFolders::names() const {
  std::vector<std::string> names;
  for (const EmbeddedExperiment& experiment : embedded_experiments()) {
    names.emplace_back(experiment.name);
  }
  if (!folder_.empty()) {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      if (is_plain(name) && std::filesystem::exists(entry.path() / kRun)) {
        names.push_back(name);
      }
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

Experiment ExperimentFolders::read(const std::string& name) const {
  const std::filesystem::path folder = std::filesystem::path(folder_) / name;
  if (!folder_.empty() && is_plain(name) && std::filesystem::is_directory(folder)) {
    return parse_experiment(name, files_of(folder));
  }
  for (const EmbeddedExperiment& experiment : embedded_experiments()) {
    if (experiment.name == name) return parse_experiment(name, files_of(experiment));
  }
  fail<UsageError>("unknown experiment '{}', expected one of: {}", name, fmt::join(names(), ", "));
}

}  // namespace kvsim
