// kvsim predict: asks the models without a trace.

#include "sim/predict.h"

#include <boost/program_options/value_semantic.hpp>
#include <utility>

#include "core/error.h"
#include "sim/cli/replay_options.h"
#include "sim/cli/verb.h"
#include "sim/cli/version.h"
#include "sim/kv_dtype.h"
#include "sim/report.h"

namespace kvsim {
namespace {

namespace po = boost::program_options;

constexpr std::int64_t kMostContext = std::int64_t{1} << 24;
constexpr std::int64_t kMostBatch = std::int64_t{1} << 16;
constexpr std::int64_t kMostGpus = 1024;

CommandLine make_command_line() {
  CommandLine line(
      "predict --method M... (--llm NAME | --config FILE) --context N [options]",
      "Predicts attention and the whole decode step from the models, without a trace.");
  add_method_option(line);
  line.own()("gpu", po::value<std::string>()->value_name("NAME")->default_value("h200_sxm"),
             "GPU (kvsim list gpus)");
  add_llm_options(line);
  line.own()("context", po::value<std::string>()->value_name("N"), "tokens of every sequence")(
      "batch", po::value<std::string>()->value_name("B")->default_value("1"), "sequences")(
      "tp", po::value<std::string>()->value_name("N")->default_value("1"),
      "GPUs that share the model (tensor parallelism)")(
      "stats", po::value<std::string>()->value_name("RUN.h5"),
      "row counts from a run of kvsim replay -o (default: the method's bounds)")(
      "explain", po::bool_switch(), "print stages, accesses and terms of every layer");
  line.own()("layout", po::value<std::string>()->value_name("L")->default_value("hnd"),
             "how K and V lie in memory: hnd, nhd, paged or paged:TOKENS")(
      "l2", po::value<std::string>()->value_name("STATE")->default_value("cold"),
      "L2 before a step: cold or warm")(
      "kv-dtype", po::value<std::string>()->value_name("T")->default_value("bf16"),
      "bf16, fp16, fp8, int8 or fp4");
  return line;
}

PredictOptions predict_options(const CommandLine& line) {
  const Presets presets(line.presets());
  PredictOptions options;
  options.program_version = version();
  options.program_commit = commit();
  options.methods = method_specs(line);
  const KvDtype dtype = parse_kv_dtype(line.text("kv-dtype"));
  options.kv_dtype = dtype.name;
  options.gpu = line.text("gpu");
  options.target =
      gpu_target(presets.gpu(options.gpu), dtype.format, parse_cache_layout(line.text("layout")),
                 parse_cache_state(line.text("l2")));
  if (!line.given("context")) throw UsageError("--context is missing");
  options.context = line.integer("context", 1, kMostContext);
  options.batch = line.integer("batch", 1, kMostBatch);
  options.defaults = line.defaults({"gpu", "batch", "tp", "layout", "l2", "kv-dtype"});
  std::optional<Llm> llm = llm_option(line, presets);
  if (!llm) throw UsageError("no LLM given: --llm NAME or --config config.json");
  options.llm = share_of_llm(*llm, static_cast<int>(line.integer("tp", 1, kMostGpus)));
  if (line.given("stats")) options.statistics.emplace(line.text("stats"));
  return options;
}

void run(const std::vector<std::string>& words) {
  CommandLine line = make_command_line();
  if (!line.parse(words)) return;
  const Json document = predict_document(predict_options(line));
  if (line.json()) return print_document(document);
  print_text(predict_report(document) + (line.given("explain") ? explain_report(document) : ""));
}

KVSIM_REGISTER_VERB("predict", {"predict attention and decode step from the models alone", run});

}  // namespace
}  // namespace kvsim
