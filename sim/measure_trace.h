#pragma once

#include <string>
#include <vector>

#include "kernels/measure/gpu.h"
#include "sim/index_list.h"

namespace kvsim {

/// Which steps of a trace are measured.
struct TraceChoice {
  std::string path;
  IndexList layers;  // everything: the first
  IndexList steps;   // everything: the middle one
};

/// One case per layer and step. Throws RuntimeError that names the file and what is wrong with it,
/// or the layer that no kernel takes and why; UsageError if a layer or step is not there.
std::vector<MeasureCase> traced_cases(const TraceChoice& choice);

}  // namespace kvsim
