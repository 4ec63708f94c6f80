// kvsim trace check: says precisely what is wrong with a trace file.

#include <fmt/format.h>

#include "core/error.h"
#include "sim/cli/command_line.h"
#include "sim/cli/trace_verb.h"
#include "sim/cli/version.h"
#include "sim/json.h"
#include "traces/check.h"

namespace kvsim {
namespace {

Json file_json(const std::string& path, const TraceCheck& check) {
  return {{"path", path},
          {"good", check.good()},
          {"summary", check.summary},
          {"problems", check.problems},
          {"warnings", check.warnings}};
}

std::string file_text(const Json& file) {
  std::string text = fmt::format("{}: {}\n", file.at("path").get<std::string>(),
                                 file.at("good").get<bool>() ? "good" : "bad");
  if (const auto summary = file.at("summary").get<std::string>(); !summary.empty()) {
    text += "  " + summary + "\n";
  }
  for (const char* kind : {"problem", "warning"}) {
    for (const Json& line : file.at(std::string(kind) + "s")) {
      text += fmt::format("  {}: {}\n", kind, line.get<std::string>());
    }
  }
  return text;
}

void run(const std::vector<std::string>& words) {
  CommandLine line("trace check TRACE...",
                   "Finds everything that is wrong or implausible in trace files.");
  line.take_positional("trace", "TRACE...  trace files");
  if (!line.parse(words)) return;
  const std::vector<std::string> traces = line.list("trace");
  if (traces.empty()) throw UsageError("no trace given");
  Json files = Json::array();
  std::vector<std::string> bad;
  std::string first_problem;
  for (const std::string& path : traces) {
    const TraceCheck check = check_trace(path);
    files.push_back(file_json(path, check));
    if (check.good()) continue;
    if (bad.empty()) first_problem = check.problems.front();
    bad.push_back(path);
  }
  if (line.json()) {
    print_document({{"schema", "kvsim.trace_check/1"},
                    {"version", version()},
                    {"commit", commit()},
                    {"files", files}});
  } else {
    for (const Json& file : files) print_text(file_text(file));
  }
  if (!bad.empty()) {
    fail<RuntimeError>("{} of {} files bad: {}", bad.size(), traces.size(), first_problem);
  }
}

KVSIM_REGISTER_TRACE_VERB("check", {"find everything that is wrong in trace files", run});

}  // namespace
}  // namespace kvsim
