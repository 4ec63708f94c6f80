#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "kernels/eta/rule.h"

namespace kvsim::eta {

/// Block records of a batch in device memory, team (sequence, KV head) by team: centroid and spread
/// of each block, [capacity, 2, head_dim], then their largest norms, [capacity]. Where a team's
/// records lie does not depend on the teams after it.
struct RecordTable {
  std::byte* data = nullptr;
  std::int64_t capacity = 0;  // blocks of a team
  std::int32_t head_dim = 0;

  /// Rows are copied 16 bytes at a time.
  KVSIM_HD std::int64_t team_bytes() const {
    return (capacity * record_bytes(head_dim) + 15) / 16 * 16;
  }
  KVSIM_HD __half* rows(std::int64_t team) const {
    return reinterpret_cast<__half*>(data + team * team_bytes());
  }
  KVSIM_HD float* norms(std::int64_t team) const {
    return reinterpret_cast<float*>(rows(team) + capacity * 2 * head_dim);
  }
};

}  // namespace kvsim::eta
