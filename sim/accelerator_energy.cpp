#include "sim/accelerator_energy.h"

#include <utility>

#include "core/error.h"

namespace kvsim {
namespace {

/// One accelerator under one method, beside the same accelerator under dense.
Json accelerator_entry(const Target& target, const CostSum& sum, const CostSum& dense) {
  Json json = accelerator_json(target, sum);
  const double whole = dense.mean(dense.total_pj.value);
  const double datapath = dense.mean(dense.datapath_pj.value);
  json["total_share_of_dense"] = whole > 0 ? finite(sum.mean(sum.total_pj.value) / whole) : 0;
  json["datapath_share_of_dense"] =
      datapath > 0 ? finite(sum.mean(sum.datapath_pj.value) / datapath) : 0;
  return json;
}

/// Sums over layers of what a method costs on every target, with expected footprints.
std::vector<CostSum> cost_layers(const NamedMethod& method, std::span<const MeasuredLayer> layers,
                                 bool from_bounds, std::span<const Target> targets) {
  std::vector<CostSum> sums(targets.size());
  for (const MeasuredLayer& layer : layers) {
    const auto context = whole_tokens(layer.context_mean);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      const Shape shape = shape_on(targets[i], layer.heads, {&context, 1}, layer.prompt_tokens);
      const Statistics statistics =
          from_bounds ? method.method->bounds(shape).high : layer.statistics;
      const Work work = step_work(method.method->implementation(), shape, statistics, targets[i]);
      sums[i].add(step_cost(work, shape, targets[i], nullptr),
                  dense_bytes(shape, layer.heads.latent));
    }
  }
  return sums;
}

Json method_head(const std::string& spec, const NamedMethod& method) {
  return {{"method", method.name}, {"spec", spec}, {"params", json_of(method.parameters)}};
}

}  // namespace

Json energy_document(const Replay& replay, const DocumentOptions& options) {
  Json document = document_head("kvsim.energy/1", replay, options);
  Json methods = Json::array();
  for (std::size_t i = 0; i < replay.methods.size(); ++i) {
    const MethodRun& run = replay.runs[i];
    const RunSummary summary = summarize(records_of(run));
    Json json = method_head(replay.specs[i], replay.methods[i]);
    json["error"] = error_json(summary.error, total_of(run.bias));
    json["selection"] = selection_json(summary.selection);
    json["ops"] = ops_json(total_of(run.layers, 0));
    Json accelerators = Json::array();
    for (std::size_t target = 0; target < replay.targets.size(); ++target) {
      accelerators.push_back(accelerator_entry(replay.targets[target], total_of(run.layers, target),
                                               total_of(replay.dense_layers, target)));
    }
    json["accelerators"] = std::move(accelerators);
    methods.push_back(std::move(json));
  }
  document["methods"] = std::move(methods);
  return document;
}

Json energy_document(const EnergyFromRun& question, const DocumentOptions& options) {
  const JsonNode run = question.run.root();
  Json document{{"schema", "kvsim.energy/1"},
                {"version", options.program_version},
                {"commit", options.program_commit},
                {"statistics", question.run.path()},
                {"trace", run.at("trace").json()},
                {"layout", to_string(question.targets[0].layout.kind)},
                {"l2", to_string(question.targets[0].state)},
                {"defaults", json_of(options.defaults)},
                {"notes",
                 {"row counts are those of " + question.run.path() +
                      "; sectors and DRAM bytes are expected from them, not counted row by row",
                  "energies are per layer and step, means over the run's layers"}}};
  const NamedMethod dense = make_method("dense");
  Json methods = Json::array();
  for (const std::string& spec : question.methods) {
    const NamedMethod method = make_method(spec);
    const std::vector<MeasuredLayer> layers = question.run.layers(method);
    const std::vector<CostSum> sums = cost_layers(method, layers, false, question.targets);
    const std::vector<CostSum> baseline = cost_layers(dense, layers, true, question.targets);
    Json json = method_head(spec, method);
    json["error"] = nullptr;
    json["error_reason"] = "costed from statistics; the run file has the errors";
    json["ops"] = ops_json(sums[0]);
    Json accelerators = Json::array();
    for (std::size_t i = 0; i < sums.size(); ++i) {
      accelerators.push_back(accelerator_entry(question.targets[i], sums[i], baseline[i]));
    }
    json["accelerators"] = std::move(accelerators);
    methods.push_back(std::move(json));
  }
  document["methods"] = std::move(methods);
  return document;
}

}  // namespace kvsim
