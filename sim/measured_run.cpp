#include "sim/measured_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"
#include "sim/results.h"
#include "sim/scaled_statistics.h"
#include "traces/trace_format.h"

namespace kvsim {
namespace {

constexpr double kMostCount = 0x1p53;  // counts are exact integers in doubles

double number(const JsonNode& node, double low, double high) {
  const double value = node.number();
  if (!(value >= low && value <= high)) {
    node.fail_with(fmt::format("found {}, expected {} to {}", value, low, high));
  }
  return value;
}

std::int64_t whole(const JsonNode& node, std::int64_t low, std::int64_t high) {
  const double value = number(node, static_cast<double>(low), static_cast<double>(high));
  if (value != std::floor(value)) {
    node.fail_with(fmt::format("found {}, expected a whole number", value));
  }
  return static_cast<std::int64_t>(value);
}

int size(const JsonNode& node, std::int64_t most) { return static_cast<int>(whole(node, 1, most)); }

HeadShape heads_from(const JsonNode& json) {
  HeadShape heads;
  heads.q_heads = size(json.at("q_heads"), trace_format::kMostHeads);
  heads.kv_heads = size(json.at("kv_heads"), heads.q_heads);
  heads.head_dim = size(json.at("head_dim"), trace_format::kMostDim);
  heads.v_head_dim = size(json.at("v_head_dim"), trace_format::kMostDim);
  heads.latent = json.at("latent").boolean();
  if (heads.q_heads % heads.kv_heads != 0) {
    json.at("kv_heads")
        .fail_with(fmt::format("found {}, expected a divisor of q_heads = {}", heads.kv_heads,
                               heads.q_heads));
  }
  return heads;
}

MeasuredLayer layer_from(const JsonNode& json) {
  constexpr auto kMostTokens = static_cast<double>(trace_format::kMostTokens);
  MeasuredLayer layer;
  layer.layer = static_cast<int>(whole(json.at("layer"), 0, trace_format::kMostLayer));
  layer.window = static_cast<std::int64_t>(std::min(number(json.at("window"), 0, 0x1p63), 0x1p62));
  layer.heads = heads_from(json);
  layer.context_mean = number(json.at("context_mean"), 1, kMostTokens);
  layer.context_max = number(json.at("context_max"), layer.context_mean, kMostTokens);
  layer.prompt_tokens = whole(json.at("prompt_tokens"), 1, trace_format::kMostTokens);
  const JsonNode statistics = json.at("statistics");
  for (const auto& [name, field] : kStatisticsFields) {
    layer.statistics.*field = number(statistics.at(std::string(name)), 0, kMostCount);
  }
  // A row is counted once for each KV head.
  const double most_rows = std::ceil(layer.context_max) * layer.heads.kv_heads;
  for (const char* name : {"k_rows", "v_rows"}) number(statistics.at(name), 0, most_rows);
  return layer;
}

/// True if the method reads the same whatever the data: then its bounds say all.
bool reads_always_the_same(const Method& method) {
  constexpr std::array<std::int64_t, 1> kContext{4096};
  Shape shape;
  shape.contexts = kContext;
  shape.q_heads = 8;
  shape.kv_heads = 2;
  shape.head_dim = 128;
  shape.v_head_dim = 128;
  const Method::Bounds bounds = method.bounds(shape);
  return bounds.low == bounds.high;
}

}  // namespace

MeasuredRun::MeasuredRun(const std::string& path)
    : path_(path), document_(read_document(path, "kvsim.replay/1")) {}

std::optional<JsonNode> MeasuredRun::find(const NamedMethod& method) const {
  const Json params = json_of(method.parameters);
  for (const JsonNode& candidate : root().at("methods").items()) {
    const bool same_name = candidate.at("method").text() == method.name;
    if (same_name && candidate.at("params").json() == params) return candidate;
  }
  return std::nullopt;
}

std::vector<MeasuredLayer> MeasuredRun::layers(const NamedMethod& method) const {
  const std::optional<JsonNode> found = find(method);
  if (!found) {
    std::vector<std::string> specs;
    for (const JsonNode& candidate : root().at("methods").items()) {
      specs.push_back(candidate.at("spec").text());
    }
    fail<UsageError>("--stats {}: no statistics of {} {}, only of: {}", path_, method.name,
                     json_of(method.parameters).dump(), fmt::join(specs, ", "));
  }
  std::vector<MeasuredLayer> layers;
  const JsonNode by_layer = found->at("by_layer");
  for (const JsonNode& layer : by_layer.items()) layers.push_back(layer_from(layer));
  if (layers.empty()) by_layer.fail_with("is empty, expected the statistics of a layer");
  return layers;
}

std::vector<MeasuredLayer> MeasuredRun::layers_if_needed(const NamedMethod& method) const {
  if (!find(method) && reads_always_the_same(*method.method)) return {};
  return layers(method);
}

}  // namespace kvsim
