#include "sim/measured_run.h"

#include <fmt/format.h>

#include <array>

#include "core/error.h"
#include "sim/results.h"
#include "sim/scaled_statistics.h"

namespace kvsim {
namespace {

MeasuredLayer layer_from(const Json& json) {
  MeasuredLayer layer;
  layer.layer = json.at("layer").get<int>();
  layer.window = json.at("window").get<std::int64_t>();
  layer.heads = {json.at("q_heads").get<int>(), json.at("kv_heads").get<int>(),
                 json.at("head_dim").get<int>(), json.at("v_head_dim").get<int>(),
                 json.at("latent").get<bool>()};
  layer.context_mean = json.at("context_mean").get<double>();
  layer.context_max = json.at("context_max").get<double>();
  layer.prompt_tokens = json.at("prompt_tokens").get<std::int64_t>();
  for (const auto& [name, field] : kStatisticsFields) {
    layer.statistics.*field = json.at("statistics").at(std::string(name)).get<double>();
  }
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

const Json* MeasuredRun::find(const NamedMethod& method) const {
  const Json params = json_of(method.parameters);
  for (const Json& candidate : document_.at("methods")) {
    if (candidate.at("method") == method.name && candidate.at("params") == params)
      return &candidate;
  }
  return nullptr;
}

std::vector<MeasuredLayer> MeasuredRun::layers(const NamedMethod& method) const {
  const Json* found = find(method);
  if (!found) {
    std::vector<std::string> specs;
    for (const Json& candidate : document_.at("methods")) {
      specs.push_back(candidate.at("spec").get<std::string>());
    }
    fail<UsageError>("--stats {}: no statistics of {} {}, only of: {}", path_, method.name,
                     json_of(method.parameters).dump(), fmt::join(specs, ", "));
  }
  std::vector<MeasuredLayer> layers;
  try {
    for (const Json& layer : found->at("by_layer")) layers.push_back(layer_from(layer));
  } catch (const Json::exception& error) {
    fail<RuntimeError>("{}: /document: {}", path_, error.what());
  }
  return layers;
}

std::vector<MeasuredLayer> MeasuredRun::layers_if_needed(const NamedMethod& method) const {
  if (!find(method) && reads_always_the_same(*method.method)) return {};
  return layers(method);
}

}  // namespace kvsim
