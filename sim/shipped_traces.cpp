#include "sim/shipped_traces.h"

#include <filesystem>

#include "core/error.h"
#include "sim/embedded_experiments.h"

namespace kvsim {

std::string shipped_traces(const std::string& given) {
  if (!given.empty()) {
    if (!std::filesystem::is_directory(given)) fail<RuntimeError>("{}: no such folder", given);
    return given;
  }
  constexpr const char* kFolder = "traces/samples";
  const std::filesystem::path built_from(source_folder());
  for (const std::filesystem::path& parent : {built_from, std::filesystem::current_path()}) {
    if (std::filesystem::is_directory(parent / kFolder)) return (parent / kFolder).string();
  }
  fail<RuntimeError>(
      "the traces that come with kvsim's source are neither in {} nor in {} here: give their "
      "folder with --traces DIR",
      (built_from / kFolder).string(), kFolder);
}

}  // namespace kvsim
