#pragma once

#include <vector>

#include "sim/layer_replay.h"
#include "sim/replay.h"

namespace kvsim {

/// Costs what a layer's replay read, on every target: appends one record per (seed, step) to each
/// method's run and adds to its sums, in a fixed order.
void cost_layer(const LayerJob& job, const LayerInfo& info, std::int64_t tokens,
                const LayerReplay& replayed, int threads, Replay& result);

/// Adds what dense attention would cost on the layer's steps: the baseline, without attending.
void cost_dense_layer(const LayerJob& job, const LayerInfo& info, std::int64_t tokens, int threads,
                      Replay& result);

}  // namespace kvsim
