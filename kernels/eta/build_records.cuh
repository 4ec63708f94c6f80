#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/device/step.h"
#include "kernels/eta/record_table.cuh"
#include "kernels/eta/records.h"

namespace kvsim::eta {

/// Enqueues the records of all blocks that the last `new_rows` rows of each sequence fill: the same
/// bits as Records of the same keys.
void build_records(const DeviceStep& step, std::int64_t new_rows, int block, Spread spread,
                   const RecordTable& table, cudaStream_t stream);

}  // namespace kvsim::eta
