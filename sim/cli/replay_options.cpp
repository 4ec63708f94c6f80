#include "sim/cli/replay_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options/value_semantic.hpp>
#include <cstdio>
#include <utility>

#include "core/error.h"
#include "traces/trace_file.h"

namespace kvsim {

namespace po = boost::program_options;

namespace {

constexpr std::int64_t kMaxRepeats = 100000;
constexpr std::int64_t kMaxTraces = std::int64_t{1} << 20;  // what RandomStream tells apart

auto words() { return po::value<std::vector<std::string>>()->multitoken()->composing(); }

auto word(const char* shown) { return po::value<std::string>()->value_name(shown); }

}  // namespace

void add_method_option(CommandLine& line) {
  line.own()("method", words()->value_name("M..."),
             "methods, name:key=value,key=value (kvsim list methods); may be repeated");
}

void add_replay_options(CommandLine& line) {
  line.own()("layers", word("LIST"), "layers to replay, such as 0,7-9 (default: all)")(
      "steps", word("LIST"), "decode steps to replay (default: all)")(
      "repeats", word("N")->default_value("1"), "seeds to pool: seed, seed+1, ...");
}

void add_memory_options(CommandLine& line) {
  line.own()("layout", word("L")->default_value("hnd"),
             "how K and V lie in memory: hnd, nhd, paged or paged:TOKENS")(
      "l2", word("STATE")->default_value("cold"), "L2 before a step: cold or warm")(
      "kv-dtype", word("T"),
      "bf16, fp16, fp8, int8 or fp4, for bytes only: values stay as the trace has them "
      "(default: the trace's type, bf16 for float32)");
}

void add_accelerator_options(CommandLine& line) {
  line.own()("accelerator", words()->value_name("NAME..."),
             "accelerators to cost the methods on (kvsim list accelerators)")(
      "node", word("NM"), "their process node (default: each accelerator's own)")(
      "memory", word("NAME"), "their memory (default: each accelerator's own)");
}

void add_llm_options(CommandLine& line) {
  line.own()("llm", word("NAME"), "the whole model's decode step (kvsim list llms)")(
      "config", word("FILE"), "the same from a Hugging Face config.json");
}

std::vector<std::string> method_specs(const CommandLine& line) {
  const std::vector<std::string> specs = line.list("method");
  if (specs.empty()) {
    fail<UsageError>("--method is missing, expected one or more of: {}",
                     fmt::join(method_registry().shown_names(), ", "));
  }
  for (const std::string& spec : specs) make_method(spec);
  return specs;
}

ReplayOptions replay_options(const CommandLine& line, std::vector<std::string> traces) {
  if (static_cast<std::int64_t>(traces.size()) > kMaxTraces) throw UsageError("too many traces");
  ReplayOptions options;
  options.traces = std::move(traces);
  options.methods = method_specs(line);
  if (line.given("layers")) options.layers = IndexList::parse(line.text("layers"), "--layers");
  if (line.given("steps")) options.steps = IndexList::parse(line.text("steps"), "--steps");
  options.repeats = static_cast<int>(line.integer("repeats", 1, kMaxRepeats));
  options.seed = line.seed();
  options.threads = line.threads();
  return options;
}

KvDtype kv_dtype_option(const CommandLine& line, const std::string& trace,
                        std::vector<DefaultUsed>& defaults) {
  if (line.given("kv-dtype")) return parse_kv_dtype(line.text("kv-dtype"));
  const TraceReader reader(trace);
  const auto& layers = reader.info().layers;
  KvDtype dtype = kv_dtype_of(layers.empty() ? ElementType::kBfloat16 : layers.front().kv_type);
  defaults.push_back({"--kv-dtype", dtype.name});
  return dtype;
}

std::vector<Target> accelerator_targets(const CommandLine& line, const Presets& presets) {
  const std::vector<std::string> names = line.list("accelerator");
  for (const char* flag : {"node", "memory"}) {
    if (names.empty() && line.given(flag)) {
      fail<UsageError>("--{} {} needs --accelerator", flag, line.text(flag));
    }
  }
  std::vector<Target> targets;
  for (const std::string& name : names) {
    if (std::count(names.begin(), names.end(), name) > 1) {
      fail<UsageError>("--accelerator {} is given twice", name);
    }
    targets.push_back(accelerator_target(
        presets.accelerator(name, line.text("node"), line.text("memory")),
        parse_cache_layout(line.text("layout")), parse_cache_state(line.text("l2"))));
  }
  return targets;
}

void add_accelerator_defaults(const CommandLine& line, std::span<const Target> targets,
                              std::vector<DefaultUsed>& defaults) {
  for (const Target& target : targets) {
    const Machine& machine = target.machine;
    if (!line.given("node")) {
      defaults.push_back({"--node", fmt::format("{} nm ({})", machine.node_nm, machine.name)});
    }
    if (!line.given("memory")) {
      defaults.push_back({"--memory", fmt::format("{} ({})", machine.memory.name, machine.name)});
    }
  }
}

std::optional<Llm> llm_option(const CommandLine& line, const Presets& presets) {
  if (line.given("llm") && line.given("config")) {
    throw UsageError("--llm and --config: give one of them");
  }
  if (line.given("llm")) return presets.llm(line.text("llm"));
  if (line.given("config")) return llm_from_config(line.text("config"));
  return std::nullopt;
}

void log_throughput(const Replay& replay, double seconds) {
  fmt::print(stderr, "replayed {:.3g} GB of K and V in {:.3g} s ({:.3g} GB/s)\n",
             replay.stored_bytes * 1e-9, seconds, replay.stored_bytes * 1e-9 / seconds);
}

}  // namespace kvsim
