// kvsim trace import: makes a trace of a safetensors or FlashInfer-Trace file.

#include <boost/program_options/value_semantic.hpp>
#include <utility>

#include "core/error.h"
#include "core/output_file.h"
#include "sim/cli/command_line.h"
#include "sim/cli/trace_verb.h"
#include "sim/cli/version.h"
#include "sim/json.h"
#include "traces/check.h"
#include "traces/import.h"

namespace kvsim {
namespace {

namespace po = boost::program_options;

constexpr std::int64_t kMost = std::int64_t{1} << 40;

auto number() { return po::value<std::string>()->value_name("N"); }

void run(const std::vector<std::string>& words) {
  CommandLine line("trace import FILE -o TRACE.h5 [options]",
                   "Makes a trace of a .safetensors file or a FlashInfer-Trace workload (.jsonl).");
  line.take_positional("input", "FILE  what to import");
  line.own()("output,o", po::value<std::string>()->value_name("TRACE.h5"), "file to write")(
      "compress", po::bool_switch(), "shuffle and gzip the file")(
      "workload", number(), "line of a FlashInfer-Trace file, from 0 (default: its only one)")(
      "sequence", number(), "request of its batch, from 0 (default: its only one)");
  if (!line.parse(words)) return;
  const std::vector<std::string> inputs = line.list("input");
  if (inputs.size() != 1) fail<UsageError>("found {} files to import, expected one", inputs.size());
  if (!line.given("output")) throw UsageError("--output is missing");
  refuse_input_as_output(line.text("output"), inputs);
  ImportOptions options;
  options.force = line.force();
  options.compress = line.given("compress");
  if (line.given("workload")) options.workload = line.integer("workload", 0, kMost);
  if (line.given("sequence")) options.sequence = line.integer("sequence", 0, kMost);
  const ImportResult result = import_trace(inputs[0], line.text("output"), options);
  const Json document{{"schema", "kvsim.trace_import/1"},
                      {"version", version()},
                      {"commit", commit()},
                      {"input", inputs[0]},
                      {"path", line.text("output")},
                      {"trace", json_of(result.info)},
                      {"notes", result.notes}};
  if (line.json()) return print_document(document);
  std::string text = line.text("output") + ": " + summarize(result.info) + "\n";
  for (const std::string& note : result.notes) text += "- " + note + "\n";
  print_text(text);
}

KVSIM_REGISTER_TRACE_VERB("import",
                          {"make a trace of a safetensors or FlashInfer-Trace file", run});

}  // namespace
}  // namespace kvsim
