// kvsim replay: replays traces through methods and costs what they read.

#include <boost/program_options/value_semantic.hpp>
#include <chrono>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/output_file.h"
#include "sim/cli/replay_options.h"
#include "sim/cli/verb.h"
#include "sim/cli/version.h"
#include "sim/report.h"
#include "sim/results.h"

namespace kvsim {
namespace {

namespace po = boost::program_options;

CommandLine make_command_line() {
  CommandLine line(
      "replay TRACE... --method M... [options]",
      "Replays traces through sparse attention methods: rows, error, bytes, time, energy.");
  line.take_positional("trace", "TRACE...  trace files, independent sequences that are pooled");
  add_method_option(line);
  line.own()("gpu", po::value<std::string>()->value_name("NAME")->default_value("h200_sxm"),
             "GPU to predict time and energy for (kvsim list gpus)")(
      "device", po::value<std::string>()->value_name("D")->default_value("cpu"),
      "where the methods run: cpu or cuda");
  add_accelerator_options(line);
  add_llm_options(line);
  add_replay_options(line);
  add_memory_options(line);
  line.own()("output,o", po::value<std::string>()->value_name("RUN.h5"),
             "write every figure by layer, step and head");
  return line;
}

void check_device(const std::string& device) {
  if (device == "cuda") throw UsageError("--device cuda: this build has no CUDA kernels");
  if (device != "cpu") fail<UsageError>("--device {}: expected cpu or cuda", device);
}

/// Names and values are checked before any file is opened.
std::vector<Target> targets_without_gpu_format(const CommandLine& line, const Presets& presets) {
  std::vector<Target> targets;
  targets.push_back(gpu_target(presets.gpu(line.text("gpu")), {},
                               parse_cache_layout(line.text("layout")),
                               parse_cache_state(line.text("l2"))));
  for (Target& target : accelerator_targets(line, presets)) targets.push_back(std::move(target));
  return targets;
}

void run(const std::vector<std::string>& words) {
  CommandLine line = make_command_line();
  if (!line.parse(words)) return;
  check_device(line.text("device"));
  const std::vector<std::string> traces = line.list("trace");
  if (traces.empty()) throw UsageError("no trace given");
  const Presets presets(line.presets());
  ReplayOptions options = replay_options(line, traces);
  options.targets = targets_without_gpu_format(line, presets);
  DocumentOptions about{.program_version = version(),
                        .program_commit = commit(),
                        .gpu = line.text("gpu"),
                        .kv_dtype = "",
                        .llm = llm_option(line, presets),
                        .defaults = line.defaults({"gpu", "layout", "l2", "seed", "repeats"})};
  const KvDtype dtype = kv_dtype_option(line, traces.front(), about.defaults);
  about.kv_dtype = dtype.name;
  add_accelerator_defaults(line, std::span(options.targets).subspan(1), about.defaults);
  options.targets[0].format = dtype.format;
  std::optional<OutputFile> output;  // refuses before the work, not after
  if (line.given("output")) {
    refuse_input_as_output(line.text("output"), traces);
    output.emplace(line.text("output"), line.force());
  }

  const auto start = std::chrono::steady_clock::now();
  const Replay result = replay(std::move(options));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const Json document = replay_document(result, about);
  if (output) write_results(std::move(*output), result, document);
  if (line.json()) {
    print_document(document);
  } else {
    print_text(replay_report(document));
  }
  log_throughput(result, seconds.count());  // last: a failure is one line on standard error
}

KVSIM_REGISTER_VERB("replay",
                    {"replay traces through methods: rows, error, bytes, time, energy", run});

}  // namespace
}  // namespace kvsim
