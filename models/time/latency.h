#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/estimate.h"
#include "kernels/work.h"
#include "models/machine.h"
#include "models/memory/traffic.h"

namespace kvsim {

/// What bounds a stage.
enum class Limit { kDram, kCache, kCompute, kLatency };
std::string_view to_string(Limit limit);  // "dram", "l2", "compute", "latency"

struct TimeTerm {
  std::string stage;  // "stream_k", "stream_k: kernel_launch"
  Limit limit = Limit::kDram;
  Estimate us;
};

struct TimeReport {
  std::vector<TimeTerm> terms;  // sum = total
  Estimate total_us;
};

/// Per stage max(DRAM, cache, compute; a warp's rounds of loads) x imbalance plus its boundaries
/// and dependent round trips, summed. A level's ramp is paid once per stage: whole after a kernel
/// launch, which finds the memory pipeline empty, and one round trip at most inside a running
/// kernel. A warp's rounds are latencies and the instructions between them.
TimeReport latency(const Work& work, const Traffic& traffic, const Machine& machine);
/// Only its total, without heap: for sweeps.
Estimate latency_us(const Work& work, const Traffic& traffic, const Machine& machine);

}  // namespace kvsim
