#pragma once

#include <cstdint>
#include <span>

#include "kernels/device/step.h"
#include "kernels/method.h"
#include "kernels/santapp/packed_teams.cuh"

struct CUstream_st;

namespace kvsim::santapp {

/// Fills a table from a step's cache and the TeamTables of all its (sequence, KV head). Waits for
/// the stream. Throws RuntimeError if a table is of another prompt.
void upload_teams(const DeviceStep& step, std::span<const State* const> states,
                  const PackedTeams& table, CUstream_st* stream);

}  // namespace kvsim::santapp
