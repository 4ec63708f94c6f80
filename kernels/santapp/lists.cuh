#pragma once

#include <cstdint>

#include "kernels/device/exchange.cuh"
#include "kernels/santapp/arguments.cuh"

// Candidates as tiles tell them to the CTAs of their (sequence, KV head): a key, the team's number
// in its tile, and 16 bits of the launch, in 8 bytes. Launches over one workspace draw alike, so
// what lies in a place that is read was written in this launch or in one shortly before.

namespace kvsim::santapp {

/// A head's list of a tile.
__device__ inline device::Tagged* list_of(const SantappArguments& a, std::int64_t number, int tile,
                                          int head) {
  const std::int64_t at = ((number * a.tiles + tile) * a.group + head) * (a.list / 2);
  return reinterpret_cast<device::Tagged*>(a.lists + at);
}

__device__ inline void publish_candidate(device::Tagged* target, std::uint32_t key, int index,
                                         std::uint32_t launch) {
  device::publish(target, key, (launch & 0xFFFFu) << 16 | static_cast<std::uint32_t>(index));
}

/// A candidate, and whether it is of the launch.
__device__ inline bool is_of(const device::Tagged& candidate, std::uint32_t launch) {
  return candidate.launch >> 16 == (launch & 0xFFFFu);
}
__device__ inline int index_of(const device::Tagged& candidate) {
  return static_cast<int>(candidate.launch & 0xFFFFu);
}

}  // namespace kvsim::santapp
