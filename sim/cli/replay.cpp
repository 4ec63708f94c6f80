// kvsim replay: replays traces through methods and costs what they read.

#include <boost/program_options/value_semantic.hpp>
#include <chrono>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/output_file.h"
#include "kernels/device/kernel.h"
#include "kernels/measure/gpu.h"
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
      "where the methods run: cpu, or cuda for their kernels on this machine's GPU")(
      "measure", po::bool_switch(), "time the kernels too (with --device cuda)");
  add_accelerator_options(line);
  add_llm_options(line);
  add_replay_options(line);
  add_memory_options(line);
  line.own()("output,o", po::value<std::string>()->value_name("RUN.h5"),
             "write every figure by layer, step and head");
  return line;
}

/// Kernels read K and V as the trace has them, so no other bytes can be timed.
void check_measure(const CommandLine& line) {
  if (line.text("device") != "cuda") throw UsageError("--measure needs --device cuda");
  if (line.text("layout") != "hnd") {
    fail<UsageError>("--layout {}: --measure times K and V as the trace has them, hnd",
                     line.text("layout"));
  }
  if (line.given("kv-dtype")) {
    fail<UsageError>("--kv-dtype {}: --measure times K and V as the trace has them",
                     line.text("kv-dtype"));
  }
}

/// Throws UsageError for a method without a kernel, RuntimeError if there is no GPU to run it on.
void check_device(const CommandLine& line) {
  const std::string device = line.text("device");
  if (device != "cpu" && device != "cuda") {
    fail<UsageError>("--device {}: expected cpu or cuda", device);
  }
  if (line.given("measure")) check_measure(line);
  if (device == "cpu") return;
  if (!measure_backend().info) throw RuntimeError("--device cuda: this build has no CUDA kernels");
  for (const std::string& spec : method_specs(line)) {
    const NamedMethod method = make_method(spec);
    kernel_registry().at(method.name).make(method.parameters);
    if (method.parameters.choice("implementation") == "published") {
      fail<UsageError>("{}: implementation=published is a cost model only, it has no kernel", spec);
    }
  }
  gpu_info();
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
  const std::vector<std::string> traces = line.list("trace");
  if (traces.empty()) throw UsageError("no trace given");
  check_device(line);
  const Presets presets(line.presets());
  ReplayOptions options = replay_options(line, traces);
  options.targets = targets_without_gpu_format(line, presets);
  options.on_gpu = line.text("device") == "cuda";
  options.measure = line.given("measure");
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
