#include "sim/json.h"

#include <charconv>
#include <cmath>

#include "core/error.h"
#include "sim/scaled_statistics.h"

namespace kvsim {

double finite(double value) {
  KVSIM_CHECK(std::isfinite(value));
  return value;
}

Json json_of(const Estimate& estimate) {
  return {{"value", finite(estimate.value)},
          {"low", finite(estimate.low)},
          {"high", finite(estimate.high)},
          {"source", to_string(estimate.source)}};
}

Json json_of_parameter(const std::string& text) {
  const char* end = text.data() + text.size();
  std::int64_t integer = 0;
  const auto whole = std::from_chars(text.data(), end, integer);
  if (whole.ec == std::errc() && whole.ptr == end) return integer;
  double real = 0;
  const auto parsed = std::from_chars(text.data(), end, real);
  if (parsed.ec == std::errc() && parsed.ptr == end && std::isfinite(real)) return real;
  return text;
}

Json json_of(const Parameters& parameters) {
  Json json = Json::object();
  for (const auto& [key, value] : parameters.values()) json[key] = json_of_parameter(value);
  return json;
}

Json json_of(const std::vector<DefaultUsed>& defaults) {
  Json json = Json::array();
  for (const DefaultUsed& item : defaults) {
    json.push_back({{"option", item.option}, {"value", item.value}});
  }
  return json;
}

Json json_of(const Statistics& statistics) {
  Json json;
  for (const auto& [name, field] : kStatisticsFields) json[name] = finite(statistics.*field);
  return json;
}

Json json_of(const LayerInfo& info) {
  return {{"layer", info.layer},
          {"q_heads", info.q_heads},
          {"kv_heads", info.kv_heads},
          {"head_dim", info.head_dim},
          {"v_head_dim", info.v_head_dim},
          {"scale", info.scale},
          {"window", info.window},
          {"logit_cap", info.logit_cap},
          {"layout", info.layout == KvLayout::kLatent ? "latent" : "heads"},
          {"type", to_string(info.kv_type)}};
}

Json json_of(const TraceInfo& info) {
  Json layers = Json::array();
  for (const LayerInfo& layer : info.layers) layers.push_back(json_of(layer));
  return {{"path", info.path},
          {"model", info.model},
          {"source", info.source},
          {"license", info.license},
          {"prompt_tokens", info.prompt_tokens},
          {"decode_steps", info.decode_steps},
          {"rope", info.rope},
          {"rope_theta", info.rope_theta},
          {"rope_scaling", info.rope_scaling},
          {"rotary_dim", info.rotary_dim},
          {"synthetic", info.synthetic},
          {"layers", layers}};
}

Json traffic_json(const CostSum& sum) {
  Json by_tensor;
  // The order of the documents, not of the enum.
  for (const Tensor tensor :
       {Tensor::kK, Tensor::kV, Tensor::kMetadata, Tensor::kQuery, Tensor::kOutput, Tensor::kStash,
        Tensor::kPartial, Tensor::kPageTable}) {
    by_tensor[std::string(to_string(tensor))] =
        finite(sum.mean(sum.dram_by_tensor[static_cast<std::size_t>(tensor)]));
  }
  return {{"dense_bytes", finite(sum.mean(sum.dense_bytes))},
          {"requested_bytes", finite(sum.mean(sum.requested_bytes))},
          {"sector_bytes", finite(sum.mean(sum.sector_bytes))},
          {"dram_read_bytes", finite(sum.mean(sum.dram_read_bytes))},
          {"dram_write_bytes", finite(sum.mean(sum.dram_write_bytes))},
          {"dram_bytes", finite(sum.mean(sum.dram_bytes()))},
          {"by_tensor", by_tensor}};
}

Json ops_json(const CostSum& sum) {
  Json json;
  for (std::size_t i = 0; i < kOps; ++i)
    json[std::string(kOpNames[i])] = finite(sum.mean(sum.ops[i]));
  return json;
}

Json terms_json(const CostSum& sum) {
  Json json = Json::array();
  for (const CostSum::Term& term : sum.terms) {
    const Estimate us = sum.mean(term.us);
    json.push_back({{"stage", term.stage},
                    {"limit", to_string(term.limit)},
                    {"us", finite(us.value)},
                    {"low_us", finite(us.low)},
                    {"high_us", finite(us.high)}});
  }
  return json;
}

Json items_json(const CostSum& sum) {
  Json json = Json::array();
  for (const EnergyItem& item : sum.items) {
    const Estimate pj = sum.mean(item.pj);
    json.push_back({{"item", item.item},
                    {"pj", finite(pj.value)},
                    {"low_pj", finite(pj.low)},
                    {"high_pj", finite(pj.high)},
                    {"source", to_string(pj.source)},
                    {"datapath", item.datapath}});
  }
  return json;
}

Json accelerator_json(const Target& target, const CostSum& sum) {
  const Machine& machine = target.machine;
  return {{"name", machine.name},
          {"title", machine.title},
          {"node_nm", finite(machine.node_nm)},
          {"memory", machine.memory.name},
          {"element_bits", machine.element_bits},
          {"total_pj", json_of(sum.mean(sum.total_pj))},
          {"datapath_pj", json_of(sum.mean(sum.datapath_pj))},
          {"area_mm2", json_of(machine.area_mm2)},
          {"predicted_us", json_of(sum.mean(sum.us))},
          {"dram_read_bytes", finite(sum.mean(sum.dram_read_bytes))},
          {"dram_write_bytes", finite(sum.mean(sum.dram_write_bytes))},
          {"items", items_json(sum)}};
}

}  // namespace kvsim
