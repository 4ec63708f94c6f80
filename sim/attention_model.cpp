#include "sim/attention_model.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "sim/prepare_cost.h"
#include "sim/scaled_statistics.h"

namespace kvsim {
namespace {

const MeasuredLayer* nearest(std::span<const MeasuredLayer> measured, int layer, bool windowed) {
  const MeasuredLayer* best = nullptr;
  for (const MeasuredLayer& candidate : measured) {
    if ((candidate.window > 0) != windowed) continue;
    if (!best || std::abs(candidate.layer - layer) < std::abs(best->layer - layer)) {
      best = &candidate;
    }
  }
  return best;
}

HeadShape head_shape(const Llm& llm) {
  return {llm.q_heads, llm.kv_heads, llm.head_dim, llm.v_head_dim, false};
}

/// The shape that a captured layer was measured on, with its mean context.
Method::Bounds measured_bounds(const MeasuredLayer& measured, const Method& method,
                               const Target& target) {
  const auto context = whole_tokens(measured.context_mean);
  return method.bounds(shape_on(target, measured.heads, {&context, 1}, measured.prompt_tokens));
}

/// Widens an estimate to two bounds; what no trace measured is derived.
Estimate widened(const Estimate& value, const Estimate& low, const Estimate& high) {
  return {value.value, std::min(value.low, low.low), std::max(value.high, high.high),
          std::max(value.source, Source::kDerived)};
}

/// Of the batch, as far as the layer's window lets it see.
std::vector<std::int64_t> visible_contexts(const Serving& serving, const LayerClass& layer,
                                           std::int64_t context) {
  const std::int64_t visible = layer.window > 0 ? std::min(layer.window, context) : context;
  return std::vector<std::int64_t>(static_cast<std::size_t>(serving.batch), visible);
}

struct CostedStatistics {
  Work work;
  StepCost cost;
};

CostedStatistics cost_of(const Serving& serving, const Shape& shape, const Method& method,
                         const Statistics& statistics) {
  CostedStatistics result;
  result.work = step_work(method.implementation(), shape, statistics, serving.target);
  result.cost = step_cost(result.work, shape, serving.target, nullptr);
  return result;
}

}  // namespace

std::vector<LayerClass> classify_layers(const Llm& llm, std::span<const MeasuredLayer> measured) {
  std::vector<LayerClass> classes;
  for (int layer = 0; layer < llm.layers; ++layer) {
    const auto index = static_cast<std::size_t>(layer);
    const std::int64_t window = index < llm.windows.size() ? llm.windows[index] : 0;
    const MeasuredLayer* stand_in = nearest(measured, layer, window > 0);
    const auto same = std::find_if(classes.begin(), classes.end(), [&](const LayerClass& other) {
      return other.window == window && other.measured == stand_in;
    });
    if (same == classes.end()) {
      classes.push_back({1, window, stand_in});
    } else {
      ++same->layers;
    }
  }
  return classes;
}

std::optional<StepCost> predict_preparation(const Serving& serving, const LayerClass& layer,
                                            const Method& method, std::int64_t context) {
  const std::vector<std::int64_t> contexts = visible_contexts(serving, layer, context);
  return prepare_cost(method.implementation(),
                      shape_on(serving.target, head_shape(serving.llm), contexts, 0),
                      serving.target);
}

LayerPrediction predict_layer(const Serving& serving, const LayerClass& layer, const Method& method,
                              std::int64_t context) {
  const std::vector<std::int64_t> contexts = visible_contexts(serving, layer, context);
  const std::int64_t visible = contexts[0];
  const Shape shape = shape_on(serving.target, head_shape(serving.llm), contexts, 0);
  const Method::Bounds bounds = method.bounds(shape);
  LayerPrediction prediction;
  prediction.statistics =
      layer.measured
          ? carried_over(layer.measured->statistics,
                         measured_bounds(*layer.measured, method, serving.target), bounds)
          : bounds.high;
  CostedStatistics value = cost_of(serving, shape, method, prediction.statistics);
  prediction.attention_us = value.cost.time.total_us;
  prediction.total_pj = value.cost.energy.total_pj;
  prediction.datapath_pj = value.cost.energy.datapath_pj;
  if (!layer.measured || static_cast<double>(visible) > layer.measured->context_max) {
    const StepCost low = cost_of(serving, shape, method, bounds.low).cost;
    const StepCost high = cost_of(serving, shape, method, bounds.high).cost;
    prediction.attention_us =
        widened(prediction.attention_us, low.time.total_us, high.time.total_us);
    prediction.total_pj = widened(prediction.total_pj, low.energy.total_pj, high.energy.total_pj);
    prediction.datapath_pj =
        widened(prediction.datapath_pj, low.energy.datapath_pj, high.energy.datapath_pj);
  }
  prediction.work = value.work;
  prediction.dense_bytes = dense_bytes(shape, shape.latent);
  prediction.cost = std::move(value.cost);
  return prediction;
}

}  // namespace kvsim
