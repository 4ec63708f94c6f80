#include "sim/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sim/decode_study.h"
#include "sim/prepare_cost.h"

namespace kvsim {
namespace {

/// All layers of the LLM under one method: sums over layers of what one step costs.
struct WholeModel {
  CostSum sum;                                        // one addition per layer
  Estimate attention_us = exactly(0, Source::kSpec);  // with the bounds' width, unlike sum.us
  Estimate total_pj = exactly(0, Source::kSpec);
  Json layers = Json::array();
  CostSum prepare;  // of the method's state; no steps: no model
  bool keeps_state = false;
};

Json layer_json(const LayerClass& layer, const LayerPrediction& prediction) {
  CostSum one;
  one.add(prediction.cost, 0);
  Json json{{"llm_layers", layer.layers},
            {"window", layer.window},
            {"captured_layer", nullptr},
            {"predicted_us", json_of(prediction.attention_us)},
            {"total_pj", json_of(prediction.total_pj)},
            {"statistics", json_of(prediction.statistics)},
            {"terms", terms_json(one)},
            {"stages", stages_json(prediction.work)}};
  if (layer.measured) {
    json["captured_layer"] = layer.measured->layer;
  } else {
    json["captured_layer_reason"] = "no statistics: bounds of the method";
  }
  return json;
}

WholeModel predict_model(const Serving& serving, const Method& method,
                         std::span<const MeasuredLayer> measured, std::int64_t context) {
  WholeModel model;
  for (const LayerClass& layer : classify_layers(serving.llm, measured)) {
    const LayerPrediction prediction = predict_layer(serving, layer, method, context);
    for (int i = 0; i < layer.layers; ++i) model.sum.add(prediction.cost, prediction.dense_bytes);
    model.keeps_state = model.keeps_state || prediction.statistics.state_bytes_read > 0;
    const auto prepared = predict_preparation(serving, layer, method, context);
    for (int i = 0; prepared && i < layer.layers; ++i) model.prepare.add(*prepared, 0);
    model.attention_us += prediction.attention_us * layer.layers;
    model.total_pj += prediction.total_pj * layer.layers;
    model.layers.push_back(layer_json(layer, prediction));
  }
  return model;
}

/// Of the mean layer.
Json prepare_of(const WholeModel& model, const WholeModel& dense, double layers) {
  return prepare_json({.keeps_state = model.keeps_state,
                       .bytes = model.prepare.mean(model.prepare.dram_bytes()),
                       .cost = &model.prepare,
                       .dense_us = dense.attention_us.value / layers,
                       .method_us = model.attention_us.value / layers});
}

Json method_json(const PredictOptions& options, const std::string& spec, const NamedMethod& dense) {
  const NamedMethod method = make_method(spec);
  const Serving serving{options.llm, options.target, static_cast<double>(options.batch)};
  const std::vector<MeasuredLayer> measured = options.statistics
                                                  ? options.statistics->layers_if_needed(method)
                                                  : std::vector<MeasuredLayer>{};
  const WholeModel model = predict_model(serving, *method.method, measured, options.context);
  const WholeModel dense_model = predict_model(serving, *dense.method, {}, options.context);
  const double layers = options.llm.layers;
  const DecodeStudy study{serving, dense, method, {}, measured};
  return {
      {"method", method.name},
      {"spec", spec},
      {"params", json_of(method.parameters)},
      {"attention_us", json_of(model.attention_us)},
      {"traffic", traffic_json(model.sum)},
      {"ops", ops_json(model.sum)},
      {"time",
       {{"predicted_us", json_of(model.attention_us * (1 / layers))},
        {"terms", terms_json(model.sum)}}},
      {"energy",
       {{"total_pj", json_of(model.total_pj * (1 / layers))}, {"items", items_json(model.sum)}}},
      {"prepare", prepare_of(model, dense_model, layers)},
      {"decode_step", decode_step_json(study, options.context, false)},
      {"layers", model.layers}};
}

std::vector<std::string> notes(const PredictOptions& options, const MemoryNeed& need) {
  std::vector<std::string> result;
  if (need.capacity_bytes > 0 && !need.fits()) {
    constexpr double kBytesPerGb = 1e9;
    result.push_back(fmt::format(
        "does not fit: {:.1f} GB of weights and {:.1f} GB of K and V, but {} has {:.0f} GB; the "
        "times are those of a memory large enough",
        need.weight_bytes / kBytesPerGb, need.kv_bytes / kBytesPerGb, options.gpu,
        need.capacity_bytes / kBytesPerGb));
  }
  result.insert(result.end(), options.llm.notes.begin(), options.llm.notes.end());
  result.push_back("traffic, time, ops and energy are means per layer, whole batch");
  if (options.llm.tensor_parallel > 1) {
    result.push_back(fmt::format(
        "{} GPUs share the model: memory, attention, traffic, ops and energy are those of one",
        options.llm.tensor_parallel));
  }
  if (options.statistics) {
    result.push_back(
        "row counts are carried over from " + options.statistics->path() +
        ": their place between the least and the most the method can read is held; beyond "
        "the measured context low and high are those bounds");
  } else {
    result.push_back(
        "no --stats: low and high are the least and the most the method can read, value "
        "is the most");
    const bool features = std::any_of(
        options.methods.begin(), options.methods.end(),
        [](const std::string& spec) { return !make_method(spec).method->scores_exactly(); });
    if (features) {
      result.push_back(
          "no --stats: Bernoulli scores read all of K's features, whatever draws, query and "
          "k_layout say");
    }
  }
  if (options.llm.max_context > 0 && options.context > options.llm.max_context) {
    result.push_back(fmt::format("{} says it handles at most {} tokens", options.llm.name,
                                 options.llm.max_context));
  }
  return result;
}

Json stage_json(const Stage& stage) {
  Json accesses = Json::array();
  for (const Access& access : stage.accesses) {
    accesses.push_back({{"tensor", to_string(access.tensor)},
                        {"direction", access.direction == Direction::kRead ? "read" : "write"},
                        {"row_bytes", finite(access.row_bytes)},
                        {"rows", finite(access.rows)},
                        {"requests", finite(access.requests)},
                        {"chunk_share", finite(access.chunk_share)},
                        {"bytes", finite(access.bytes())}});
  }
  Json ops = Json::array();
  for (const OpCount& op : stage.ops) {
    ops.push_back(
        {{"op", to_string(op.op)}, {"phase", to_string(op.phase)}, {"count", finite(op.count)}});
  }
  return {{"stage", stage.name},
          {"before", to_string(stage.before)},
          {"boundaries", finite(stage.boundaries)},
          {"ctas", finite(stage.launch.ctas)},
          {"ctas_per_wave", finite(stage.launch.ctas_per_wave)},
          {"imbalance", finite(stage.imbalance)},
          {"dependent_trips", finite(stage.dependent_trips)},
          {"cache_trips", finite(stage.cache_trips)},
          {"load_rounds", finite(stage.load_rounds)},
          {"load_warps", finite(stage.load_warps)},
          {"round_cycles", finite(stage.round_cycles)},
          {"chain_cycles", finite(stage.chain_cycles)},
          {"follower_blocks", finite(stage.followers.blocks)},
          {"follower_cycles", finite(stage.followers.chain_cycles)},
          {"accesses", std::move(accesses)},
          {"ops", std::move(ops)}};
}

}  // namespace

Json stages_json(const Work& work) {
  Json stages = Json::array();
  for (const Stage& stage : work.stages) stages.push_back(stage_json(stage));
  return stages;
}

Json predict_document(const PredictOptions& options) {
  Json document{{"schema", "kvsim.predict/1"},
                {"version", options.program_version},
                {"commit", options.program_commit},
                {"gpu", options.gpu},
                {"gpu_title", options.target.machine.title},
                {"llm", options.llm.name},
                {"context", options.context},
                {"batch", options.batch},
                {"tp", options.llm.tensor_parallel},
                {"layout", to_string(options.target.layout.kind)},
                {"kv_dtype", options.kv_dtype},
                {"l2", to_string(options.target.state)}};
  if (options.statistics) {
    document["statistics"] = options.statistics->path();
  } else {
    document["statistics"] = nullptr;
    document["statistics_reason"] = "no --stats given";
  }
  document["defaults"] = json_of(options.defaults);
  const MemoryNeed need = memory_need(
      {options.llm, options.target, static_cast<double>(options.batch)}, options.context);
  document["memory"] = memory_json(need);
  document["memory"]["streamed_weight_bytes"] = finite(options.llm.streamed_weight_bytes);
  document["notes"] = notes(options, need);
  const NamedMethod dense = make_method("dense");
  Json methods = Json::array();
  for (const std::string& spec : options.methods)
    methods.push_back(method_json(options, spec, dense));
  document["methods"] = std::move(methods);
  return document;
}

}  // namespace kvsim
