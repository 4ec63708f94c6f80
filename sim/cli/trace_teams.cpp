// kvsim trace teams: forms the teams of SANTA++ once and keeps them with the trace.

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options/value_semantic.hpp>
#include <chrono>
#include <utility>

#include "core/error.h"
#include "core/output_file.h"
#include "core/parallel.h"
#include "core/progress.h"
#include "core/table.h"
#include "kernels/cache_of_layer.h"
#include "kernels/santapp/stored_teams.h"
#include "sim/cli/command_line.h"
#include "sim/cli/trace_verb.h"
#include "sim/cli/version.h"
#include "sim/json.h"
#include "sim/method_table.h"
#include "traces/trace_file.h"

namespace kvsim {
namespace {

namespace po = boost::program_options;

auto with_default(const char* text, const char* shown) {
  return po::value<std::string>()->value_name(shown)->default_value(text);
}

CommandLine make_command_line() {
  CommandLine line("trace teams TRACE -o TEAMS.h5 [options]",
                   "Writes a trace again, with the teams that the method santapp draws from.");
  line.take_positional("trace", "TRACE  one trace file");
  line.own()("output,o", po::value<std::string>()->value_name("TEAMS.h5"), "file to write")(
      "parent", with_default("16", "N"), "keys of a parent, on average")(
      "representatives", with_default("4", "N"), "teams that a parent falls into, at most")(
      "grouping", with_default("keys", "WORD"),
      "what makes a parent: keys, contiguous or probes (as the method's parameter)")(
      "compress", po::bool_switch(), "shuffle and gzip the file");
  return line;
}

santapp::TeamSettings settings_from(const CommandLine& line) {
  constexpr std::int64_t kMost = 1 << 16;
  santapp::TeamSettings settings;
  settings.parent = static_cast<int>(line.integer("parent", 1, kMost));
  settings.representatives = static_cast<int>(line.integer("representatives", 1, kMost));
  if (settings.parent % settings.representatives != 0) {
    fail<UsageError>("--representatives {}: expected a divisor of --parent {}",
                     settings.representatives, settings.parent);
  }
  const auto grouping = santapp::parse_grouping(line.text("grouping"));
  if (!grouping) {
    fail<UsageError>("--grouping {}: expected keys, contiguous or probes", line.text("grouping"));
  }
  settings.grouping = *grouping;
  return settings;
}

Json head_json(int kv_head, const santapp::Teams& teams) {
  std::int32_t largest = 0;
  for (std::int32_t t = 0; t < teams.partition.parts(); ++t) {
    largest = std::max(largest, teams.partition.size(t));
  }
  return {{"kv_head", kv_head},
          {"teams", teams.partition.parts()},
          {"keys_per_team", static_cast<double>(teams.partition.members.size()) /
                                static_cast<double>(teams.partition.parts())},
          {"largest_team", largest},
          {"state_bytes", santapp::stored_bytes(teams)}};
}

/// Adds a layer's teams to it, and says what they are like.
Json add_teams(TraceLayer& layer, std::int64_t prompt_tokens, const santapp::TeamSettings& settings,
               int threads) {
  const auto start = std::chrono::steady_clock::now();
  layer.prepared.erase(santapp::kStateName);
  std::vector<santapp::Teams> teams(static_cast<std::size_t>(layer.info.kv_heads));
  parallel_for(layer.info.kv_heads, threads, [&](std::int64_t head) {
    const CacheView prompt = cache_of_layer(layer, static_cast<int>(head), prompt_tokens);
    teams[static_cast<std::size_t>(head)] = santapp::make_teams(prompt, settings);
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  PreparedState& state = layer.prepared[santapp::kStateName];
  state.settings = to_string(settings);
  Json json{{"layer", layer.info.layer},
            {"measured_seconds", finite(seconds.count())},
            {"heads", Json::array()}};
  for (std::size_t head = 0; head < teams.size(); ++head) {
    state.heads.push_back(santapp::arrays_of(teams[head]));
    json["heads"].push_back(head_json(static_cast<int>(head), teams[head]));
  }
  return json;
}

Json write_teams(const std::string& from, const std::string& to, const CommandLine& line) {
  const santapp::TeamSettings settings = settings_from(line);
  const TraceReader reader(from);
  const TraceInfo& info = reader.info();
  TraceWriter writer(to, info, {.force = line.force(), .compress = line.given("compress")});
  if (const auto tokens = reader.read_tokens(); !tokens.empty()) writer.write_tokens(tokens);
  Progress progress("teams", static_cast<std::int64_t>(info.layers.size()));
  Json layers = Json::array();
  for (std::size_t i = 0; i < info.layers.size(); ++i) {
    TraceLayer layer = reader.read_layer(i);
    try {
      layers.push_back(add_teams(layer, info.prompt_tokens, settings, line.threads()));
    } catch (const RuntimeError& error) {
      fail<RuntimeError>("{}: layer {}: {}", from, layer.info.layer, error.what());
    }
    writer.write_layer(layer);
    progress.advance();
  }
  writer.commit();
  return {{"schema", "kvsim.trace_teams/1"},
          {"version", version()},
          {"commit", commit()},
          {"input", from},
          {"path", to},
          {"trace", json_of(info)},
          {"settings", to_string(settings)},
          {"defaults", json_of(line.defaults({"parent", "representatives", "grouping"}))},
          {"layers", std::move(layers)}};
}

std::string report(const Json& document) {
  Table table({"layer", "KV heads", "teams per head", "keys per team", "largest team",
               "state bytes", "seconds, measured"});
  for (const Json& layer : document.at("layers")) {
    const Json& heads = layer.at("heads");
    double teams = 0;
    std::int64_t largest = 0;
    std::int64_t bytes = 0;
    for (const Json& head : heads) {
      teams += head.at("teams").get<double>() / static_cast<double>(heads.size());
      largest = std::max(largest, head.at("largest_team").get<std::int64_t>());
      bytes += head.at("state_bytes").get<std::int64_t>();
    }
    const auto keys = document.at("trace").at("prompt_tokens").get<double>();
    table.add_row({number_text(layer.at("layer")), std::to_string(heads.size()), number_text(teams),
                   number_text(keys / teams), std::to_string(largest), std::to_string(bytes),
                   number_text(layer.at("measured_seconds"))});
  }
  return fmt::format("{}: teams of {}\n{}", document.at("path").get<std::string>(),
                     document.at("settings").get<std::string>(), table.text());
}

void run(const std::vector<std::string>& words) {
  CommandLine line = make_command_line();
  if (!line.parse(words)) return;
  const std::vector<std::string> traces = line.list("trace");
  if (traces.size() != 1) fail<UsageError>("found {} traces, expected one", traces.size());
  if (!line.given("output")) throw UsageError("--output is missing");
  refuse_input_as_output(line.text("output"), traces);
  const Json document = write_teams(traces[0], line.text("output"), line);
  if (line.json()) return print_document(document);
  print_text(report(document));
}

KVSIM_REGISTER_TRACE_VERB("teams", {"form the teams of SANTA++ and keep them with a trace", run});

}  // namespace
}  // namespace kvsim
