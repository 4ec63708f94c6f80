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

/// What was replayed is settled with the run file.
void refuse_replay_options(const CommandLine& line) {
  for (const char* name : {"layers", "steps", "repeats", "seed"}) {
    if (line.given(name)) {
      fail<UsageError>("--{} {}: has no effect with --stats, the run file says what was replayed",
                       name, line.text(name));
    }
  }
}

void print_energy(const CommandLine& line, const Json& document) {
  if (line.json()) return print_document(document);
  print_text(energy_report(document));
}

void run_on_traces(const CommandLine& line, std::vector<Target> targets,
                   const DocumentOptions& about) {
  ReplayOptions options = replay_options(line, line.list("trace"));
  options.targets = std::move(targets);
  const auto start = std::chrono::steady_clock::now();
  const Replay result = replay(std::move(options));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  print_energy(line, energy_document(result, about));
  log_throughput(result, seconds.count());
}

void run(const std::vector<std::string>& words) {
  CommandLine line = make_command_line();
  if (!line.parse(words)) return;
  if (line.list("trace").empty() != line.given("stats")) {
    throw UsageError("give traces or --stats run.h5, one of them");
  }
  if (line.given("stats")) refuse_replay_options(line);
  const std::vector<std::string> specs = method_specs(line);
  const Presets presets(line.presets());
  std::vector<Target> targets = accelerator_targets(line, presets);
  if (targets.empty()) {
    fail<UsageError>("--accelerator is missing, expected one or more of: {}",
                     fmt::join(presets.names("accelerators"), ", "));
  }
  const std::vector<std::string> deciding =
      line.given("stats") ? std::vector<std::string>{"layout", "l2"}
                          : std::vector<std::string>{"layout", "l2", "seed", "repeats"};
  DocumentOptions about{.program_version = version(),
                        .program_commit = commit(),
                        .gpu = "",
                        .kv_dtype = "each accelerator's own element bits",
                        .llm = std::nullopt,
                        .defaults = line.defaults(deciding)};
  add_accelerator_defaults(line, targets, about.defaults);
  if (!line.given("stats")) return run_on_traces(line, std::move(targets), about);
  const MeasuredRun measured(line.text("stats"));
  print_energy(line, energy_document(EnergyFromRun{measured, specs, std::move(targets)}, about));
}

KVSIM_REGISTER_VERB("energy", {"energy and area of methods on accelerators, item by item", run});

}  // namespace
}  // namespace kvsim
