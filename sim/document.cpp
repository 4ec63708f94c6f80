#include "sim/document.h"

#include <utility>

#include "sim/decode_study.h"
#include "sim/layer_replay.h"
#include "sim/prepare_cost.h"
#include "sim/summary.h"

namespace kvsim {
namespace {

double share(double part, double whole) { return whole > 0 ? finite(part / whole) : 0; }

/// The measured time of some layers beside the predicted one, or why there is none.
Json time_json(const Replay& replay, const CostSum& sum, const std::vector<MeasuredSum>& times) {
  Json json{{"predicted_us", json_of(sum.mean(sum.us))}};
  if (!replay.measured) {
    json["measured_us"] = nullptr;
    json["measured_us_reason"] =
        replay.gpu ? "not timed, for lack of --measure" : "replayed on the CPU";
    return json;
  }
  MeasuredSum total;
  for (const MeasuredSum& time : times) {
    total.us += time.us;
    total.steps += time.steps;
  }
  json["measured_us"] = json_of(total.us * (1 / total.steps));
  return json;
}

Json time_of_all_layers(const Replay& replay, const MethodRun& run) {
  std::vector<MeasuredSum> times;
  for (const auto& [layer, time] : run.times) times.push_back(time);
  const CostSum sum = total_of(run.layers, 0);
  Json json = time_json(replay, sum, times);
  json["terms"] = terms_json(sum);
  return json;
}

Json energy_json(const CostSum& sum) {
  return {{"total_pj", json_of(sum.mean(sum.total_pj))},
          {"datapath_pj", json_of(sum.mean(sum.datapath_pj))},
          {"items", items_json(sum)}};
}

Json prepare_of(const Replay& replay, const MethodRun& run) {
  const auto mean_us = [](const CostSum& sum) { return sum.mean(sum.us).value; };
  Json json = prepare_json({.keeps_state = run.state_bytes > 0,
                            .bytes = run.prepare_bytes,
                            .cost = &run.prepare,
                            .dense_us = mean_us(total_of(replay.dense_layers, 0)),
                            .method_us = mean_us(total_of(run.layers, 0))});
  json["state_bytes"] = finite(run.state_bytes);
  return json;
}

/// Mean tokens of the cache over the replayed steps.
std::int64_t mean_context(const Replay& replay) {
  double sum = 0;
  double steps = 0;
  for (std::size_t i = 0; i < replay.traces.size(); ++i) {
    for (const std::int64_t step : replay.steps[i]) {
      sum += static_cast<double>(replay.traces[i].prompt_tokens + step + 1);
      steps += 1;
    }
  }
  return whole_tokens(sum / steps);
}

void add_decode_step(const Replay& replay, std::size_t method, const DocumentOptions& options,
                     Json& json) {
  if (!options.llm) {
    json["decode_step"] = nullptr;
    json["decode_step_reason"] = "no LLM given (--llm NAME or --config config.json)";
    return;
  }
  const Serving serving{*options.llm, replay.targets[0], 1};
  const DecodeStudy study{serving, replay.dense, replay.methods[method],
                          measured_dense_layers(replay),
                          measured_layers(replay, replay.runs[method])};
  json["decode_step"] = decode_step_json(study, mean_context(replay), true);
  json["decode_step"]["layer_map"] = layer_map_json(study);
  json["decode_step"]["notes"] = study_notes(study);
}

Json method_json(const Replay& replay, std::size_t index, const DocumentOptions& options) {
  const NamedMethod& method = replay.methods[index];
  const MethodRun& run = replay.runs[index];
  const RunSummary summary = summarize(records_of(run));
  const CostSum gpu = total_of(run.layers, 0);
  const CostSum dense = total_of(replay.dense_layers, 0);
  Json json{{"method", method.name},
            {"spec", replay.specs[index]},
            {"params", json_of(method.parameters)},
            {"device", replay.gpu ? "cuda" : "cpu"},
            {"empty_heads", summary.empty_heads},
            {"error", error_json(summary.error, total_of(run.bias))},
            {"selection", selection_json(summary.selection)},
            {"traffic", traffic_json(gpu)},
            {"logical_access_fraction", finite(summary.logical_access_fraction)},
            {"ops", ops_json(gpu)},
            {"time", time_of_all_layers(replay, run)},
            {"energy", energy_json(gpu)}};
  json["traffic"]["dram_share_of_dense"] =
      share(gpu.mean(gpu.dram_bytes()), dense.mean(dense.dram_bytes()));
  Json accelerators = Json::array();
  for (std::size_t target = 1; target < replay.targets.size(); ++target) {
    accelerators.push_back(accelerator_json(replay.targets[target], total_of(run.layers, target)));
  }
  json["accelerators"] = std::move(accelerators);
  json["prepare"] = prepare_of(replay, run);
  add_decode_step(replay, index, options, json);
  json["by_layer"] = by_layer_json(replay, run);
  return json;
}

/// What a reader must know to use the numbers.
std::vector<std::string> replay_notes(const Replay& replay, const DocumentOptions& options) {
  std::vector<std::string> notes;
  notes.push_back(
      "time, energy and DRAM bytes are modelled from the rows the methods really read; "
      "intervals are 90 %");
  notes.push_back(
      "open-loop replay: later queries come from dense decoding, so errors do not build up");
  notes.push_back("K and V count as " + options.kv_dtype +
                  " in bytes; errors are of the values as the trace stores them");
  if (replay.gpu) {
    notes.push_back("outputs and selections are those of our kernels on " + replay.gpu->name +
                    "; every selection is the rule's, given the kernel's own scores");
  }
  if (replay.measured) {
    notes.push_back("measured times: " + replay.gpu->name + ", driver " + replay.gpu->driver +
                    ", one process, medians with 95 % intervals within it");
  }
  for (const TraceInfo& trace : replay.traces) {
    if (trace.synthetic) {
      notes.push_back(trace.path + " is synthetic: its errors say nothing about a real model");
    }
  }
  for (const MethodRun& run : replay.runs) {
    for (const std::string& note : run.notes) add_distinct(note, notes);
  }
  return notes;
}

}  // namespace

Json error_json(const ErrorSummary& error, const BiasSums& bias) {
  Json json{{"relative_l2",
             {{"mean", finite(error.mean)},
              {"p50", finite(error.p50)},
              {"p95", finite(error.p95)},
              {"max", finite(error.max)},
              {"rms", finite(error.rms)}}},
            {"cosine_mean", finite(error.cosine_mean)}};
  if (bias.heads > 0) {
    const BiasSummary summary = summarize(bias);
    json["bias"] = {{"relative_l2", json_of(summary.bias)},
                    {"mean_output_l2", finite(summary.mean_output)},
                    {"floor_l2", finite(summary.floor)}};
  } else {
    json["bias"] = nullptr;
    json["bias_reason"] = "one seed only (--repeats)";
  }
  return json;
}

Json selection_json(const SelectionSummary& selection) {
  Json json{{"rows_per_head_mean", finite(selection.rows_per_head_mean)},
            {"union_rows_mean", finite(selection.union_rows_mean)},
            {"union_fraction", finite(selection.union_fraction)},
            {"gqa_amplification", finite(selection.gqa_amplification)},
            {"mass_recall_mean", finite(selection.mass_recall_mean)},
            {"draws_per_head_mean", finite(selection.draws_per_head_mean)},
            {"k_union_fraction", finite(selection.k_union_fraction)},
            {"k_feature_fraction_head", finite(selection.k_feature_fraction_head)},
            {"k_feature_fraction_group", finite(selection.k_feature_fraction_group)},
            {"k_chunk_fraction_group", finite(selection.k_chunk_fraction_group)}};
  if (selection.routing_kl_mean) json["routing_kl_nats_mean"] = finite(*selection.routing_kl_mean);
  return json;
}

Json by_layer_json(const Replay& replay, const MethodRun& run) {
  Json layers = Json::array();
  for (const MeasuredLayer& measured : measured_layers(replay, run)) {
    const RunSummary summary = summarize(records_of(run, measured.layer));
    const CostSum& sum = run.layers.at(measured.layer)[0];
    std::vector<MeasuredSum> times;
    if (replay.measured) times.push_back(run.times.at(measured.layer));
    layers.push_back({{"layer", measured.layer},
                      {"window", measured.window},
                      {"q_heads", measured.heads.q_heads},
                      {"kv_heads", measured.heads.kv_heads},
                      {"head_dim", measured.heads.head_dim},
                      {"v_head_dim", measured.heads.v_head_dim},
                      {"latent", measured.heads.latent},
                      {"context_mean", finite(measured.context_mean)},
                      {"context_max", finite(measured.context_max)},
                      {"prompt_tokens", measured.prompt_tokens},
                      {"empty_heads", summary.empty_heads},
                      {"error", error_json(summary.error, run.bias.at(measured.layer))},
                      {"selection", selection_json(summary.selection)},
                      {"traffic", traffic_json(sum)},
                      {"logical_access_fraction", finite(summary.logical_access_fraction)},
                      {"time", time_json(replay, sum, times)},
                      {"energy", {{"total_pj", json_of(sum.mean(sum.total_pj))}}},
                      {"statistics", json_of(summary.statistics)}});
  }
  return layers;
}

Json document_head(const std::string& schema, const Replay& replay,
                   const DocumentOptions& options) {
  Json traces = Json::array();
  for (std::size_t i = 0; i < replay.traces.size(); ++i) {
    Json trace = json_of(replay.traces[i]);
    trace["replayed_layers"] = replay.layers[i];
    trace["replayed_steps"] = replay.steps[i];
    traces.push_back(std::move(trace));
  }
  const Target& first = replay.targets[0];
  Json head{{"schema", schema},
            {"version", options.program_version},
            {"commit", options.program_commit},
            {"trace", traces[0]},
            {"gpu", nullptr}};
  if (traces.size() > 1) head["traces"] = traces;
  if (options.gpu.empty()) {
    head["gpu_reason"] = "no --gpu given";
  } else {
    head["gpu"] = options.gpu;
    head["gpu_title"] = first.machine.title;
  }
  head["seed"] = replay.seed;
  head["repeats"] = replay.repeats;
  head["batch"] = 1;
  head["layout"] = to_string(first.layout.kind);
  if (first.layout.kind == LayoutKind::kPaged) head["page_tokens"] = first.layout.page_tokens;
  head["kv_dtype"] = options.kv_dtype;
  head["l2"] = to_string(first.state);
  head["defaults"] = json_of(options.defaults);
  head["notes"] = replay_notes(replay, options);
  return head;
}

Json replay_document(const Replay& replay, const DocumentOptions& options) {
  Json document = document_head("kvsim.replay/1", replay, options);
  Json methods = Json::array();
  for (std::size_t i = 0; i < replay.methods.size(); ++i) {
    methods.push_back(method_json(replay, i, options));
  }
  document["methods"] = std::move(methods);
  return document;
}

}  // namespace kvsim
