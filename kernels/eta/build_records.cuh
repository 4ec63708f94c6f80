#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/device/step.h"
#include "kernels/eta/records.h"

namespace kvsim::eta {

/// Block records of a batch, [teams, capacity]: centroid and spread, [2, head_dim], and the largest
/// norm.
struct RecordTables {
  __half* rows = nullptr;
  float* norms = nullptr;
  std::int64_t capacity = 0;  // blocks of a sequence
};

/// Enqueues the records of all blocks that the last `new_rows` rows of each sequence fill: the same
/// bits as Records of the same keys.
void build_records(const DeviceStep& step, std::int64_t new_rows, int block, Spread spread,
                   const RecordTables& tables, cudaStream_t stream);

}  // namespace kvsim::eta
