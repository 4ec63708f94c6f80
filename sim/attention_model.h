#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "models/llm/llm.h"
#include "sim/cost.h"

namespace kvsim {

/// What a replay measured of a method on one captured layer: means over steps, seeds, sequences.
struct MeasuredLayer {
  int layer = 0;
  std::int64_t window = 0;
  HeadShape heads;
  double context_mean = 0;  // rows a step saw
  double context_max = 0;
  std::int64_t prompt_tokens = 0;
  Statistics statistics;                 // sums over heads
  std::optional<Estimate> attention_us;  // on the GPU, from exact footprints
};

/// A mean of contexts as a context.
inline std::int64_t whole_tokens(double mean) { return std::llround(mean); }

/// An LLM served on a machine: how long the attention of its layers takes, method by method.
struct Serving {
  const Llm& llm;
  const Target& target;
  double batch = 1;
};

/// Layers of the LLM that behave alike: one captured layer stands for them.
struct LayerClass {
  int layers = 0;
  std::int64_t window = 0;
  const MeasuredLayer* measured = nullptr;  // null: nothing comparable was captured
};

/// For every layer of the LLM the nearest captured one (ties to the lower index) that has a window
/// if and only if the layer has one.
std::vector<LayerClass> classify_layers(const Llm& llm, std::span<const MeasuredLayer> measured);

/// The cost of one layer of a class at a context. Without measurements: value and high = the most
/// the method can read, low = the least. Beyond the measured context: the value carries the
/// measurements over, low and high are the bounds. Within it: the model's own interval.
struct LayerPrediction {
  StepCost cost;  // of the value
  Work work;
  Statistics statistics;
  double dense_bytes = 0;
  Estimate attention_us{};
  Estimate total_pj{};
  Estimate datapath_pj{};
};
LayerPrediction predict_layer(const Serving& serving, const LayerClass& layer, const Method& method,
                              std::int64_t context);
/// What making the layer's state of prompts of that length costs, if the method has a model of it.
std::optional<StepCost> predict_preparation(const Serving& serving, const LayerClass& layer,
                                            const Method& method, std::int64_t context);

}  // namespace kvsim
