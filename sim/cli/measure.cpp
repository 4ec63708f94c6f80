// kvsim measure: times our CUDA kernels on the GPU of this machine.

#include "sim/measure.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <boost/program_options/value_semantic.hpp>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/output_file.h"
#include "kernels/device/kernel.h"
#include "sim/child_process.h"
#include "sim/cli/replay_options.h"
#include "sim/cli/verb.h"
#include "sim/cli/version.h"
#include "sim/measure_trace.h"

namespace kvsim {
namespace {

namespace po = boost::program_options;

constexpr std::int64_t kMostContext = std::int64_t{1} << 21;
constexpr std::int64_t kMostHeads = 1024;
constexpr std::int64_t kMostHeadDim = 256;
constexpr int kMostProcesses = 100;
constexpr int kMostSamples = 100000;
/// First word of a process that another one started; then its index.
constexpr const char* kAsProcess = "--as-process";

auto word(const char* shown) { return po::value<std::string>()->value_name(shown); }

CommandLine make_command_line() {
  CommandLine line("measure --method M... (--context N[,N...] | --trace FILE) [options]",
                   "Times our CUDA kernels, beside a baseline, a read ceiling and the prediction.");
  add_method_option(line);
  line.own()("shape", word("H/K/D[,...]")->default_value("32/8/128"),
             "query heads / KV heads / head size")(
      "context", word("N[,...]"), "tokens of every sequence; N+N+... = one batch of these lengths")(
      "batch", word("B[,...]")->default_value("1"), "sequences")(
      "dtype", word("T[,...]")->default_value("bf16"), "of q, K and V: bf16 or fp16")(
      "layout", word("L[,...]")->default_value("hnd"),
      "how K and V lie in memory: hnd, nhd, paged or paged:TOKENS")(
      "query-sd", word("X[,...]")->default_value("1"),
      "standard deviation of the queries: 1 = flat softmax, 4 = peaky")(
      "trace", word("FILE"), "queries, keys and values of a trace instead of random ones")(
      "layers", word("LIST"), "its layers, such as 0,7-9 (default: the first)")(
      "steps", word("LIST"), "its decode steps (default: the middle one)")(
      "samples", word("N")->default_value("30"), "rounds at least")(
      "seconds", word("S")->default_value("2"),
      "go on until the noise is below 0.5 %, at most so long")(
      "processes", word("N")->default_value("5"), "processes, each with a seed of its own")(
      "baseline", word("M")->default_value("dense"), "method that speed-ups are against")(
      "gpu", word("NAME")->default_value("h200_sxm"), "GPU preset of the prediction")(
      "output,o", word("FILE.csv"), "write the rows as CSV")(
      "check", po::bool_switch(), "check results only: no times, one process")(
      "between", word("COMMAND"), "shell command to run before each process, to take turns with");
  return line;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts{""};
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

template <typename Number>
Number number(const std::string& flag, const std::string& text, Number low, Number high) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < low || value > high) {
    fail<UsageError>("--{} {}: expected a number from {} to {}", flag, text, low, high);
  }
  return value;
}

void set_heads(const std::string& text, MeasureCase& shape) {
  const std::vector<std::string> parts = split(text, '/');
  if (parts.size() != 3) {
    fail<UsageError>("--shape {}: expected QUERY_HEADS/KV_HEADS/HEAD_SIZE", text);
  }
  shape.q_heads = static_cast<int>(number<std::int64_t>("shape", parts[0], 1, kMostHeads));
  shape.kv_heads = static_cast<int>(number<std::int64_t>("shape", parts[1], 1, kMostHeads));
  shape.head_dim = static_cast<int>(number<std::int64_t>("shape", parts[2], 8, kMostHeadDim));
  if (shape.q_heads % shape.kv_heads != 0 || shape.head_dim % 8 != 0) {
    fail<UsageError>(
        "--shape {}: KV heads must divide query heads, and 8 must divide the head size", text);
  }
}

void set_type(const std::string& text, MeasureCase& shape) {
  if (text != "bf16" && text != "fp16") {
    fail<UsageError>("--dtype {}: expected bf16 or fp16", text);
  }
  shape.type = text == "fp16" ? ElementType::kFloat16 : ElementType::kBfloat16;
}

void set_layout(const std::string& text, MeasureCase& shape) {
  const CacheLayout layout = parse_cache_layout(text);
  if (layout.kind == LayoutKind::kHnd) shape.layout = MeasureLayout::kHnd;
  if (layout.kind == LayoutKind::kNhd) shape.layout = MeasureLayout::kNhd;
  if (layout.kind != LayoutKind::kPaged) return;
  shape.layout = MeasureLayout::kPaged;
  shape.page_tokens = layout.page_tokens;
  if (!std::has_single_bit(static_cast<unsigned>(layout.page_tokens)) || layout.page_tokens < 16) {
    fail<UsageError>("--layout {}: expected pages of a power of two from 16 on", text);
  }
}

/// The batches that --context and --batch ask for; lengths joined by '+' are a batch by themselves.
std::vector<std::vector<std::int32_t>> batches(const CommandLine& line) {
  if (!line.given("context")) throw UsageError("--context is missing, or --trace");
  std::vector<std::vector<std::int32_t>> result;
  for (const std::string& context : split(line.text("context"), ',')) {
    std::vector<std::int32_t> lengths;
    for (const std::string& length : split(context, '+')) {
      lengths.push_back(
          static_cast<std::int32_t>(number<std::int64_t>("context", length, 1, kMostContext)));
    }
    if (lengths.size() > kMaxBatch) {
      fail<UsageError>("--context {}: expected at most {} lengths", context, kMaxBatch);
    }
    for (const std::string& batch : split(line.text("batch"), ',')) {
      const auto sequences = number<std::int64_t>("batch", batch, 1, kMaxBatch);
      result.push_back(lengths.size() > 1 ? lengths
                                          : std::vector<std::int32_t>(
                                                static_cast<std::size_t>(sequences), lengths[0]));
      if (lengths.size() > 1) break;
    }
  }
  return result;
}

/// Every choice of one list with every case so far.
template <typename Set>
std::vector<MeasureCase> crossed(const std::vector<MeasureCase>& cases, const std::string& list,
                                 const Set& set) {
  std::vector<MeasureCase> result;
  for (const std::string& choice : split(list, ',')) {
    for (MeasureCase shape : cases) {
      set(choice, shape);
      result.push_back(std::move(shape));
    }
  }
  return result;
}

/// What a trace says itself is not asked for.
std::vector<MeasureCase> cases_of_trace(const CommandLine& line) {
  for (const char* flag : {"context", "batch", "query-sd", "dtype", "shape"}) {
    if (!line.given(flag)) continue;
    fail<UsageError>("--{} {}: --trace {} has its own", flag, line.text(flag), line.text("trace"));
  }
  TraceChoice choice{line.text("trace"), {}, {}};
  if (line.given("layers")) choice.layers = IndexList::parse(line.text("layers"), "--layers");
  if (line.given("steps")) choice.steps = IndexList::parse(line.text("steps"), "--steps");
  return crossed(traced_cases(choice), line.text("layout"), set_layout);
}

std::vector<MeasureCase> cases_of(const CommandLine& line) {
  if (line.given("trace")) return cases_of_trace(line);
  for (const char* flag : {"layers", "steps"}) {
    if (line.given(flag)) fail<UsageError>("--{} {} needs --trace", flag, line.text(flag));
  }
  std::vector<MeasureCase> cases;
  for (const std::vector<std::int32_t>& contexts : batches(line)) {
    cases.emplace_back().contexts = contexts;
  }
  cases = crossed(cases, line.text("query-sd"), [](const std::string& text, MeasureCase& shape) {
    shape.query_sd = number<double>("query-sd", text, 0.0, 1000.0);
  });
  cases = crossed(cases, line.text("layout"), set_layout);
  cases = crossed(cases, line.text("dtype"), set_type);
  return crossed(cases, line.text("shape"), set_heads);
}

/// Defaults that say what data was measured.
void add_data_defaults(const CommandLine& line, MeasureOptions& options) {
  if (!line.given("trace")) {
    const auto random = line.defaults({"shape", "batch", "dtype", "query-sd"});
    options.defaults.insert(options.defaults.begin(), random.begin(), random.end());
    return;
  }
  const TracedStep& first = *options.cases.front().traced;
  if (!line.given("layers")) {
    options.defaults.push_back({"--layers", fmt::format("{}", first.layer->info.layer)});
  }
  if (!line.given("steps")) {
    options.defaults.push_back({"--steps", fmt::format("{}", first.step)});
  }
}

MeasureOptions options_of(const CommandLine& line) {
  MeasureOptions options;
  options.program_version = version();
  options.program_commit = commit();
  options.date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  options.methods = method_specs(line);
  const std::string baseline = line.text("baseline");
  make_method(baseline);
  std::erase(options.methods, baseline);
  options.methods.insert(options.methods.begin(), baseline);
  options.gpu = line.text("gpu");
  options.machine = Presets(line.presets()).gpu(options.gpu);
  options.seed = line.seed();
  options.least_samples = static_cast<int>(line.integer("samples", 2, kMostSamples));
  options.seconds = line.real("seconds", 0, 3600);
  options.check_only = line.given("check");
  if (options.check_only && line.given("output")) {
    throw UsageError("--check writes no CSV: leave out --output");
  }
  options.cases = cases_of(line);  // last: names and values are checked before a file is opened
  options.defaults =
      line.defaults({"layout", "samples", "seconds", "processes", "baseline", "gpu", "seed"});
  add_data_defaults(line, options);
  return options;
}

/// Fails before any process is started: no GPU, or a method without a kernel.
void check_machine(const MeasureOptions& options) {
  gpu_info();
  for (const std::string& spec : options.methods) {
    const NamedMethod method = make_method(spec);
    kernel_registry().at(method.name).make(method.parameters);
  }
}

/// A child says what is wrong in its output, so that its parent can say it once.
void run_as_process(const std::vector<std::string>& words) {
  Json result;
  try {
    CommandLine line = make_command_line();
    if (!line.parse({words.begin() + 2, words.end()})) return;
    const int process = number<int>("as-process", words.at(1), 0, kMostProcesses);
    result = json_of(measure_cases(options_of(line), process));
  } catch (const UsageError& error) {
    result = {{"usage_error", error.what()}};
  } catch (const std::exception& error) {
    result = {{"error", error.what()}};
  }
  print_text(result.dump());
}

MeasuredProcess run_process(const std::vector<std::string>& words, int index) {
  std::vector<std::string> arguments{"measure", kAsProcess, std::to_string(index)};
  arguments.insert(arguments.end(), words.begin(), words.end());
  const Json json = Json::parse(run_this_program(arguments));
  if (json.contains("usage_error")) throw UsageError(json["usage_error"].get<std::string>());
  if (json.contains("error")) throw RuntimeError(json["error"].get<std::string>());
  return measured_process_from(json);
}

/// Another program's turn; its output goes to our standard error.
void run_between(const std::string& command) {
  if (command.empty()) return;
  const int status = std::system(("{ " + command + "\n} >&2").c_str());
  if (status != 0) fail<RuntimeError>("--between {}: failed", command);
}

void print(const Json& document, const CommandLine& line) {
  if (line.json()) return print_document(document);
  print_text(line.given("check") ? measure_check_report(document) : measure_report(document));
}

void run(const std::vector<std::string>& words) {
  if (words.size() > 1 && words[0] == kAsProcess) return run_as_process(words);
  CommandLine line = make_command_line();
  if (!line.parse(words)) return;
  const MeasureOptions options = options_of(line);
  const auto processes = static_cast<int>(line.integer("processes", 1, kMostProcesses));
  check_machine(options);
  std::optional<OutputFile> output;  // refuses before the work, not after
  if (line.given("output")) {
    if (line.given("trace")) refuse_input_as_output(line.text("output"), {line.text("trace")});
    output.emplace(line.text("output"), line.force());
  }
  std::vector<MeasuredProcess> measured;
  for (int i = 0; i < processes && !options.check_only; ++i) {
    run_between(line.text("between"));
    measured.push_back(run_process(words, i));
  }
  if (options.check_only) measured.push_back(measure_cases(options, 0));
  const Json document = measure_document(options, measured);
  if (output) {
    write_text_file(output->temporary(), measure_csv(document), true);
    output->commit();
  }
  print(document, line);
  const std::string failed = failed_checks(document);
  if (!failed.empty()) throw RuntimeError(failed);
}

KVSIM_REGISTER_VERB("measure", {"time our CUDA kernels on this machine's GPU", run});

}  // namespace
}  // namespace kvsim
