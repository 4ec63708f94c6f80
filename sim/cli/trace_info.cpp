// kvsim trace info: what a trace file says of itself, and what its attention looks like.

#include <fmt/format.h>

#include <boost/program_options/value_semantic.hpp>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "core/table.h"
#include "sim/cli/command_line.h"
#include "sim/cli/trace_verb.h"
#include "sim/cli/version.h"
#include "sim/json.h"
#include "sim/method_table.h"
#include "traces/check.h"
#include "traces/trace_file.h"

namespace kvsim {
namespace {

namespace po = boost::program_options;

void set(Json& json, const std::string& key, const std::optional<double>& value,
         const char* reason) {
  json[key] = value ? Json(finite(*value)) : Json(nullptr);
  if (!value) json[key + "_reason"] = reason;
}

Json attention_json(const LayerReport& layer) {
  constexpr const char* kOneHead = "one query head for each KV head";
  const LayerStatistics& statistics = layer.statistics;
  Json json{{"layer", layer.info.layer},
            {"measured_steps", statistics.measured_steps},
            {"entropy_nats", finite(statistics.mean.entropy_nats)},
            {"top1_probability", finite(statistics.mean.top1_probability)},
            {"first_4_tokens_mass", finite(statistics.mean.sink_mass)},
            {"last_256_tokens_mass", finite(statistics.mean.window_mass)},
            {"sink_logit_share", finite(statistics.sink_share)},
            {"largest_logit", finite(statistics.largest_logit)}};
  set(json, "group_cosine", statistics.group_cosine, kOneHead);
  set(json, "group_overlap", statistics.group_overlap, kOneHead);
  set(json, "drift", statistics.drift, "one decode step");
  json["q_type"] = to_string(layer.q_type);
  json["kv_bytes"] = layer.kv_bytes;
  json["probe_steps"] = layer.probe_steps;
  json["has_output"] = layer.has_output;
  json["has_attention_sum"] = layer.has_attention_sum;
  json["has_sink_logits"] = layer.has_sink_logits;
  json["parameters"] = Json::array();
  for (const ParameterReport& each : layer.parameters) {
    json["parameters"].push_back(
        {{"name", each.name}, {"shape", each.shape}, {"type", to_string(each.type)}});
  }
  json["prepared"] = Json::array();
  for (const PreparedReport& each : layer.prepared) {
    json["prepared"].push_back(
        {{"method", each.method}, {"settings", each.settings}, {"bytes", each.bytes}});
  }
  set(json, "output_error", layer.output_error, "the trace stores no output");
  return json;
}

/// Attributes only: a moment for a file of any size.
Json quick_document(const std::string& path) {
  const TraceReader reader(path);
  return {{"schema", "kvsim.trace_info/1"},
          {"version", version()},
          {"commit", commit()},
          {"trace", json_of(reader.info())},
          {"file_bytes", std::filesystem::file_size(path)},
          {"has_tokens", nullptr},
          {"has_tokens_reason", "--quick reads attributes only"},
          {"attention", nullptr},
          {"attention_reason", "--quick reads attributes only"}};
}

Json document_of(const std::string& path, std::int64_t max_steps) {
  const TraceReport report = describe_trace(path, {.max_steps = max_steps});
  Json attention = Json::array();
  for (const LayerReport& layer : report.layers) attention.push_back(attention_json(layer));
  return {{"schema", "kvsim.trace_info/1"},
          {"version", version()},
          {"commit", commit()},
          {"trace", json_of(report.info)},
          {"file_bytes", report.file_bytes},
          {"has_tokens", report.has_tokens},
          {"attention", std::move(attention)}};
}

std::string layers_text(const Json& trace) {
  Table table({"layer", "query heads", "KV heads", "head size", "V size", "scale", "window", "cap",
               "layout", "type"});
  for (const Json& layer : trace.at("layers")) {
    std::vector<std::string> cells;
    for (const char* key : {"layer", "q_heads", "kv_heads", "head_dim", "v_head_dim", "scale",
                            "window", "logit_cap"}) {
      cells.push_back(number_text(layer.at(key)));
    }
    cells.push_back(layer.at("layout").get<std::string>());
    cells.push_back(layer.at("type").get<std::string>());
    table.add_row(cells);
  }
  return table.text();
}

std::string attention_text(const Json& attention) {
  Table table({"layer", "entropy, nats", "top-1", "first 4", "last 256", "largest logit",
               "group cosine", "group overlap", "drift", "output error"});
  for (const Json& layer : attention) {
    std::vector<std::string> cells;
    for (const char* key : {"layer", "entropy_nats", "top1_probability", "first_4_tokens_mass",
                            "last_256_tokens_mass", "largest_logit", "group_cosine",
                            "group_overlap", "drift", "output_error"}) {
      cells.push_back(number_text(layer.at(key)));
    }
    table.add_row(cells);
  }
  return "\nattention, means over heads and steps (exact, float64)\n" + table.text();
}

std::string parameters_text(const Json& attention) {
  Table table({"layer", "learned parameter", "shape", "type"});
  for (const std::size_t column : {1u, 2u, 3u}) table.align_left(column);
  bool any = false;
  for (const Json& layer : attention) {
    for (const Json& each : layer.at("parameters")) {
      any = true;
      table.add_row({number_text(layer.at("layer")), each.at("name").get<std::string>(),
                     each.at("shape").dump(), each.at("type").get<std::string>()});
    }
  }
  return any ? fmt::format("\n{}", table.text()) : "";
}

std::string prepared_text(const Json& attention) {
  Table table({"layer", "prepared for", "bytes", "settings"});
  for (const std::size_t column : {1u, 3u}) table.align_left(column);
  bool any = false;
  for (const Json& layer : attention) {
    for (const Json& each : layer.at("prepared")) {
      any = true;
      table.add_row({number_text(layer.at("layer")), each.at("method").get<std::string>(),
                     whole_text(each.at("bytes")), each.at("settings").get<std::string>()});
    }
  }
  return any ? fmt::format("\n{}", table.text()) : "";
}

std::string report(const Json& document) {
  const Json& trace = document.at("trace");
  std::string text = fmt::format("{}\n", trace.at("path").get<std::string>());
  for (const char* key : {"model", "source", "license"}) {
    text += fmt::format("  {}: {}\n", key, trace.at(key).get<std::string>());
  }
  text += fmt::format("  prompt tokens {}, decode steps {}{}, file {} bytes\n\n",
                      trace.at("prompt_tokens").get<std::int64_t>(),
                      trace.at("decode_steps").get<std::int64_t>(),
                      trace.at("synthetic").get<bool>() ? ", synthetic" : "",
                      document.at("file_bytes").get<std::int64_t>());
  text += layers_text(trace);
  const Json& attention = document.at("attention");
  if (!attention.is_null()) {
    text += attention_text(attention) + parameters_text(attention) + prepared_text(attention);
  }
  return text;
}

void run(const std::vector<std::string>& words) {
  CommandLine line("trace info TRACE [options]",
                   "Shows what a trace file says of itself and measures its attention.");
  line.take_positional("trace", "TRACE  one trace file");
  line.own()("quick", po::bool_switch(), "attributes only, no data are read")(
      "max-steps", po::value<std::string>()->value_name("N")->default_value("16"),
      "measure at most so many steps, evenly spread; 0 = all");
  if (!line.parse(words)) return;
  const std::vector<std::string> traces = line.list("trace");
  if (traces.size() != 1) fail<UsageError>("found {} traces, expected one", traces.size());
  const std::int64_t steps = line.integer("max-steps", 0, std::int64_t{1} << 24);
  const Json document =
      line.given("quick") ? quick_document(traces[0]) : document_of(traces[0], steps);
  if (line.json()) return print_document(document);
  print_text(report(document));
}

KVSIM_REGISTER_TRACE_VERB("info",
                          {"what a trace says of itself, and what its attention looks like", run});

}  // namespace
}  // namespace kvsim
