#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/estimate.h"
#include "sim/cost.h"
#include "sim/default_used.h"
#include "traces/trace.h"

namespace kvsim {

/// Keys stay in the order of docs/formats.md.
using Json = nlohmann::ordered_json;

/// {value, low, high, source}. Every number must be finite: what is unknown is null with a reason.
Json json_of(const Estimate& estimate);
/// Refuses NaN and infinity, which JSON would silently turn into null.
double finite(double value);
/// A parameter's value: a number if the whole text is one, else the text.
Json json_of_parameter(const std::string& text);
Json json_of(const Parameters& parameters);
Json json_of(const std::vector<DefaultUsed>& defaults);
Json json_of(const Statistics& statistics);

/// What a trace says of itself.
Json json_of(const TraceInfo& info);
Json json_of(const LayerInfo& info);

/// Means per layer and step.
Json traffic_json(const CostSum& sum);
Json ops_json(const CostSum& sum);
Json terms_json(const CostSum& sum);
Json items_json(const CostSum& sum);
/// {name, node_nm, memory, total_pj, datapath_pj, area_mm2, items, …}.
Json accelerator_json(const Target& target, const CostSum& sum);

}  // namespace kvsim
