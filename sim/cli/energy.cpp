// kvsim energy: joules and area of methods on accelerators.

#include <fmt/format.h>

#include <boost/program_options/value_semantic.hpp>
#include <chrono>
#include <utility>

#include "core/error.h"
#include "sim/accelerator_energy.h"
#include "sim/cli/replay_options.h"
#include "sim/cli/verb.h"
#include "sim/cli/version.h"
#include "sim/report.h"

namespace kvsim {
namespace {

namespace po = boost::program_options;

CommandLine make_command_line() {
  CommandLine line(
      "energy (TRACE... | --stats RUN.h5) --method M... --accelerator NAME... [options]",
      "Energy and area of methods on accelerators, item by item.");
  line.take_positional("trace", "TRACE...  trace files, independent sequences that are pooled");
  add_method_option(line);
  add_accelerator_options(line);
  line.own()("stats", po::value<std::string>()->value_name("RUN.h5"),
             "row counts from a run of kvsim replay -o instead of a trace");
  add_replay_options(line);
  line.own()("layout", po::value<std::string>()->value_name("L")->default_value("hnd"),
             "how K and V lie in memory: hnd, nhd, paged or paged:TOKENS")(
      "l2", po::value<std::string>()->value_name("STATE")->default_value("cold"),
      "SRAM before a step: cold or warm");
  return line;
}

Json document_from_trace(const CommandLine& line, std::vector<Target> targets,
                         const DocumentOptions& about) {
  ReplayOptions options = replay_options(line, line.list("trace"));
  options.targets = std::move(targets);
  const auto start = std::chrono::steady_clock::now();
  const Replay result = replay(std::move(options));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  log_throughput(result, seconds.count());
  return energy_document(result, about);
}

void run(const std::vector<std::string>& words) {
  CommandLine line = make_command_line();
  if (!line.parse(words)) return;
  if (line.list("trace").empty() != line.given("stats")) {
    throw UsageError("give traces or --stats run.h5, one of them");
  }
  const std::vector<std::string> specs = method_specs(line);
  const Presets presets(line.presets());
  std::vector<Target> targets = accelerator_targets(line, presets);
  if (targets.empty()) {
    fail<UsageError>("--accelerator is missing, expected one or more of: {}",
                     fmt::join(presets.names("accelerators"), ", "));
  }
  DocumentOptions about{.program_version = version(),
                        .program_commit = commit(),
                        .gpu = "",
                        .kv_dtype = "each accelerator's own element bits",
                        .llm = std::nullopt,
                        .defaults = line.defaults({"layout", "l2", "seed", "repeats"})};
  add_accelerator_defaults(line, targets, about.defaults);
  const Json document = [&] {
    if (!line.given("stats")) return document_from_trace(line, std::move(targets), about);
    const MeasuredRun measured(line.text("stats"));
    return energy_document(EnergyFromRun{measured, specs, std::move(targets)}, about);
  }();
  if (line.json()) return print_document(document);
  print_text(energy_report(document));
}

KVSIM_REGISTER_VERB("energy", {"energy and area of methods on accelerators, item by item", run});

}  // namespace
}  // namespace kvsim
