#include "sim/decode_study.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/layer_replay.h"
#include "sim/scaled_statistics.h"
#include "sim/summary.h"

namespace kvsim {
namespace {

MeasuredLayer measured_layer(const Replay& replay, int layer) {
  const LayerInfo& info = replay.layer_infos.at(layer);
  MeasuredLayer measured;
  measured.layer = layer;
  measured.window = info.window;
  measured.heads = head_shape(info);
  // The prompt fixes the tile rule; of several traces the first one's stands for all.
  measured.prompt_tokens = visible_prompt(info, replay.traces.front().prompt_tokens);
  double steps = 0;
  for (std::size_t i = 0; i < replay.traces.size(); ++i) {
    const auto& layers = replay.layers[i];
    if (std::find(layers.begin(), layers.end(), layer) == layers.end()) continue;
    for (const std::int64_t step : replay.steps[i]) {
      const Range rows = visible_rows(info, replay.traces[i].prompt_tokens, step);
      const auto context = static_cast<double>(rows.end - rows.begin);
      measured.context_mean += context;
      measured.context_max = std::max(measured.context_max, context);
      steps += 1;
    }
  }
  measured.context_mean /= steps;
  return measured;
}

bool matches(const MeasuredLayer& measured, const Llm& llm) {
  return measured.heads ==
         HeadShape{llm.q_heads, llm.kv_heads, llm.head_dim, llm.v_head_dim, false};
}

std::vector<LayersAndTime> times_at(const Serving& serving, const Method& method,
                                    std::span<const MeasuredLayer> measured, std::int64_t context,
                                    bool exact) {
  std::vector<LayersAndTime> times;
  for (const LayerClass& layer : classify_layers(serving.llm, measured)) {
    const MeasuredLayer* own = layer.measured;
    const bool same_window = own && own->window == layer.window;
    if (exact && own && same_window && own->attention_us && matches(*own, serving.llm)) {
      times.push_back({layer.layers, *own->attention_us});
    } else {
      times.push_back({layer.layers, predict_layer(serving, layer, method, context).attention_us});
    }
  }
  return times;
}

/// Σ over layers, value only.
double attention_us(std::span<const LayersAndTime> times) {
  double sum = 0;
  for (const LayersAndTime& time : times) sum += time.layers * time.attention_us.value;
  return sum;
}

bool is_baseline(const DecodeStudy& study) {
  return study.method.name == study.dense.name &&
         study.method.parameters.values() == study.dense.parameters.values();
}

/// Predicted attention of dense over that of the method.
double attention_speedup(const DecodeStudy& study, std::int64_t context) {
  const auto dense =
      times_at(study.serving, *study.dense.method, study.dense_measured, context, false);
  const auto method = times_at(study.serving, *study.method.method, study.measured, context, false);
  return attention_us(dense) / attention_us(method);
}

Json fits_json(const MemoryNeed& need) {
  return need.capacity_bytes > 0 ? Json(need.fits()) : Json(nullptr);
}

}  // namespace

std::vector<MeasuredLayer> measured_layers(const Replay& replay, const MethodRun& run) {
  std::vector<MeasuredLayer> layers;
  for (const auto& [layer, costs] : run.layers) {
    MeasuredLayer measured = measured_layer(replay, layer);
    measured.statistics = summarize(records_of(run, layer)).statistics;
    measured.attention_us = costs[0].mean(costs[0].us);
    layers.push_back(measured);
  }
  return layers;
}

std::vector<MeasuredLayer> measured_dense_layers(const Replay& replay) {
  std::vector<MeasuredLayer> layers;
  for (const auto& [layer, costs] : replay.dense_layers) {
    MeasuredLayer measured = measured_layer(replay, layer);
    const auto context = whole_tokens(measured.context_mean);
    const Shape shape =
        shape_on(replay.targets[0], measured.heads, {&context, 1}, measured.prompt_tokens);
    measured.statistics = replay.dense.method->bounds(shape).high;
    measured.attention_us = costs[0].mean(costs[0].us);
    layers.push_back(measured);
  }
  return layers;
}

DecodeStep study_step(const DecodeStudy& study, std::int64_t context, bool exact) {
  const Serving& serving = study.serving;
  const auto dense = times_at(serving, *study.dense.method, study.dense_measured, context, exact);
  const auto method = times_at(serving, *study.method.method, study.measured, context, exact);
  return decode_step(serving.llm, serving.target.machine, serving.batch, dense, method);
}

std::optional<std::int64_t> break_even_context(const DecodeStudy& study) {
  if (is_baseline(study)) return std::nullopt;
  const auto beats = [&](std::int64_t context) {
    constexpr double kMargin = 1e-9;  // equal costs may differ by the order of their sums
    return attention_speedup(study, context) > 1 + kMargin;
  };
  // From the longest context down: a win counts only if it holds from there on.
  if (!beats(kMaxContext)) return std::nullopt;
  std::int64_t wins = kMaxContext;
  std::int64_t loses = wins / 2;
  while (loses > 0 && beats(loses)) {
    wins = loses;
    loses /= 2;
  }
  while (wins - loses > 1) {
    const std::int64_t middle = loses + (wins - loses) / 2;
    (beats(middle) ? wins : loses) = middle;
  }
  return wins;
}

Json speedup_curve(const DecodeStudy& study) {
  Json curve = Json::array();
  for (std::int64_t context = 1024; context <= kMaxContext; context *= 2) {
    const DecodeStep step = study_step(study, context, false);
    curve.push_back({{"context", context},
                     {"speedup", json_of(step.speedup)},
                     {"attention_speedup", finite(attention_speedup(study, context))},
                     {"fits", fits_json(memory_need(study.serving, context))}});
  }
  return curve;
}

MemoryNeed memory_need(const Serving& serving, std::int64_t context) {
  const Target& target = serving.target;
  return memory_need(serving.llm, target.machine.memory, target.format, target.layout, context,
                     serving.batch);
}

Json memory_json(const MemoryNeed& need) {
  Json json{{"weight_bytes", finite(need.weight_bytes)},
            {"kv_bytes", finite(need.kv_bytes)},
            {"needed_bytes", finite(need.needed_bytes())},
            {"capacity_bytes", finite(need.capacity_bytes)},
            {"fits", fits_json(need)}};
  if (need.capacity_bytes <= 0) {
    json["capacity_bytes"] = nullptr;
    json["capacity_bytes_reason"] = json["fits_reason"] = "the preset names no capacity";
  }
  return json;
}

Json decode_step_json(const DecodeStudy& study, std::int64_t context, bool exact) {
  const DecodeStep step = study_step(study, context, exact);
  Json json{{"llm", study.serving.llm.name},
            {"batch", study.serving.batch},
            {"context", context},
            {"dense_us", finite(step.dense_us.value)},
            {"method_us", finite(step.method_us.value)},
            {"speedup", json_of(step.speedup)},
            {"dense_estimate_us", json_of(step.dense_us)},
            {"method_estimate_us", json_of(step.method_us)},
            {"weights_us", json_of(step.weights_us)},
            {"all_reduce_us", json_of(step.all_reduce_us)},
            {"attention_share", finite(step.attention_share)}};
  if (const auto first = break_even_context(study)) {
    json["break_even_context"] = *first;
  } else {
    json["break_even_context"] = nullptr;
    json["break_even_context_reason"] =
        is_baseline(study)
            ? "it is the baseline"
            : "its predicted attention beats dense at no context up to 1048576 tokens";
  }
  json["curve"] = speedup_curve(study);
  return json;
}

Json layer_map_json(const DecodeStudy& study) {
  Json map = Json::array();
  for (const LayerClass& layer : classify_layers(study.serving.llm, study.measured)) {
    Json entry{{"llm_layers", layer.layers}, {"window", layer.window}, {"captured_layer", nullptr}};
    if (layer.measured) {
      entry["captured_layer"] = layer.measured->layer;
    } else {
      entry["captured_layer_reason"] = "no captured layer with and without window alike: bounds";
    }
    map.push_back(std::move(entry));
  }
  return map;
}

std::vector<std::string> study_notes(const DecodeStudy& study) {
  const Llm& llm = study.serving.llm;
  std::vector<std::string> notes = llm.notes;
  if (study.measured.empty()) {
    notes.push_back(
        "no statistics: low and high are the least and the most the method can read, "
        "value is the most");
    return notes;
  }
  notes.push_back(fmt::format("the {} layers of {} take the nearest of {} captured layers",
                              llm.layers, llm.name, study.measured.size()));
  for (const MeasuredLayer& layer : study.measured) {
    if (matches(layer, llm)) continue;
    notes.push_back(
        fmt::format("the trace has {}/{} heads of size {}, {} has {}/{} of size {}: row counts are "
                    "carried over "
                    "per KV head, their place between the method's bounds held",
                    layer.heads.q_heads, layer.heads.kv_heads, layer.heads.head_dim, llm.name,
                    llm.q_heads, llm.kv_heads, llm.head_dim));
    break;
  }
  return notes;
}

}  // namespace kvsim
