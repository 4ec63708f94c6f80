#include "sim/measure_trace.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "core/error.h"
#include "sim/device_layer.h"
#include "traces/trace_file.h"

namespace kvsim {
namespace {

std::vector<std::int64_t> layers_of(const TraceInfo& info, const IndexList& asked) {
  std::vector<std::int64_t> layers;
  for (const LayerInfo& layer : info.layers) layers.push_back(layer.layer);
  if (layers.empty()) fail<RuntimeError>("{}: no layers to measure", info.path);
  return asked.everything() ? std::vector{layers.front()} : asked.pick(layers, info.path);
}

std::vector<std::int64_t> steps_of(const TraceInfo& info, const IndexList& asked) {
  std::vector<std::int64_t> steps(static_cast<std::size_t>(info.decode_steps));
  std::iota(steps.begin(), steps.end(), std::int64_t{0});
  if (steps.empty()) fail<RuntimeError>("{}: no decode steps to measure", info.path);
  return asked.everything() ? std::vector{steps[steps.size() / 2]} : asked.pick(steps, info.path);
}

std::shared_ptr<const TraceLayer> read_layer(const TraceReader& reader, std::int64_t layer) {
  const TraceInfo& trace = reader.info();
  const auto found = std::find_if(trace.layers.begin(), trace.layers.end(),
                                  [layer](const LayerInfo& info) { return info.layer == layer; });
  auto read = std::make_shared<const TraceLayer>(
      reader.read_layer(static_cast<std::size_t>(found - trace.layers.begin())));
  const std::string refusal = device_refusal(*read);
  if (!refusal.empty()) fail<RuntimeError>("{}: layer {}: {}", trace.path, layer, refusal);
  return read;
}

MeasureCase case_of(const TraceInfo& trace, const std::shared_ptr<const TraceLayer>& layer,
                    std::int64_t step) {
  const LayerInfo& info = layer->info;
  const Range rows = visible_rows(info, trace.prompt_tokens, step);
  MeasureCase result;
  result.contexts = {static_cast<std::int32_t>(rows.end - rows.begin)};
  result.q_heads = info.q_heads;
  result.kv_heads = info.kv_heads;
  result.head_dim = info.head_dim;
  result.type = layer->k.type;
  result.traced =
      TracedStep{trace.path, layer, step, rows, visible_prompt(info, trace.prompt_tokens)};
  return result;
}

}  // namespace

std::vector<MeasureCase> traced_cases(const TraceChoice& choice) {
  const TraceReader reader(choice.path);
  const std::vector<std::int64_t> steps = steps_of(reader.info(), choice.steps);
  std::vector<MeasureCase> cases;
  for (const std::int64_t index : layers_of(reader.info(), choice.layers)) {
    const std::shared_ptr<const TraceLayer> layer = read_layer(reader, index);
    for (const std::int64_t step : steps) cases.push_back(case_of(reader.info(), layer, step));
  }
  return cases;
}

}  // namespace kvsim
