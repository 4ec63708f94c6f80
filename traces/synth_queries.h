#pragma once

#include <string>
#include <vector>

#include "traces/synth.h"
#include "traces/synth_calibration.h"
#include "traces/synth_keys.h"

namespace kvsim::synth {

/// What every query head of a layer shall reach: entropies spread over the heads in random order.
std::vector<Target> head_targets(const SynthSpec& spec, int layer);

/// Makes the queries of one KV head's group and puts them into `layer.q` and `layer.probe`. `keys`
/// are the KV head's final rows. Appends to `notes` what cannot be reached, and returns how many
/// queries miss their entropy.
int make_queries(const SynthSpec& spec, int kv_head, const std::vector<Target>& targets,
                 const Directions& directions, const RowsView& keys, TraceLayer& layer,
                 std::vector<std::string>& notes);

}  // namespace kvsim::synth
