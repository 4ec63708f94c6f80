#pragma once

#include <cstdint>

#include "kernels/bernoulli/rule.h"
#include "kernels/device/stream.cuh"

namespace kvsim::device {

/// What a FeatureStream is told; methods add to it.
struct FeatureArguments : StreamArguments {
  QueryDraws query;
  std::int32_t table_offset = 0;  // of the FeatureTable in shared memory
};

}  // namespace kvsim::device
